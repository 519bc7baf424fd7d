"""TLS of the data path for Python: a socket on which records are sealed and opened by ``libgpukernel-tls.so``.

The keys come from the lease's secret, so no certificate is involved; Python's own `ssl` module knows such keys from 3.13 on only.
``gpukernel/native/tls/tls.h`` specifies the library's functions, ``native/wire/tls.cpp`` is the same for C++.  This module is loaded
where an endpoint asks for TLS, and not before.
"""

from __future__ import annotations

import ctypes
import functools
import hmac
import socket

from gpukernel import native

__all__ = ["TlsFailed", "TlsSocket", "identity_of", "provider"]

_KEY, _BINDING, _RECORD, _MORE, _FLIGHT = 32, 32, 16384, 64, 4096
_MOST_RECORD = 5 + _RECORD + 1 + 16 + 256
_INTERFACE = 1


class TlsFailed(OSError):
    """An error: TLS is not there, or what came was no answer of who knows the secret; the text is a sentence."""


def _derive(secret: str, purpose: bytes) -> bytes:
    """Return HKDF-SHA256 (RFC 5869) of the secret for one purpose."""
    key = hmac.digest(b"gpukernel data path", secret.encode(), "sha256")
    return hmac.digest(key, purpose + b"\1", "sha256")


def identity_of(secret: str) -> str:
    """Return the name of the secret's key, as a hello carries it."""
    return _derive(secret, b"tls 1.3 identity")[:16].hex()


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(native.tls_library()))
    except (OSError, native.NativePartMissing) as error:
        raise TlsFailed(f"TLS is not there: {error}") from None
    if library.gpukernel_tls_interface() != _INTERFACE:
        raise TlsFailed("libgpukernel-tls.so is of another version of gpukernel; install gpukernel again")
    library.gpukernel_tls_new.restype = ctypes.c_void_p
    library.gpukernel_tls_binding.restype = ctypes.c_void_p
    library.gpukernel_tls_error.restype = ctypes.c_char_p
    library.gpukernel_tls_provider.restype = ctypes.c_char_p
    for function in (library.gpukernel_tls_rest, library.gpukernel_tls_seal):
        function.restype = ctypes.c_size_t
    library.gpukernel_tls_open.restype = ctypes.c_long
    return library


def provider() -> str:
    """Return the name and version of the OpenSSL that the library has inside; raises `TlsFailed` where there is none."""
    return str(_library().gpukernel_tls_provider().decode())


class TlsSocket:
    """A connected socket with TLS on it, as the program's end; its `binding` is known to the two ends alone.

    Raises
    ------
    TlsFailed
        Where the other end does not know the secret, or does not speak TLS.
    """

    def __init__(self, connected: socket.socket, secret: str) -> None:
        self._socket = connected
        self._tls = _library()
        one = self._tls.gpukernel_tls_new(
            0, _derive(secret, b"tls 1.3 psk"), ctypes.c_char_p(identity_of(secret).encode())
        )
        if not one:
            raise TlsFailed("OpenSSL could not be used here")
        self._one = ctypes.c_void_p(one)
        self._received, self._plain = b"", b""
        self._shake_hands()
        self.binding = ctypes.string_at(self._tls.gpukernel_tls_binding(self._one), _BINDING)

    def __del__(self) -> None:
        if one := self.__dict__.pop("_one", None):
            self._tls.gpukernel_tls_free(one)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def sendall(self, data: bytes) -> None:
        """Send `data` in records."""
        for at in range(0, len(data), _RECORD):
            piece = data[at : at + _RECORD]
            out = ctypes.create_string_buffer(len(piece) + _MORE)
            size = self._tls.gpukernel_tls_seal(
                self._one, piece, ctypes.c_size_t(len(piece)), None, ctypes.c_size_t(0), out
            )
            self._socket.sendall(out.raw[:size])

    def recv(self, most: int) -> bytes:
        """Return up to `most` bytes of data, at least one; none at the end."""
        while not self._plain:
            while len(self._received) < 5 or len(self._received) < self._record():
                if not (more := self._socket.recv(1 << 16)):
                    return b""
                self._received += more
            record = self._received[: self._record()]
            self._received = self._received[len(record) :]
            out = ctypes.create_string_buffer(len(record))
            size = (
                self._tls.gpukernel_tls_open(self._one, record, ctypes.c_size_t(len(record)), out)
                if len(record) <= _MOST_RECORD
                else -1
            )
            if size < 0:
                raise TlsFailed(self._error())
            self._plain = out.raw[:size]
        data, self._plain = self._plain[:most], self._plain[most:]
        return data

    def _record(self) -> int:
        return 5 + int.from_bytes(self._received[3:5], "big")

    def _error(self) -> str:
        return (self._tls.gpukernel_tls_error(self._one) or b"TLS failed").decode(errors="replace")

    def _shake_hands(self) -> None:
        out, size = ctypes.create_string_buffer(_FLIGHT), ctypes.c_size_t()
        data = b""
        while True:
            state = self._tls.gpukernel_tls_handshake(
                self._one, data, ctypes.c_size_t(len(data)), out, ctypes.byref(size)
            )
            self._socket.sendall(out.raw[: size.value])
            if state < 0:
                raise TlsFailed(self._error())
            if state == 1:
                rest = ctypes.create_string_buffer(1 << 14)
                count = self._tls.gpukernel_tls_rest(self._one, rest, ctypes.c_size_t(1 << 14))
                self._received = rest.raw[:count]
                return
            if not (data := self._socket.recv(_FLIGHT)):
                raise TlsFailed("it ended the connection before TLS was agreed upon")
