"""Asks a slice's worker how much it is used, over a connection that is no program of the slice.

The handshake and the question are those of ``gpukernel/native/wire/protocol.h``; a question takes some 100 µs on one host.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["Questions", "Use", "WorkerSilent", "usage_of"]

_MAGIC, _VERSION = 0x4B555047, 4
_USAGE = 30  # Special::usage
_MOST = 1 << 20
SECONDS = 5.0


class WorkerSilent(Exception):
    """The worker does not answer, or is not this lease's."""


@dataclass(frozen=True)
class Use:
    """Bytes of memory, seconds of GPU time, the busy part (0 to 1) of the last second.

    `peak_bytes` is the most since somebody began anew, `programs` how many programs are connected.
    """

    limit_bytes: int
    used_bytes: int
    gpu_seconds: float
    gpu_share: float
    programs: int
    peak_bytes: int
    launches: int


class Questions:
    """A connection to the worker that listens at one of `endpoints`; a context manager.  No answer takes longer than `seconds`."""

    def __init__(self, endpoints: Sequence[str], secret: str, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._socket = self._open(endpoints, secret)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __enter__(self) -> Questions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def usage(self, *, begin_anew: bool = False) -> Use:
        """What the slice has used; with `begin_anew` the next peak counts from now on.

        Raises
        ------
        WorkerSilent
        """
        body = b"\1" if begin_anew else b""
        try:
            self._socket.sendall(struct.pack("<IHH", len(body), _USAGE, 0) + body)
            length, call, _ = struct.unpack("<IHH", self._read(8))
            if call != _USAGE or not 8 <= length <= _MOST:
                raise WorkerSilent("the worker of this slice has ended the connection")
            answer = self._read(length)
            result, printed, limit, used, seconds, share, programs = struct.unpack_from("<IIQQddI", answer)
            if result or printed:
                raise WorkerSilent("the worker of this slice does not answer questions")
            at = struct.calcsize("<IIQQddI")
            for _ in range(programs):
                (size,) = struct.unpack_from("<I", answer, at + 12)
                at += 16 + size
            peak, launches = struct.unpack_from("<QQ", answer, at)
        except (OSError, struct.error) as error:
            raise WorkerSilent(f"the worker of this slice does not answer: {error}") from None
        return Use(limit, used, seconds, share, programs, peak, launches)

    def _open(self, endpoints: Sequence[str], secret: str) -> socket.socket:
        reason = "the lease names no worker"
        for endpoint in endpoints:
            kind, _, place = endpoint.partition(":")
            try:
                if kind == "unix":
                    self._socket = socket.socket(socket.AF_UNIX)
                    self._socket.settimeout(self._seconds)
                    self._socket.connect(place)
                else:
                    host, _, port = place.rpartition(":")
                    self._socket = socket.create_connection((host.strip("[]"), int(port)), self._seconds)
                challenge = self._read(40)
                if struct.unpack_from("<II", challenge) != (_MAGIC, _VERSION):
                    raise WorkerSilent("it speaks another version of the protocol")
                theirs, ours = challenge[8:], os.urandom(32)
                proof = hmac.digest(secret.encode(), b"shim" + theirs + ours, "sha256")
                self._socket.sendall(struct.pack("<II", _MAGIC, _VERSION) + ours + proof)
                welcome = self._read(40)
                mac = hmac.digest(secret.encode(), b"worker" + ours + theirs, "sha256")
                if struct.unpack_from("<II", welcome) == (_MAGIC, 0) and hmac.compare_digest(
                    welcome[8:], mac
                ):
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
) -> Use:
    """What a device of a slice has used: asked of its worker, which has `patience` seconds for each answer, or in direct mode
    read from the slice's table.

    The table's peak is that of the slice's life, and its GPU time is the agent's, up to half a second old.

    Raises
    ------
    WorkerSilent
    """
    for endpoint in endpoints:
        if endpoint.startswith("direct:"):
            from gpukernel.remoting.direct import Table, TableBroken

            try:
                with contextlib.closing(Table(Path(endpoint.removeprefix("direct:"), "table"))) as table:
                    return table.use()
            except (OSError, TableBroken) as error:
                raise WorkerSilent(f"the table of this slice cannot be read: {error}") from None
    with Questions(endpoints, secret, patience) as questions:
        return questions.usage(begin_anew=begin_anew)
