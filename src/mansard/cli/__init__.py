"""What do people type? One short file per verb."""
