"""A stranger who knows no secret opens connections to a worker's doors and keeps them; before, the lease's own program got none."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.remoting import tls
from tests.conftest import eventually
from tests.remoting.conftest import WITHOUT_SANITIZER, Worker, worker

SILENT = 140
"""More than the 128 places that strangers once shared with programs."""

NOBODY = 65534
CONNECT = """
import select, socket, sys
kind, place, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
held = []
for _ in range(count):
    if kind == "unix":
        held.append(socket.socket(socket.AF_UNIX)); held[-1].connect(place)
    else:
        host, _, port = place.rpartition(":")
        held.append(socket.create_connection((host, int(port))))
print("held", flush=True)
sys.stdin.read()
"""


def endpoint(one: Worker, kind: str) -> tuple[str, str]:
    return kind, next(e for e in one.handle.endpoints if e.startswith(f"{kind}:")).partition(":")[2]


@contextlib.contextmanager
def strangers(kind: str, place: str, count: int = SILENT) -> Iterator[None]:
    """Hold `count` silent connections, of another account where this one may take it."""
    other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with subprocess.Popen(
        [
            "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable,
            "-c",
            CONNECT,
            kind,
            place,
            str(count),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        **other,  # type: ignore[call-overload]
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_silent_connections_of_a_stranger_do_not_lock_a_lease_out(kind: str) -> None:
    async def story() -> None:
        async with worker() as one:
            one.folder.chmod(0o711)  # as the agent makes it
            with strangers(*endpoint(one, kind)):
                done = await one.run("begin(); print('served')", kind=kind)
                assert done.stdout == "served\n", done.stderr

    asyncio.run(story())


def threads_of(one: Worker) -> int:
    return len(os.listdir(f"/proc/{one.handle.pid}/task"))


def descriptors_of(one: Worker) -> int:
    return len(os.listdir(f"/proc/{one.handle.pid}/fd"))


def test_a_stranger_costs_no_thread_and_strangers_have_few_places() -> None:
    async def story() -> None:
        async with worker() as one:
            one.folder.chmod(0o711)
            threads, descriptors = threads_of(one), descriptors_of(one)
            with strangers(*endpoint(one, "unix")), strangers(*endpoint(one, "tcp")):
                await one.handle.status()  # it has seen those who came before
                assert threads_of(one) == threads
                assert descriptors_of(one) - descriptors <= 2 * 64  # of one account, and of one address
            await asyncio.to_thread(eventually, lambda: descriptors_of(one) <= descriptors)

    asyncio.run(story())


def test_a_stranger_who_comes_again_and_again_does_not_keep_a_program_out() -> None:
    """From the program's own account and address, so that nothing but their order tells them apart."""

    async def story() -> None:
        async with worker() as one:
            stop = threading.Event()

            def flood() -> None:
                host, _, port = endpoint(one, "tcp")[1].rpartition(":")
                while not stop.is_set():
                    with contextlib.suppress(OSError):
                        held = [socket.create_connection((host, int(port)), 5) for _ in range(20)]
                        for sock in held:
                            sock.close()

            flooding = asyncio.create_task(asyncio.to_thread(flood))
            try:
                for _ in range(3):
                    done = await one.run("begin(); print('served')", kind="tcp")
                    assert done.stdout == "served\n", done.stderr
            finally:
                stop.set()
                await flooding

    asyncio.run(story())


@WITHOUT_SANITIZER  # its library opens files of its own
def test_where_descriptors_run_out_the_worker_rests_and_then_serves_on() -> None:
    """Its limit is lowered while it runs, so that the next connection is one too many."""

    async def story() -> None:
        async with worker() as one:
            assert (await one.run("begin(); print('served')")).stdout == "served\n"
            limit = resource.prlimit(one.handle.pid, resource.RLIMIT_NOFILE)
            taken = await asyncio.to_thread(_descriptors_at_rest, one)
            first_free = next(number for number in itertools.count() if number not in taken)
            resource.prlimit(one.handle.pid, resource.RLIMIT_NOFILE, (first_free, limit[1]))
            host, _, port = endpoint(one, "tcp")[1].rpartition(":")
            held = [socket.create_connection((host, int(port))) for _ in range(30)]
            # Each turn of its loop that finds no descriptor is followed by a sleep.
            before, seconds = _sleeps(one), _processor_seconds(one)
            await asyncio.to_thread(eventually, lambda: _sleeps(one) - before >= 20)
            assert _processor_seconds(one) - seconds < 20 * 0.05
            resource.prlimit(one.handle.pid, resource.RLIMIT_NOFILE, limit)
            for sock in held:
                sock.close()
            done = await one.run("begin(); print('served')", kind="tcp")
            assert done.stdout == "served\n", done.stderr
            assert (one.folder / "worker.log").read_text().count("no connection can be accepted") == 1

    asyncio.run(story())


