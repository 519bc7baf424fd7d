"""A wiretap: a TCP proxy that records what passes between a program and its worker, and alters it where it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

__all__ = ["Alter", "Wiretap"]

Alter = Callable[[str, int, bytes], bytes]
"""Gets the direction (``up`` to the worker, ``down`` to the program), the position of the piece in it, and the piece; returns what goes on."""


def _as_it_is(direction: str, at: int, data: bytes) -> bytes:
    return data


class Wiretap:
    """Listens on loopback and passes each connection on to `host`:`port`, as a context manager.

    `recorded` has the bytes of all connections by direction, `connections` those of each.
    """

    def __init__(self, host: str, port: int, alter: Alter = _as_it_is) -> None:
        self._to, self._alter = (host, port), alter
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.connections: list[dict[str, bytearray]] = []

    @property
    def recorded(self) -> dict[str, bytes]:
        with self._lock:
            return {way: b"".join(one[way] for one in self.connections) for way in ("up", "down")}

    def __enter__(self) -> Wiretap:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                program, _ = self._listener.accept()
                worker = socket.create_connection(self._to)
                record = {"up": bytearray(), "down": bytearray()}
                with self._lock:
                    self.connections.append(record)
                    self._sockets += [program, worker]
                for direction, ends in (("up", (program, worker)), ("down", (worker, program))):
                    threading.Thread(target=self._carry, args=(direction, *ends, record), daemon=True).start()

    def _carry(
        self, direction: str, here: socket.socket, there: socket.socket, record: dict[str, bytearray]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                with self._lock:
                    at = len(record[direction])
                    record[direction] += data
                there.sendall(self._alter(direction, at, data))
        with contextlib.suppress(OSError):
            there.shutdown(socket.SHUT_WR)
