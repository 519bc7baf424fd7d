"""The way from a client or an agent to a pool: address, token, certificate, and the authority that is believed.

`connection` holds a `Connection` and opens its channel, `lookup` finds the one to use, `files` reads and writes connection files,
`tls` has Python's TLS with the same trust as gRPC's, and `diagnosis` finds out why TLS does not work.  Everybody may import what
is named here.

Guarantees
----------
* Where an address begins with ``tls://``, or an authority is named, nothing is sent before the other end has shown a certificate
  for that address; there is no way back to plain text.
* What keeps TLS from working is one sentence that names it.
"""

from gpukernel.common.connection.connection import Connection, keepalive
from gpukernel.common.connection.diagnosis import certificate_days_left, days_left, tls_trouble
from gpukernel.common.connection.files import read_connection_file, write_connection
from gpukernel.common.connection.lookup import connection_to
from gpukernel.common.connection.tls import expiry

__all__ = [
    "Connection",
    "certificate_days_left",
    "connection_to",
    "days_left",
    "expiry",
    "keepalive",
    "read_connection_file",
    "tls_trouble",
    "write_connection",
]
