"""What the machine's bare sockets cost: the baseline for everything that crosses one.

Two processes, no protocol.  Ping-pong: 64 bytes there and back, seconds per round trip.  Stream: bytes per
second, in writes of 1 MiB.  The median of several rounds.
"""

from __future__ import annotations

import os
import socket
import statistics
import time

PING = b"x" * 64
BLOCK = bytearray(1 << 20)
STREAM_BYTES = 256 << 20


def _pair(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair(socket.AF_UNIX)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    for end in (client, peer):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, peer


def _receive(sock: socket.socket, count: int, buffer: bytearray) -> None:
    view = memoryview(buffer)
    while count:
        count -= sock.recv_into(view[: min(count, len(buffer))])


def measure(kind: str, rounds: int = 7, pings: int = 2000) -> dict[str, float]:
    """Seconds per 64-byte round trip and bytes per second one way over a ``unix`` or ``tcp`` socket."""
    here, there = _pair(kind)
    child = os.fork()
    if child == 0:
        here.close()
        buffer = bytearray(1 << 20)
        for _ in range(rounds):
            for _ in range(pings):
                _receive(there, len(PING), buffer)
                there.sendall(PING)
        for _ in range(rounds):
            _receive(there, STREAM_BYTES, buffer)
            there.sendall(PING)
        os._exit(0)
    there.close()
    buffer = bytearray(64)
    trips, streams = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(pings):
            here.sendall(PING)
            _receive(here, len(PING), buffer)
        trips.append((time.perf_counter() - start) / pings)
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(STREAM_BYTES // len(BLOCK)):
            here.sendall(BLOCK)
        _receive(here, len(PING), buffer)
        streams.append(STREAM_BYTES / (time.perf_counter() - start))
    here.close()
    os.waitpid(child, 0)
    return {"ping_pong": statistics.median(trips), "stream": statistics.median(streams)}
