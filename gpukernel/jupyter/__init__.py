"""Jupyter kernels on GPU slices: kernelspecs, the provisioner, the leases of a server's kernels, and what notebooks
show of them.
"""
