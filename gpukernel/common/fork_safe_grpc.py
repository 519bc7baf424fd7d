"""gRPC, imported with its support for forks and its logging disabled.

With its support for forks, which is on unless the environment says otherwise, a child that closes inherited descriptors before it
executes something else may die of gRPC's own threads: JupyterLab's terminals, for one, are forked that way from the
server that holds the leases.  Nobody here uses gRPC in such a child.

What it would log of each failed handshake reaches people as a sentence (`gpukernel.common.connection`); on the pool's side, any
stranger could fill the log.  ``GRPC_VERBOSITY=INFO`` brings that back.
"""

import os

_CHOSEN = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE")}
_before = {name: os.environ.get(name) for name in _CHOSEN}
os.environ.update(_CHOSEN)  # read when it is imported, and not again
import grpc  # noqa: E402
import grpc.aio  # noqa: E402

for _name, _value in _before.items():
    if _value is None:
        del os.environ[_name]
    else:
        os.environ[_name] = _value

__all__ = ["grpc"]
