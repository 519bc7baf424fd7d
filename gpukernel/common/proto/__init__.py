"""The control path's messages and stubs, generated from the ``.proto`` files when the package is built."""

from gpukernel.common import (
    fork_safe_grpc as fork_safe_grpc,  # before the generated modules import gRPC themselves
)
