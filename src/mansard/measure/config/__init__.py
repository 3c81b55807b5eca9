"""Configuration files of microbenchmarks: strict YAML, sweeps, presets, and the plan that comes of them."""
