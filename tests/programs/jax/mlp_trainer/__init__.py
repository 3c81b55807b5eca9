"""A small training package, started with python -m mlp_trainer."""
