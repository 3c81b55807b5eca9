"""Models from the configuration files people have: which keys, which family, which blocks."""
