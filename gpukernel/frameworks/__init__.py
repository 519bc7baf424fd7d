"""What frameworks need on a slice beyond CUDA's libraries; loaded by the frameworks themselves, in the program on the slice.

* `pytorch` computes PyTorch's CUDA operators on simulated devices: its wheels have no PTX
* `pytorch_memory` shows its CPU kernels a CUDA tensor's memory, `pytorch_cells` has operators that CUDA alone has

Nothing else imports this package, and it imports nothing of gpukernel's: a program's environment may have another version of it.
"""
