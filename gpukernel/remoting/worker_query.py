"""Query of a slice's usage, over a connection to its worker that is no program of the slice.

The handshake is that of ``gpukernel/native/wire/protocol.h``, the query a custom call of ``native/codegen/calls.txt``; it takes some
100 µs on one host.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpukernel.remoting.lease_file import DIRECT_ENDPOINT
from gpukernel.remoting.usage import SliceUsage
from gpukernel.remoting.wire import wire_protocol

if TYPE_CHECKING:
    from gpukernel.remoting.tls import TlsSocket

__all__ = ["WorkerQuery", "WorkerSilent", "touch", "usage_of"]

_MOST = 1 << 20
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
SECONDS = 5.0


class WorkerSilent(Exception):
    """An error: the worker does not answer, or is not this lease's."""


class WorkerQuery:
    """A connection to the worker that listens at one of `endpoints`, as a context manager; no answer takes longer than `seconds`."""

    def __init__(self, endpoints: Sequence[str], secret: str, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._socket = self._open(endpoints, secret)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __enter__(self) -> WorkerQuery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def usage(self, *, begin_anew: bool = False) -> SliceUsage:
        """Return what the slice has used; with `begin_anew` the next peak counts from now on.

        Raises
        ------
        WorkerSilent
            When the worker does not answer.
        """
        result, printed, answer = self._call("usage", b"\1" if begin_anew else b"")
        if result or printed:
            raise WorkerSilent("the worker of this slice does not answer the query")
        try:
            used = wire_protocol().values("usage", answer, 8)
        except struct.error as error:
            raise WorkerSilent(f"the worker of this slice does not answer: {error}") from None
        return SliceUsage(
            limit_bytes=used["memory_limit"],
            used_bytes=used["memory_used"],
            gpu_seconds=used["gpu_seconds"],
            gpu_share=used["gpu_share"],
            programs=len(used["programs"]),
            peak_bytes=used["peak"],
            launches=used["launches"],
        )

    def ask(self, call: str, body: bytes = b"") -> tuple[int, dict[str, Any] | None]:
        """Return the result of a question and, where that is 0, the values of its answer.

        Raises
        ------
        WorkerSilent
            When the worker does not answer, as one does that does not know the question.
        """
        result, printed, answer = self._call(call, body)
        if result:
            return result, None
        try:
            return 0, wire_protocol().values(call, answer, 8 + printed)
        except struct.error as error:
            raise WorkerSilent(f"the worker of this slice does not answer: {error}") from None

    def touch(self) -> None:
        """Make a call of CUDA that changes nothing, as a program does: the slice is not idle then.

        Raises
        ------
        WorkerSilent
            When the worker does not answer.
        """
        # An attribute of the null pointer: no pointer has it, so the answer is an error, and nothing else happens.
        self._call("pointer_attribute", struct.pack("<iQ", _MEMORY_TYPE, 0))

    def _call(self, name: str, body: bytes) -> tuple[int, int, bytes]:
        """Return an answer's result, the length of the printed text in it, and the whole of it."""
        number = wire_protocol().calls[name].number
        try:
            self._socket.sendall(struct.pack("<IHH", len(body), number, 0) + body)
            length, call, _ = struct.unpack("<IHH", self._read(8))
            if call != number or not 8 <= length <= _MOST:
                raise WorkerSilent("the worker of this slice has ended the connection")
            answer = self._read(length)
            result, printed = struct.unpack_from("<II", answer)
        except (OSError, struct.error) as error:
            raise WorkerSilent(f"the worker of this slice does not answer: {error}") from None
        return result, printed, answer

    _socket: socket.socket | TlsSocket

    def _open(self, endpoints: Sequence[str], secret: str) -> socket.socket | TlsSocket:
        reason = "the lease names no worker"
        magic, version = wire_protocol().magic, wire_protocol().version
        for endpoint in endpoints:
            kind, _, place = endpoint.partition(":")
            binding = b""
            try:
                if kind == "unix":
                    self._socket = socket.socket(socket.AF_UNIX)
                    self._socket.settimeout(self._seconds)
                    self._socket.connect(place)
                else:
                    host, _, port = place.rpartition(":")
                    connected = socket.create_connection((host.strip("[]"), int(port)), self._seconds)
                    self._socket = connected
                    if kind == "tls":
                        from gpukernel.remoting.tls import TlsSocket  # OpenSSL is loaded for this alone

                        self._socket = secured = TlsSocket(connected, secret)
                        binding = secured.binding
                challenge = self._read(40)
                if struct.unpack_from("<II", challenge) != (magic, version):
                    raise WorkerSilent("it speaks another version of the protocol")
                theirs, ours = challenge[8:], os.urandom(32)
                proof = hmac.digest(secret.encode(), b"shim" + theirs + ours + binding, "sha256")
                self._socket.sendall(struct.pack("<II", magic, version) + ours + proof)
                welcome = self._read(40)
                mac = hmac.digest(secret.encode(), b"worker" + ours + theirs + binding, "sha256")
                if struct.unpack_from("<II", welcome) == (magic, 0) and hmac.compare_digest(welcome[8:], mac):
                    return self._socket
                reason = "it is not this lease's worker"
            except (OSError, ValueError, WorkerSilent) as error:
                reason = str(error)
            self._socket.close()
        raise WorkerSilent(f"the worker of this slice cannot be reached: {reason}")

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            got = self._socket.recv(size - len(data))
            if not got:
                raise OSError("it has ended the connection")
            data += got
        return data


def usage_of(
    endpoints: Sequence[str], secret: str, *, begin_anew: bool = False, patience: float = SECONDS
) -> SliceUsage:
    """Return what a device of a slice has used.

    Its worker is asked, and has `patience` seconds for each answer; in direct mode the slice's table is read.

    The table's peak is that of the slice's life, and its GPU time is the agent's, up to half a second old.

    Raises
    ------
    WorkerSilent
        When neither can be asked.
    """
    for endpoint in endpoints:
        if endpoint.startswith(DIRECT_ENDPOINT):
            # Here, since it brings what starts workers, and every kernel loads this module when it starts.
            from gpukernel.remoting.direct_table import Table, TableBroken

            try:
                with contextlib.closing(
                    Table(Path(endpoint.removeprefix(DIRECT_ENDPOINT), "table"))
                ) as table:
                    return table.usage()
            except (OSError, TableBroken) as error:
                raise WorkerSilent(f"the table of this slice cannot be read: {error}") from None
    with WorkerQuery(endpoints, secret, patience) as query:
        return query.usage(begin_anew=begin_anew)


def touch(endpoints: Sequence[str], secret: str) -> None:
    """Use a device of a slice in remote mode for a moment, so that it is not idle; raises `WorkerSilent`."""
    with WorkerQuery(endpoints, secret) as query:
        query.touch()
