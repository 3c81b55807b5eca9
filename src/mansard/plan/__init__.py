"""Plans before the money is spent: which shape of machine, how many devices, what fits and what to change."""
