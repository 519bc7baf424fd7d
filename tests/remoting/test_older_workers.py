"""Workers that know less than the program's shim: it waits for what they do not tell, and asks them nothing that they do not know."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE
from tests.remoting.answers import HANDSHAKE, HEAD, PROOF
from tests.remoting.conftest import MIB, PRELUDE, call_number, worker
from tests.remoting.reports import REPORTS
from tests.remoting.test_reports_without_room import FILL
from tests.remoting.test_worker import until, unused

DEVICE, NEXT_FUNCTION = call_number("device"), call_number("next_host_function")
OCCUPANCY = call_number("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags")
ANSWER = 8  # bytes of an answer's head: the result, and how much text follows
FEATURES = ANSWER + 316  # where attributes[0] of the device's facts is, whose bits say what a worker knows
KEEPS_BLOCKS, WANTS_RANGES, TELLS_OF_STREAMS, TELLS_OF_REFUSALS, READS_MORE_EARLY = 1, 16, 32, 64, 128
FUNCTION = ANSWER + 12  # bytes of the news of a function, after which comes what was read early
OUT_OF_MEMORY = 2


@dataclasses.dataclass
class Age:
    """The lacks of a worker: features, the calls that go with them, reads with the news of a function, news of refused ones, and smaller blocks' occupancy."""

    features: int = 0
    calls: tuple[str, ...] = ()
    reads: bool = True
    refusals: bool = True
    smaller_blocks: bool = True


NEWEST = Age()
OLDER = {
    "tells of no streams": Age(TELLS_OF_STREAMS, ("settle_copies", "report")),
    "reads nothing early": Age(reads=False),
    "reads few bytes early": Age(READS_MORE_EARLY),
    "keeps no blocks": Age(KEEPS_BLOCKS, ("keep_block", "take_block")),
    "tells of no refusals": Age(TELLS_OF_REFUSALS, refusals=False),
    "answers for one block": Age(smaller_blocks=False),
    "knows nothing of all this": Age(
        KEEPS_BLOCKS | WANTS_RANGES | TELLS_OF_STREAMS | TELLS_OF_REFUSALS | READS_MORE_EARLY,
        ("settle_copies", "report", "keep_block", "take_block", "launch_in_range"),
        reads=False,
        refusals=False,
        smaller_blocks=False,
    ),
}


class OlderWorker:
    """A worker of a certain age: one that a proxy in front of the newest one makes.

    As a worker does, it ends a connection over which a call comes that it does not know.
    """

    def __init__(self, age: Age) -> None:
        self.asked: collections.Counter[int] = collections.Counter()  # of each call
        self.early = 0  # so often something came with the news of a function
        self.features = 0  # that the newest worker has
        self.refused = 0  # functions of which the newest one has told that it has no room
        self.refused_gates = 0  # places among them at which work waits
        self._next = b""  # the question for the next function
        self._age = age
        self._unknown = {call_number(name) for name in age.calls}

    def _hear(self, frame: bytearray) -> bytes:
        call = HEAD.unpack_from(frame)[1]
        self.asked[call] += 1
        if call in self._unknown:
            raise OSError("a call that no such worker knows")
        if call == NEXT_FUNCTION:
            self._next = bytes(frame)
        return bytes(frame)

    def _answer(self, frame: bytearray) -> bytes:
        _, call, number = HEAD.unpack_from(frame)
        body = frame[HEAD.size :]
        if call == DEVICE:
            (self.features,) = struct.unpack_from("<i", body, FEATURES)
            struct.pack_into("<i", body, FEATURES, self.features & ~self._age.features)
        if call == NEXT_FUNCTION and body[ANSWER + 8 : FUNCTION] == struct.pack("<i", OUT_OF_MEMORY):
            self.refused += 1
            self.refused_gates += body[ANSWER + 7] >> 7  # the number's highest bit
            if not self._age.refusals:
                return b""
        if call == NEXT_FUNCTION and self._age.reads:
            self.early += len(body) > FUNCTION
        elif call == NEXT_FUNCTION:
            body = body[:FUNCTION]
        if call == OCCUPANCY and not self._age.smaller_blocks:
            body = body[: ANSWER + 4]
        return HEAD.pack(len(body), call, number) + body

    def _forward(
        self,
        source: socket.socket,
        target: socket.socket,
        handshake: int,
        change: Callable[[bytearray], bytes],
    ) -> None:
        kept = bytearray()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                kept += data
                if handshake:
                    target.sendall(kept[:handshake])
                    handshake, kept = max(0, handshake - len(kept)), kept[handshake:]
                while len(kept) >= HEAD.size and len(kept) >= (end := HEAD.size + HEAD.unpack_from(kept)[0]):
                    frame, kept = kept[:end], kept[end:]
                    if changed := change(frame):
                        target.sendall(changed)
                    else:  # the next one is the question's answer
                        source.sendall(self._next)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                program, _ = listener.accept()
                real = socket.create_connection(("127.0.0.1", port))
                for one in (program, real):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for ends in (
                    (program, real, PROOF, self._hear),
                    (real, program, HANDSHAKE, self._answer),
                ):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()


@contextlib.contextmanager
def of_age(age: Age, environment: dict[str, str]) -> Iterator[OlderWorker]:
    """Lead the TCP endpoint of an environment's lease file to an older worker, until the block ends."""
    path = Path(environment[LEASE_FILE_VARIABLE])
    text = path.read_text()
    (port,) = re.findall(r"tcp:127\.0\.0\.1:(\d+)", text)
    older = OlderWorker(age)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=older.serve, args=(listener, int(port)), daemon=True).start()
        path.write_text(text.replace(f"tcp:127.0.0.1:{port}", f"tcp:127.0.0.1:{listener.getsockname()[1]}"))
        yield older


