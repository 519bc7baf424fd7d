"""A TCP proxy that counts how often a program waits for an answer, and names the calls that are answered."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE
from tests.remoting.answers import PROOF, Answers
from tests.remoting.conftest import PRELUDE, Worker, worker


class Counter:
    """Round trips so far: the program has said something after it had an answer, or at the beginning.

    What is said is on its way for `one_way` seconds.
    """

    def __init__(self, one_way: float = 0) -> None:
        self.trips, self.one_way = 0, one_way
        self.answers, self.requests = Answers(), Answers(PROOF)
        self._lock = threading.Lock()

    def forward(
        self, source: socket.socket, target: socket.socket, said: list[bool], by_program: bool
    ) -> None:
        """Deliver what `source` sends until it ends; `said[0]` is whether the program spoke last."""
        look = (self.requests if by_program else self.answers).reader()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                look(data)
                with self._lock:
                    if by_program and not said[0]:
                        self.trips += 1
                    said[0] = by_program
                if self.one_way:
                    time.sleep(self.one_way)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def counted(environment: dict[str, str], one_way: float = 0) -> Iterator[Counter]:
    """Lead the TCP endpoint of an environment's lease file through a proxy that is `one_way` seconds away, until the block ends."""
    path = Path(environment[LEASE_FILE_VARIABLE])
    text = path.read_text()
    (port,) = re.findall(r"tcp:127\.0\.0\.1:(\d+)", text)
    counter = Counter(one_way)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    program, _ = listener.accept()
                    worker = socket.create_connection(("127.0.0.1", int(port)))
                    for one in (program, worker):
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    said = [False]
                    for ends in ((program, worker, said, True), (worker, program, said, False)):
                        threading.Thread(target=counter.forward, args=ends, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        path.write_text(text.replace(f"tcp:127.0.0.1:{port}", f"tcp:127.0.0.1:{listener.getsockname()[1]}"))
        yield counter


async def conversation(one: Worker, code: str, argument: int = 0, one_way: float = 0) -> Counter:
    """Run a program by a proxy, and return what that has counted; fails where the program does."""
    environment = one.environment(kind="tcp", shared_memory=False)
    with counted(environment, one_way) as counter:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-u", "-c", PRELUDE + code, str(argument)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return counter


def each_step(
    what: Callable[[Counter], int],
    begin: str,
    step: str,
    end: str = "",
    few: int = 10,
    many: int = 30,
    one_way: float = 0,
) -> float:
    """Return how often `what` happens in a step: in `many` less in `few`, so that the program's start and end do not count."""

    async def story() -> float:
        async with worker() as one:
            code = f"{begin}\nN = int(sys.argv[1])\nfor i in range(N):\n    {step}\n{end}"
            first, second = [what(await conversation(one, code, count, one_way)) for count in (few, many)]
        return (second - first) / (many - few)

    return asyncio.run(story())
