"""The cost of the machine's bare sockets: the baseline for everything that crosses one.

Two processes, no protocol; ``python -m benchmarks.subjects.sockets unix`` or ``tcp`` is a subject of `benchmarks.interleaving`.
Ping-pong: 64 bytes there and back, seconds per round trip.  Stream: bytes per second, in writes of 1 MiB, again and
again from and into the same buffer, which stays in the processor's cache.  Copy: the same from one buffer of 256 MiB
into another, as a copy to a device or from it has to be.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from benchmarks.interleaving import answer

PING = b"x" * 64
PINGS = 2000
BLOCK = 1 << 20
STREAM_BYTES = 256 << 20


def _pair(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair(socket.AF_UNIX)
    client = socket.socket()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for end in (server, client):  # as `wire/socket.cpp` does on loopback
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        client.connect(server.getsockname())
        peer, _ = server.accept()
    for end in (client, peer):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, peer


def _receive(sock: socket.socket, count: int, buffer: bytearray) -> bool:
    """Receive `count` bytes into `buffer` from its beginning, again and again where it is shorter; return False at the end."""
    view, at = memoryview(buffer), 0
    while count:
        got = sock.recv_into(view[at : at + min(count, BLOCK)])
        if not got:
            return False
        count, at = count - got, (at + got) % len(buffer)
    return True


def _send(sock: socket.socket, count: int, buffer: bytearray) -> None:
    view = memoryview(buffer)
    for begin in range(0, count, BLOCK):
        at = begin % len(buffer)
        sock.sendall(view[at : at + BLOCK])


def _other_side(sock: socket.socket) -> None:
    """Serve the other side; a byte says what comes."""
    small, large, word = bytearray(BLOCK), bytearray(STREAM_BYTES), bytearray(64)
    large[::4096] = b"y" * (STREAM_BYTES // 4096)  # touched: no page fault is measured
    while what := sock.recv(1):
        if what == b"p":
            for _ in range(PINGS):
                _receive(sock, len(PING), word)
                sock.sendall(PING)
        else:
            _receive(sock, STREAM_BYTES, small if what == b"s" else large)
            sock.sendall(PING)


def main(kind: str) -> None:
    here, there = _pair(kind)
    if os.fork() == 0:
        here.close()
        _other_side(there)
        os._exit(0)
    there.close()
    word = bytearray(64)
    small, large = bytearray(b"x" * BLOCK), bytearray(b"x" * STREAM_BYTES)

    def ping_pong() -> float:
        here.sendall(b"p")
        start = time.perf_counter()
        for _ in range(PINGS):
            here.sendall(PING)
            _receive(here, len(PING), word)
        return (time.perf_counter() - start) / PINGS

    def rate(what: bytes, buffer: bytearray) -> float:
        here.sendall(what)
        start = time.perf_counter()
        _send(here, STREAM_BYTES, buffer)
        _receive(here, len(PING), word)
        return STREAM_BYTES / (time.perf_counter() - start)

    answer({"ping_pong": ping_pong, "stream": lambda: rate(b"s", small), "copy": lambda: rate(b"c", large)})
    here.close()
    os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
