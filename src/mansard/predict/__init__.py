"""How long will it take? Bounds of a phase on a machine, and the views people quote from them."""
