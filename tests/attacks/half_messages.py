"""A client of HTTP/2 that begins many calls of gRPC, and sends the messages of none of them to the end."""

from __future__ import annotations

import select
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
FRAME = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _text(text: str) -> bytes:
    """A string of HPACK, not compressed."""
    data, size = text.encode(), len(text.encode())
    if size < 127:
        return bytes((size,)) + data
    size -= 127
    encoded = bytearray((127,))
    while size >= 128:
        encoded.append(size % 128 + 128)
        size //= 128
    return bytes(encoded) + bytes((size,)) + data


def _headers(**fields: str) -> bytes:
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


class HalfMessages:
    """One connection to a pool on TCP without TLS, with `calls` calls, of which each says that its message has `size` bytes."""

    def __init__(self, address: str, method: str, token: str, calls: int, size: int) -> None:
        host, _, port = address.rpartition(":")
        self._end = socket.create_connection((host, int(port)), timeout=10)
        headers = _headers(
            **{
                ":method": "POST",
                ":scheme": "http",
                ":path": method,
                ":authority": "pool",
                "content-type": "application/grpc",
                "te": "trailers",
                "authorization": f"Bearer {token}",
            }
        )
        self._left = {2 * number + 1: size - 1 for number in range(calls)}  # never all of it
        self._begun = set[int]()
        self._window, self._first = 65_535, 65_535
        self._windows = dict[int, int]()
        self._read = b""
        self._begin = headers, struct.pack(">BI", 0, size)
        self.sent = 0
        self.over = False
        self._end.sendall(PREFACE + _frame(SETTINGS, 0, 0))

    def send_for(self, seconds: float) -> None:
        """Send what the pool takes, until it has taken nothing for `seconds` or the connection is over."""
        quiet = time.monotonic() + seconds
        try:
            while time.monotonic() < quiet and not self.over:
                self._receive(0.02)
                before = self.sent
                self._send()
                if self.sent > before:
                    quiet = time.monotonic() + seconds
        except OSError:
            self.over = True

    def close(self) -> None:
        self._end.close()

    def _send(self) -> None:
        headers, prefix = self._begin
        for stream, left in list(self._left.items()):
            if stream not in self._begun:
                if len(self._begun) >= 100 + len(self._windows):
                    break
                self._begun.add(stream)
                self._windows[stream] = self._first
                self._end.sendall(_frame(HEADERS, 4, stream, headers) + _frame(DATA, 0, stream, prefix))
                self._window -= len(prefix)
                self._windows[stream] -= len(prefix)
            size = min(left, FRAME, self._window, self._windows[stream])
            if size > 0:
                self._end.sendall(_frame(DATA, 0, stream, bytes(size)))
                self._left[stream] -= size
                self._windows[stream] -= size
                self._window -= size
                self.sent += size

    def _receive(self, seconds: float) -> None:
        while select.select([self._end], [], [], seconds)[0]:
            data = self._end.recv(2**20)
            if not data:
                self.over = True
                return
            self._read += data
            seconds = 0.0
            while len(self._read) >= 9:
                size = int.from_bytes(self._read[:3], "big")
                if len(self._read) < 9 + size:
                    break
                kind, flags = self._read[3], self._read[4]
                stream = int.from_bytes(self._read[5:9], "big") & 0x7FFFFFFF
                payload, self._read = self._read[9 : 9 + size], self._read[9 + size :]
                self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == 4:
                    for one in self._windows:
                        self._windows[one] += value - self._first
                    self._first = value
            self._end.sendall(_frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self._end.sendall(_frame(PING, 1, 0, payload))
        elif kind == WINDOW_UPDATE:
            (grown,) = struct.unpack(">I", payload)
            if stream:
                self._windows[stream] = self._windows.get(stream, 0) + grown
            else:
                self._window += grown
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self._left.pop(stream, None)
        elif kind == GOAWAY:
            self.over = True
