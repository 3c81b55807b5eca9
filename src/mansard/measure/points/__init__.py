"""Configurable microbenchmarks: what a benchmark is, how its points are timed, audited, judged and written."""
