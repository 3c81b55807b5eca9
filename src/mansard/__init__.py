"""Mansard finds the bottleneck of ML and HPC programs by measurement."""

__version__ = "0.1.0"
