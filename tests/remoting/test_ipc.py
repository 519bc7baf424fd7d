"""Memory and events that programs of one lease share by the driver API's IPC handles."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

from tests.remoting.conftest import Worker, worker
from tests.remoting.test_managed import MANAGED

# A program that serves lines of Python on its standard input, and answers each with one line.
_PEER = (
    MANAGED
    + r"""
import json
LAZY = 1
def handle_of(p): return ctypes.string_at(ok(d.cuIpcGetMemHandle(p)).getPtr(), 64).hex()
def filled(kind, text):
    h = kind(); ctypes.memmove(h.getPtr(), bytes.fromhex(text), 64); return h
def open_memory(text): return d.cuIpcOpenMemHandle(filled(d.CUipcMemHandle, text), LAZY)
def event_of(e): return ctypes.string_at(ok(d.cuIpcGetEventHandle(e)).getPtr(), 64).hex()
def open_event(text): return d.cuIpcOpenEventHandle(filled(d.CUipcEventHandle, text))
def read(p, n):
    a = np.zeros(n, np.uint32); ok(d.cuMemcpyDtoH(a.ctypes.data, p, 4 * n)); return a.tolist()
"""
)

_SERVE = r"""
for line in sys.stdin:
    try: print(json.dumps(eval(line) if not line.startswith("!") else exec(line[1:])), flush=True)
    except Exception as error: print(json.dumps(repr(error)), flush=True)
