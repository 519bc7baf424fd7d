"""The rule by which programs must speak TLS to the workers of this server."""

from __future__ import annotations

import ipaddress
import socket

from gpukernel import native
from gpukernel.common.data_tls import DataTls

__all__ = ["TlsUnavailable", "tls_wanted"]


class TlsUnavailable(Exception):
    """An error: TLS is wanted, and this installation was built without it; the text is a sentence."""


def tls_wanted(tcp_host: str, setting: DataTls) -> bool:
    """Return whether whoever comes over TCP must speak TLS.

    The answer goes to the workers, and by the endpoints of a lease to its programs.  So nobody between the two can change it, and an
    address that cannot be looked up counts as one that others reach.

    Raises
    ------
    TlsUnavailable
        TLS is wanted and not there: an agent does not fall back to plain text by itself.
    """
    wanted = bool(tcp_host) and (
        setting is DataTls.ON or (setting is DataTls.AUTO and not _loopback(tcp_host))
    )
    if wanted:
        try:
            native.tls_library()
        except native.NativePartMissing:
            raise TlsUnavailable(
                f"Data between programs and {tcp_host} is to be encrypted, and this gpukernel was built without OpenSSL: install "
                "libssl-dev and build it again, or say --data-tls off where the network is trusted."
            ) from None
    return wanted


def _loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)
