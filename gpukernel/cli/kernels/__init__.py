"""Commands about the kernels of a slice on simulated devices."""