def _descriptors_at_rest(one: Worker) -> set[int]:
    """Return the worker's descriptors once no connection that has ended gives one back any more."""
    looks = [frozenset[int]()]
    while len(set(looks[-10:])) > 1 or len(looks) < 10:
        time.sleep(0.05)
        looks.append(frozenset(map(int, os.listdir(f"/proc/{one.handle.pid}/fd"))))
    return set(looks[-1])


def _sleeps(one: Worker) -> int:
    """Return how often the worker's first thread, which watches the doors, has gone to sleep."""
    status = Path(f"/proc/{one.handle.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def _processor_seconds(one: Worker) -> float:
    fields = Path(f"/proc/{one.handle.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_agents_door_holds_few_and_still_answers() -> None:
    async def story() -> None:
        async with worker() as one:
            held = []
            for _ in range(100):
                held.append(socket.socket(socket.AF_UNIX))
                held[-1].connect(str(one.folder / "control.sock"))
            assert (await one.handle.status()).pid == one.handle.pid
            assert descriptors_of(one) < 60
            for sock in held:
                sock.close()

    asyncio.run(story())


def test_who_does_not_read_answers_at_the_agents_door_does_not_stop_the_others() -> None:
    async def story() -> None:
        async with worker() as one:
            with socket.socket(socket.AF_UNIX) as deaf:
                deaf.connect(str(one.folder / "control.sock"))
                deaf.settimeout(10)
                with contextlib.suppress(OSError):  # it is shown out
                    for _ in range(2000):
                        deaf.sendall(b"status\n" * 100)
                assert (await one.handle.status()).pid == one.handle.pid
                assert (await one.run("begin(); print('served')")).stdout == "served\n"

    asyncio.run(story())


def hello_of(secret: str) -> bytes:
    """The first flight of a program that knows the secret, as somebody on the network may have recorded it."""

    class Recorder:
        sent = b""

        def sendall(self, data: bytes) -> None:
            self.sent += data

        def recv(self, most: int) -> bytes:
            return b""

    recorder = Recorder()
    with contextlib.suppress(tls.TlsFailed):
        tls.TlsSocket(recorder, secret)  # type: ignore[arg-type]
    return recorder.sent


HELLOS = 300
A_SECOND, AT_ONCE = 200, 50
"""Of the hellos that name the lease's key, what OpenSSL sees."""


@pytest.mark.parametrize("knows", [True, False], ids=["recorded", "invented"])
def test_a_flood_of_half_handshakes_costs_the_worker_few_of_them(knows: bool) -> None:
    """Hellos that name the lease's key are answered so many a second, those that do not never: OpenSSL does not see them."""

    async def story() -> None:
        async with worker(tls=True) as one:
            hello = hello_of(one.secret if knows else "0" * 64)
            assert len(hello) > 200
            host, _, port = endpoint(one, "tls")[1].rpartition(":")

            def flood() -> tuple[int, float]:
                """Return how many hellos were answered by a hello, and in how many seconds."""
                start, answered, held = time.monotonic(), 0, []
                for _ in range(HELLOS):
                    held.append(socket.create_connection((host, int(port)), 20))
                    held[-1].sendall(hello)
                for sock in held:
                    with sock, contextlib.suppress(ConnectionResetError):
                        answered += sock.recv(1) == b"\x16"
                return answered, time.monotonic() - start

            answered, seconds = await asyncio.to_thread(flood)
            assert answered <= (AT_ONCE + A_SECOND * seconds if knows else 0)
            assert (answered > 0) == knows
            done = await one.run("begin(); print('served')", kind="tls")
            assert done.stdout == "served\n", done.stderr

    asyncio.run(story())
