"""Mansard finds the bottleneck of ML and HPC programs by measurement."""
