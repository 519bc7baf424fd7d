"""gRPC, imported so that it leaves children alone that are forked from this process.

With its support for forks, which is on unless the environment says otherwise, a child that closes inherited descriptors before it
executes something else may die of gRPC's own threads: JupyterLab's terminals, for one, are forked that way from the
server that holds the leases.  Nobody here uses gRPC in such a child.
"""

import os

_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_before = os.environ.get(_SUPPORT)
os.environ[_SUPPORT] = "0"  # read when it is imported, and not again
import grpc  # noqa: E402
import grpc.aio  # noqa: E402

if _before is None:
    del os.environ[_SUPPORT]
else:
    os.environ[_SUPPORT] = _before

__all__ = ["grpc"]