"""


class Peer:
    """One program on a slice, in which lines may use what `more` defines."""

    def __init__(self, one: Worker, more: str = "") -> None:
        self._one = one
        self._code = _PEER + more + _SERVE
        self._process: subprocess.Popen[str] = one.start(self._code)

    def says(self, line: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._process.communicate()[1]
        return json.loads(answer)

    def start_anew(self) -> None:
        self.kill()
        self._process = self._one.start(self._code)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def story(play: Any, leases: int = 1) -> None:
    """Call `play` with two programs: of one lease, or each of its own."""

    async def run() -> None:
        async with worker() as one, worker() as other:
            peers = [Peer(one), Peer(one if leases == 1 else other)]
            try:
                await asyncio.to_thread(play, *peers)
            finally:
                for peer in peers:
                    peer.kill()

    asyncio.run(run())


def test_what_one_program_writes_another_reads() -> None:
    def play(a: Peer, b: Peer) -> None:
        a.says("!p = int(ok(d.cuMemAlloc(4000))); ok(d.cuMemsetD32(p, 5, 1000)); add(p, 1000); wait()")
        handle = a.says("handle_of(p)")
        assert a.says("handle_of(p)") == handle
        assert len(handle) == 128
        b.says(f"!q = int(ok(open_memory('{handle}')))")
        assert b.says("read(q, 3)") == [6, 6, 6]
        b.says("!add(q, 1000); wait()")
        assert a.says("read(p, 1000) == [7] * 1000") is True
        assert b.says("[int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q)))]") == [2]

    story(play)


def test_what_another_program_writes_after_a_wait_is_what_is_read() -> None:
    """Nothing is read ahead of a program that shares its memory."""

    def play(a: Peer, b: Peer) -> None:
        a.says("!p = int(ok(d.cuMemAlloc(4000)))")
        handle = a.says("handle_of(p)")
        b.says(f"!p = int(ok(open_memory('{handle}')))")
        for reader, writer in ((a, b), (b, a)):
            for i in range(3):
                reader.says("wait()")
                writer.says(f"!ok(d.cuMemsetD32(p, {i}, 1000)); wait()")
                assert reader.says("read(p, 2)") == [i, i]

    story(play)


def test_memory_is_opened_and_closed_as_often_as_one_likes_and_freed_by_its_owner_alone() -> None:
    def play(a: Peer, b: Peer) -> None:
        a.says("!p = int(ok(d.cuMemAlloc(1 << 20)))")
        handle = a.says("handle_of(p)")
        b.says("!before = ok(d.cuMemGetInfo())[0]")
        assert b.says(f"len({{int(ok(open_memory('{handle}'))) for _ in range(3)}})") == 1
        assert b.says("before - ok(d.cuMemGetInfo())[0]") == 0  # it is charged once, to its owner
        b.says(f"!q = int(ok(open_memory('{handle}')))")
        assert b.says("[name(d.cuMemFree(q)), name(d.cuCtxSynchronize())]") == ["SUCCESS", "INVALID_VALUE"]
        assert b.says("[name(d.cuIpcCloseMemHandle(q)) for _ in range(5)]") == ["SUCCESS"] * 4 + [
            "INVALID_VALUE"
        ]
        assert a.says("[name(d.cuMemFree(p)), name(d.cuCtxSynchronize())]") == ["SUCCESS", "SUCCESS"]
        assert b.says(f"name(open_memory('{handle}'))") == "INVALID_VALUE"
        assert b.says("name(d.cuMemcpyDtoH(np.zeros(4, np.uint8).ctypes.data, q, 4))") == "INVALID_VALUE"

    story(play)


def test_a_handle_ends_with_the_program_that_gave_it() -> None:
    def play(a: Peer, b: Peer) -> None:
        a.says("!p = int(ok(d.cuMemAlloc(1 << 20)))")
        handle = a.says("handle_of(p)")
        b.says(f"!q = int(ok(open_memory('{handle}'))); all = ok(d.cuMemGetInfo())")
        a.kill()
        b.says("!\nwhile ok(d.cuMemGetInfo())[0] < all[1] - (1 << 20): time.sleep(0.01)".replace("\n", ""))
        b.says("!deadline = time.monotonic() + 20")
        while b.says(f"[name(open_memory('{handle}')), time.monotonic() < deadline]") == ["SUCCESS", True]:
            pass
        assert b.says(f"name(open_memory('{handle}'))") == "INVALID_VALUE"
        assert b.says("name(d.cuIpcCloseMemHandle(q))") == "SUCCESS"
        assert b.says("[name(d.cuMemAlloc(4096)), name(d.cuCtxSynchronize())]") == ["SUCCESS", "SUCCESS"]

    story(play)


def test_what_cannot_be_shared_is_refused() -> None:
    def play(a: Peer, b: Peer) -> None:
        a.says(
            "!p = int(ok(d.cuMemAlloc(4096))); m, _ = managed(100); s = int(ok(d.cuMemAllocAsync(4096, 0)))"
        )
        assert (
            a.says("[name(d.cuIpcGetMemHandle(x)) for x in (p + 512, m, s, 0, 4096)]")
            == ["INVALID_VALUE"] * 5
        )
        capable = "[int(ok(d.cuPointerGetAttribute(P.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, x))) for x in (p + 8, m, s)]"
        assert a.says(capable) == [1, 0, 0]
        handle = a.says("handle_of(p)")
        assert a.says(f"name(open_memory('{handle}'))") == "INVALID_CONTEXT"  # its own
        assert (
            b.says(f"name(d.cuIpcOpenMemHandle(filled(d.CUipcMemHandle, '{handle}'), 0))") == "INVALID_VALUE"
        )
        assert b.says("name(open_memory('00' * 64))") == "INVALID_VALUE"
        forged = handle[:32] + f"{int(handle[32:34], 16) ^ 1:02x}" + handle[34:]
        assert b.says(f"name(open_memory('{forged}'))") == "INVALID_VALUE"
        assert b.says("name(d.cuIpcCloseMemHandle(4096))") == "INVALID_VALUE"

    story(play)


def test_a_program_of_another_lease_opens_nothing() -> None:
    def play(a: Peer, b: Peer) -> None:
        a.says("!p = int(ok(d.cuMemAlloc(4096))); e = ok(d.cuEventCreate(2 | 4))")
        memory, event = a.says("handle_of(p)"), a.says("event_of(e)")
        assert b.says(f"name(open_memory('{memory}'))") == "INVALID_VALUE"
        assert b.says(f"name(open_event('{event}'))") == "INVALID_HANDLE"

    story(play, leases=2)


def test_one_program_waits_for_an_event_of_another() -> None:
    def play(a: Peer, b: Peer) -> None:
        assert (
            a.says(
                "ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0))"
            )
            == 1
        )
        a.says(
            "!e = ok(d.cuEventCreate(2 | 4)); s = ok(d.cuStreamCreate(1)); p = int(ok(d.cuMemAlloc(4000))); ok(d.cuMemsetD32(p, 0, 1000)); wait()"
        )
        memory, event = a.says("handle_of(p)"), a.says("event_of(e)")
        b.says(
            f"!q = int(ok(open_memory('{memory}'))); f = ok(open_event('{event}')); t = ok(d.cuStreamCreate(1))"
        )
        a.says(
            "!ok(d.cuStreamWaitValue32(s, p + 3996, 1, 1)); ok(d.cuMemsetD32Async(p, 8, 500, s)); ok(d.cuEventRecord(e, s))"
        )
        assert a.says("name(d.cuStreamQuery(s))") == "NOT_READY"  # so all of it has arrived
        assert b.says("name(d.cuEventQuery(f))") == "NOT_READY"
        b.says("!ok(d.cuStreamWaitEvent(t, f, 0)); add(q, 500, t)")
        assert b.says("[name(d.cuStreamQuery(t)), read(q, 1)]") == ["NOT_READY", [0]]
        b.says(
            "!u = ok(d.cuStreamCreate(1)); ok(d.cuMemsetD32Async(q + 3996, 1, 1, u)); ok(d.cuEventSynchronize(f)); ok(d.cuStreamSynchronize(t))"
        )
        assert a.says("read(p, 500) == [9] * 500") is True

    story(play)


def test_an_event_lives_as_long_as_somebody_has_it() -> None:
    def play(a: Peer, b: Peer) -> None:
        a.says("!e = ok(d.cuEventCreate(2 | 4)); plain = ok(d.cuEventCreate(2))")
        assert a.says("[name(d.cuEventCreate(4)), name(d.cuCtxSynchronize())][1]") == "INVALID_VALUE"
        assert a.says("name(d.cuIpcGetEventHandle(plain))") == "INVALID_VALUE"
        event = a.says("event_of(e)")
        assert a.says(f"name(open_event('{event}'))") == "INVALID_CONTEXT"
        b.says(f"!f = ok(open_event('{event}')); g = ok(open_event('{event}')); ok(d.cuEventDestroy(g))")
        a.says("!ok(d.cuEventDestroy(e)); wait()")
        assert (
            b.says("[name(d.cuEventRecord(f, 0)), name(d.cuEventSynchronize(f)), name(d.cuEventDestroy(f))]")
            == ["SUCCESS"] * 3
        )
        assert b.says(f"[name(open_event('{event}')), name(d.cuCtxSynchronize())]") == [
            "INVALID_HANDLE",
            "SUCCESS",
        ]

    story(play)


def test_programs_that_come_later_open_an_event_whose_maker_has_ended() -> None:
    """Whichever of the worker's addresses they get: one of them is likely the maker's."""

    def play(a: Peer, b: Peer) -> None:
        event = a.says("event_of(ok(d.cuEventCreate(2 | 4)))")
        b.says(f"!f = ok(open_event('{event}'))")
        for _ in range(4):
            a.start_anew()
            assert a.says(f"[name(open_event('{event}')), name(d.cuCtxSynchronize())]") == ["SUCCESS"] * 2

    story(play)
