"""Slices of networked GPUs for Jupyter kernels."""

__version__ = "0.1.0"
