"""A TCP proxy that delays each byte, as a network of that length would: half of the round trip in each direction.

``python -m benchmarks.subjects.delay PORT`` forwards to that port of loopback and prints its own.  Each line on standard input is the
round trip in seconds from then on; the line ``answers`` is replied to with the calls that were answered since the last such line, as a
JSON object of counts by name.  Bytes keep their order, and as many as the sender likes are on the way at once.
"""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable

from tests.remoting.answers import Answers

BYTES = 1 << 20
ON_THE_WAY = 64  # reads of up to `BYTES` that have not been delivered; the sender waits beyond


class Delay:
    """Forwards what it reads after a delay."""

    def __init__(self) -> None:
        self.one_way = 0.0  # seconds

    def forward(
        self, source: socket.socket, target: socket.socket, look: Callable[[bytes], None] | None = None
    ) -> None:
        """Deliver what `source` sends to `target` until it ends, from a thread of its own; show it to `look`."""
        waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        changed = threading.Condition()

        def deliver() -> None:
            while True:
                with changed:
                    changed.wait_for(lambda: waiting)
                    due, data = waiting[0]
                if (rest := due - time.monotonic()) > 0:
                    time.sleep(rest)
                with contextlib.suppress(OSError):
                    target.sendall(data) if data else target.shutdown(socket.SHUT_WR)
                with changed:
                    waiting.popleft()
                    changed.notify_all()
                if not data:
                    return

        threading.Thread(target=deliver, daemon=True).start()
        data = b" "
        while data:
            try:
                data = source.recv(BYTES)
            except OSError:
                data = b""
            if look:
                look(data)
            with changed:
                changed.wait_for(lambda: len(waiting) < ON_THE_WAY)
                waiting.append((time.monotonic() + self.one_way, data))
                changed.notify_all()


def main(port: int) -> None:
    """Serve until standard input ends."""
    delay, answers = Delay(), Answers()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for one, other, look in ((near, far, None), (far, near, answers.reader())):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=delay.forward, args=(one, other, look), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for line in sys.stdin:
        if line.strip() == "answers":
            print(json.dumps(answers.taken()), flush=True)
            continue
        delay.one_way = float(line) / 2
        print(delay.one_way, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
