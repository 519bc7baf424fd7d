"""Frameworks from PyPI on a slice of a simulated H100, through ``gpukernel run``: ``make frameworks`` fetches them (gigabytes)."""
