"""Jupyter kernels on GPU slices: the kernel provisioner, its kernelspecs and their logos."""
