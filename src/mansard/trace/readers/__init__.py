"""Readers: one module per profiler format."""
