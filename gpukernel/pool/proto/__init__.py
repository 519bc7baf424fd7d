"""The control path's messages, generated from ``pool.proto`` when the package is built."""

from gpukernel.pool import forks as forks  # before the generated modules import gRPC themselves
