"""Measurements of gpukernel against baselines taken in the same run; ``python -m benchmarks`` writes docs/benchmarks.md."""
