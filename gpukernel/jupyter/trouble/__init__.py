"""Troubles of a kernel with its slice: what became of a cell, whether the kernel's process can use another slice, and the next step."""
