"""The microbenchmarks, one module for each family; `points.registry` finds them by name."""
