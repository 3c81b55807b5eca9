"""Recorders: run a program as a guest and write down what it did."""
