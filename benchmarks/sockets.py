"""What the machine's bare sockets cost: the baseline for everything that crosses one.

Two processes, no protocol.  Ping-pong: 64 bytes there and back, seconds per round trip.  Stream: bytes per
second, in writes of 1 MiB, again and again from and into the same buffer, which stays in the processor's cache.
Copy: the same from one buffer of 256 MiB into another, as a copy to a device or from it has to be.  The median of several rounds.
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
    """`count` bytes, into `buffer` from its beginning, again and again where it is shorter."""
    view, at = memoryview(buffer), 0
    while count:
        got = sock.recv_into(view[at : at + min(count, len(BLOCK))])
        count, at = count - got, (at + got) % len(buffer)


def _send(sock: socket.socket, count: int, buffer: bytearray) -> None:
    view = memoryview(buffer)
    for begin in range(0, count, len(BLOCK)):
        at = begin % len(buffer)
        sock.sendall(view[at : at + len(BLOCK)])


def measure(kind: str, rounds: int = 7, pings: int = 2000) -> dict[str, float]:
    """Seconds per 64-byte round trip, and bytes per second of a stream and of a copy, over a ``unix`` or ``tcp`` socket."""
    here, there = _pair(kind)
    child = os.fork()
    if child == 0:
        here.close()
        for _ in range(rounds * pings):
            _receive(there, len(PING), bytearray(64))
            there.sendall(PING)
        for size in (len(BLOCK), STREAM_BYTES):
            buffer = bytearray(b"y" * size)
            for _ in range(rounds):
                _receive(there, STREAM_BYTES, buffer)
                there.sendall(PING)
        os._exit(0)
    there.close()
    answer = bytearray(64)
    trips = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(pings):
            here.sendall(PING)
            _receive(here, len(PING), answer)
        trips.append((time.perf_counter() - start) / pings)
    speeds = []
    for size in (len(BLOCK), STREAM_BYTES):
        buffer, rates = bytearray(b"x" * size), []
        for _ in range(rounds):
            start = time.perf_counter()
            _send(here, STREAM_BYTES, buffer)
            _receive(here, len(PING), answer)
            rates.append(STREAM_BYTES / (time.perf_counter() - start))
        speeds.append(statistics.median(rates))
    here.close()
    os.waitpid(child, 0)
    return {"ping_pong": statistics.median(trips), "stream": speeds[0], "copy": speeds[1]}
