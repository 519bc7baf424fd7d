"""C++ programs of others over the shared CUDA runtime; ``make suites`` compiles them with nvcc and runs them on a slice."""
