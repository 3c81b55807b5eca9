"""The files below this folder are programs to be run, not tests to be imported."""

collect_ignore_glob = ["torch/*", "jax/*", "real/*"]
