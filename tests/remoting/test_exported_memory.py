"""Physical memory that programs of one lease share by file descriptors: what they see, and the lease's books."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, worker
from tests.remoting.test_ipc import Peer
from tests.remoting.virtual_memory import MEMORY

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

# Descriptors travel between the programs as programs send them: by a socket of their own.
_SHARING = (
    MEMORY
    + r"""
import socket
T = d.CUmemAllocationHandleType; FD = T.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
POSSIBLE = d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
def create_shared(size=U):
    p = prop(); p.requestedHandleTypes = FD; return ok(d.cuMemCreate(size, p, 0))
def words(p, n):
    a = np.zeros(n, np.uint32); ok(d.cuMemcpyDtoH(a.ctypes.data, p, 4 * n)); return a.tolist()
def export(h): return int(ok(d.cuMemExportToShareableHandle(h, FD, 0)))
def imported(fd): return d.cuMemImportFromShareableHandle(fd, FD)
def listen(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind(path); s.settimeout(20); return s
def send(fd, path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s: s.connect(path); socket.send_fds(s, [b"x"], [fd])
def receive(s): return socket.recv_fds(s, 1, 1)[1][0]
def drop(p, h, size=U): ok(d.cuMemUnmap(p, size)); ok(d.cuMemRelease(h))
"""
)

BAD = "INVALID_VALUE"


def story(play: Callable[[Peer, Peer, str], None], leases: int = 1, memory_mib: int = 17) -> None:
    """Call `play` with two programs, of one lease or each of its own, and a path for a socket of theirs."""

    async def run() -> None:
        async with worker(memory_mib=memory_mib) as one, worker(memory_mib=memory_mib) as other:
            peers = [Peer(one, _SHARING), Peer(one if leases == 1 else other, _SHARING)]
            try:
                await asyncio.to_thread(play, *peers, str(one.folder / "socket"))
                for peer in peers:
                    peer.kill()
                async with asyncio.timeout(30):  # the worker notices in its own time that they are gone
                    while (await one.handle.status()).memory_used_bytes:
                        await asyncio.sleep(0.02)
            finally:
                for peer in peers:
                    peer.kill()

    asyncio.run(run())


def do(peer: Peer, line: str) -> None:
    assert peer.says("!" + line) is None


def hand_over(a: Peer, b: Peer, path: str, size: str = "U") -> None:
    """Let `a` make memory `h` at `p` and `b` map the same one, `g`, at `q`; the descriptor is closed everywhere."""
    do(a, f"h = create_shared({size}); p = reserve({size}); mapped(p, {size}, h)")
    do(b, f"s = listen('{path}')")
    do(a, f"fd = export(h); send(fd, '{path}'); os.close(fd)")
    do(b, f"fd = receive(s); g = ok(imported(fd)); os.close(fd); q = reserve({size}); mapped(q, {size}, g)")


def test_what_one_program_writes_another_reads_and_its_kernels_change() -> None:
    def play(a: Peer, b: Peer, path: str) -> None:
        hand_over(a, b, path)
        assert a.says("ok(d.cuDeviceGetAttribute(POSSIBLE, 0))") == 1
        do(a, "ok(d.cuMemsetD32(p, 5, U // 4)); wait()")
        assert b.says("words(q + U - 8, 2)") == [5, 5]
        do(b, "add(q, U // 4); wait()")
        assert a.says("set(words(p, U // 4)) == {6}") is True
        for i in range(3):  # nothing is read ahead of what the other writes after a wait
            a.says("wait()")
            do(b, f"ok(d.cuMemsetD32(q, {i}, 10)); wait()")
            assert a.says("words(p, 1)") == [i]

    story(play)


def test_shared_memory_is_charged_once_while_any_program_has_it() -> None:
    def play(a: Peer, b: Peer, path: str) -> None:
        do(a, "before = free()")
        hand_over(a, b, path, "3 * U")
        do(a, "ok(d.cuMemsetD32(p, 7, 10)); wait()")
        assert [a.says("(before - free()) // U"), b.says("free() // U")] == [3, 5]
        do(a, "drop(p, h, 3 * U)")
        assert [a.says("(before - free()) // U"), b.says("words(q, 1)")] == [3, [7]]
        assert a.says(
            "[name(d.cuMemCreate(6 * U, prop(), 0)), int(ok(d.cuMemCreate(5 * U, prop(), 0))) > 0]"
        ) == [
            "OUT_OF_MEMORY",
            True,
        ]
        do(b, "drop(q, g, 3 * U)")
        assert a.says("(before - free()) // U") == 5

    story(play)


def test_memory_outlives_the_program_that_made_it() -> None:
    def play(a: Peer, b: Peer, path: str) -> None:
        hand_over(a, b, path, "3 * U")
        do(a, "ok(d.cuMemsetD32(p, 9, 10)); create(2 * U); wait()")
        assert b.says("free() // U") == 3
        a.kill()
        do(b, "deadline = time.monotonic() + 20")
        while b.says("[free() // U, time.monotonic() < deadline]") == [3, True]:
            pass
        assert b.says("[words(q, 10) == [9] * 10, free() // U]") == [True, 5]
        do(b, "drop(q, g, 3 * U)")
        assert b.says("free() // U") == 8

    story(play)


def test_an_open_descriptor_keeps_the_memory() -> None:
    def play(a: Peer, b: Peer, path: str) -> None:
        do(a, "h = create_shared(); p = reserve(); mapped(p, U, h); ok(d.cuMemsetD32(p, 3, 10)); wait()")
        do(b, f"s = listen('{path}')")
        do(a, f"fd = export(h); send(fd, '{path}'); os.close(fd); drop(p, h)")
        assert a.says("free() // U") == 7
        do(b, "fd = receive(s); g = ok(imported(fd)); q = reserve(); mapped(q, U, g)")
        assert b.says("words(q, 1)") == [3]
        do(b, "drop(q, g); g = ok(imported(fd)); os.close(fd); mapped(q, U, g)")  # and once more
        assert b.says("words(q, 1)") == [3]
        do(b, "drop(q, g)")
        do(a, "ok(d.cuMemRelease(create()))")  # sees that nobody has it open
        assert b.says("free() // U") == 8

    story(play)


def test_a_program_imports_its_own_memory_and_asks_what_it_is() -> None:
    def play(a: Peer, b: Peer, path: str) -> None:
        do(a, "h = create_shared(); fds = [export(h) for _ in range(3)]; g = [ok(imported(x)) for x in fds]")
        assert a.says("[int(x) == int(h) for x in g] + [free() // U]") == [True, True, True, 7]
        kinds = "[ok(d.cuMemGetAllocationPropertiesFromHandle(x)).requestedHandleTypes.name for x in (h, create())]"
        assert a.says(kinds) == [
            "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
            "CU_MEM_HANDLE_TYPE_NONE",
        ]
        do(a, "[os.close(x) for x in fds]; [ok(d.cuMemRelease(x)) for x in g]")
        assert a.says("[name(d.cuMemRelease(h)), free() // U, name(d.cuMemRelease(h))]") == [
            "SUCCESS",
            7,
            BAD,
        ]

    story(play)


def test_what_is_no_exported_memory_is_refused() -> None:
    def play(a: Peer, b: Peer, path: str) -> None:
        do(a, "h = create_shared()")
        assert a.says("name(d.cuMemExportToShareableHandle(create(), FD, 0))") == BAD
        assert (
            a.says("[name(d.cuMemExportToShareableHandle(*x)) for x in ((h, FD, 1), (12345, FD, 0))]")
            == [BAD] * 2
        )
        fabric = "name(d.cuMemExportToShareableHandle(h, T.CU_MEM_HANDLE_TYPE_FABRIC, 0))"
        assert a.says(fabric) == "NOT_SUPPORTED"
        do(
            a,
            "one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); two.send(b'gpukernel-physm' + bytes(17)); file = open('/dev/null')",
        )
        assert (
            a.says("[name(imported(x)) for x in (one.fileno(), two.fileno(), file.fileno(), 999, 2**32 - 1)]")
            == [BAD] * 5
        )
        do(a, "fd = export(h); ok(d.cuDevicePrimaryCtxReset(0)); begin()")
        assert a.says("[name(imported(fd)), free() // U]") == [BAD, 8]

    story(play)


@pytest.mark.parametrize("leases", [1, 2])
def test_only_programs_of_the_lease_open_what_is_exported(leases: int) -> None:
    def play(a: Peer, b: Peer, path: str) -> None:
        do(b, f"s = listen('{path}')")
        do(a, f"h = create_shared(); fd = export(h); send(fd, '{path}')")
        assert b.says("[name(imported(receive(s))), free() // U]") == (
            ["SUCCESS", 7] if leases == 1 else [BAD, 8]
        )

    story(play, leases)
