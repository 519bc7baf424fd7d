"""Figures of a slice's kernels on simulated devices: which tier runs them, and, counted instruction by instruction, what they do."""