STEPS = {
    "functions, an event and a copy": "pend(i); release(); come(i)",
    "an event that is polled": "late(p, i, 200_000, s); ok(d.cuEventRecord(e, s)); assert poll(e) and get() == i; add(1, p, t); ok(d.cuEventRecord(f, t)); assert poll(f) and get(p, u) == i + 1",
    "copies that are waited for": "put(i); ok(d.cuStreamSynchronize(s)); assert get() == i; put(i + 50); ok(d.cuEventRecord(e, s)); assert poll(e); add(1, p, t); assert get() == i + 51",
    "a read behind a function": "ok(d.cuMemsetD32Async(p, i, 1, s)); news.clear(); assert call(news.set) == 0; news.wait(); ok(d.cuMemcpyDtoHAsync(there, p, 4, t)); assert int(other[0]) == i",
    "blocks that are freed": "x = int(ok(d.cuMemAlloc(2048))); ok(d.cuMemsetD32(x, i, 4)); add(1, x); assert read(x) == i + 1; ok(d.cuMemFree(x)); assert int(d.cuMemcpyDtoH(h, x, 4)[0])",
    "the occupancy of all blocks": "blocks = lambda n: ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(kernel, n, 1024 * i, 0)); down = [blocks(n) for n in range(1024, 0, -32)]; ok(d.cuFuncSetAttribute(kernel, d.CUfunction_attribute(8), 40960 + i)); assert [blocks(n) for n in range(32, 1025, 32)][::-1] == down",
}
"""Each finds what it must, where its worker tells early and where not."""


def runs(age: Age, step: str) -> OlderWorker:
    return program(
        age, f"news = threading.Event()\nfor i in range(12):\n    {step}\nok(d.cuCtxSynchronize())"
    )


def program(age: Age, code: str, **options: Any) -> OlderWorker:
    async def story() -> OlderWorker:
        async with worker(**options) as one:
            environment = one.environment(kind="tcp", shared_memory=False)
            with of_age(age, environment) as older:
                done = await asyncio.to_thread(
                    subprocess.run,
                    [sys.executable, "-u", "-c", f"{PRELUDE}{REPORTS}\n{code}"],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=120,
                )
                assert (done.returncode, done.stderr) == (0, "")
                await until(lambda: unused(one))
                return older

    return asyncio.run(story())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("age", OLDER)
def test_a_program_has_what_it_waits_for_from_an_older_worker(age: str, step: str) -> None:
    older = runs(OLDER[age], STEPS[step])
    assert older.features & OLDER[age].features == OLDER[age].features
    assert not any(older.asked[call_number(name)] for name in OLDER[age].calls)


@pytest.mark.parametrize(
    ("step", "calls", "early"),
    [
        ("functions, an event and a copy", ("settle_copies", "report"), False),
        ("an event that is polled", ("report",), False),
        ("copies that are waited for", ("settle_copies",), False),
        ("a read behind a function", (), True),
        ("blocks that are freed", ("keep_block",), False),
    ],
)
def test_the_newest_worker_is_asked_what_older_ones_do_not_know(
    step: str, calls: tuple[str, ...], early: bool
) -> None:
    """Otherwise the steps would show nothing."""
    newest = runs(NEWEST, STEPS[step])
    assert all(newest.asked[call_number(name)] for name in calls)
    assert not early or newest.early


@pytest.mark.parametrize(("age", "questions"), [(NEWEST, 33), (OLDER["answers for one block"], 64)])
def test_an_older_worker_is_asked_for_each_block_s_occupancy(age: Age, questions: int) -> None:
    """The newest one is, too, where a program asks from the smallest up."""
    assert runs(age, STEPS["the occupancy of all blocks"]).asked[OCCUPANCY] == 12 * questions


@pytest.mark.parametrize("age", ["tells of no refusals", "knows nothing of all this"])
def test_who_waits_is_not_kept_by_functions_that_an_older_worker_had_no_room_for(age: str) -> None:
    """Nobody tells the program which ones they were, so those that were taken are all that it waits for."""
    code = (
        FILL
        + """
d.cuMemsetD32Async(flag, 1, 1, u); on.set()
for wait, *arguments in ((d.cuStreamSynchronize, s), (d.cuCtxSynchronize,), (d.cuMemcpyDtoHAsync, h, p, 4, s), (lambda: d.cuEventRecord(f, s) and d.cuEventSynchronize(f),)): first(wait, *arguments); assert 100 < len(ran) < N and ran == list(range(len(ran)))
n = len(ran); note(1); ok(d.cuStreamSynchronize(s)); assert len(ran) == n + 1
"""
    )
    older = program(OLDER[age], code, host_memory=MIB // 4)
    assert older.refused  # of which it heard nothing


def test_the_newest_worker_tells_of_each_function_and_gate_that_it_has_no_room_for() -> None:
    """Gates among them: otherwise waits behind those would show nothing (test_refused_functions.py)."""
    code = (
        FILL
        + """
for i in range(300): call(lambda: None); d.cuMemsetD32Async(q, i, 1, s)
d.cuMemsetD32Async(flag, 1, 1, u); on.set(); first(d.cuCtxSynchronize); assert 100 < len(ran) < N
"""
    )
    newest = program(NEWEST, code, host_memory=MIB // 4)
    assert newest.refused > 300
    assert newest.refused_gates > 40
