"""Connections to a worker's port: only those who know the secret come in, and nobody breaks it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import platform
import socket
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import eventually
from tests.remoting.conftest import PRELUDE, Worker, call_number, worker
from tests.remoting.test_worker import until, unused

MAGIC, VERSION = 0x4B555047, 4  # by themselves, so that a build that changed them is noticed here
WELCOME, WRONG_SECRET, WRONG_VERSION = 0, 1, 3
GOODBYE = 1
USAGE, LOAD_IMAGE, LOAD_LIBRARY, COPY_TO_DEVICE, LINK_ADD = map(
    call_number, ("usage", "load_image", "load_library", "copy_to_device", "link_add")
)
FIRST_FUNCTION = 64  # cuMemAlloc; the others follow as in codegen/calls.txt
INVALID_VALUE, OUT_OF_MEMORY, INVALID_IMAGE = 1, 2, 200
MOST_GROWTH_MIB = 48 * int(
    os.environ.get("GPUKERNEL_TEST_MEMORY_FACTOR", "1")
)  # threads and buffers of sixty guests, and nothing of the 30 GiB that they promise


def knock(one: Worker) -> socket.socket:
    host, port = next(e for e in one.handle.endpoints if e.startswith("tcp:")).split(":")[1:]
    sock = socket.create_connection((host, int(port)), timeout=20)
    return sock


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


def shake_hands(sock: socket.socket, secret: str, version: int = VERSION) -> int:
    """The handshake as protocol.h specifies it, spoken independently of the shim."""
    challenge = read(sock, 40)
    assert struct.unpack("<II", challenge[:8]) == (MAGIC, VERSION)
    ours = os.urandom(32)
    proof = hmac.new(secret.encode(), b"shim" + challenge[8:] + ours, hashlib.sha256).digest()
    sock.sendall(struct.pack("<II", MAGIC, version) + ours + proof)
    welcome = read(sock, 40)
    magic, status = struct.unpack("<II", welcome[:8])
    assert magic == MAGIC
    if status == WELCOME:
        theirs = hmac.new(secret.encode(), b"worker" + ours + challenge[8:], hashlib.sha256).digest()
        assert welcome[8:] == theirs
    return int(status)


def enter(one: Worker, secret: str, version: int = VERSION) -> tuple[int, socket.socket]:
    sock = knock(one)
    return shake_hands(sock, secret, version), sock


def rest(sock: socket.socket) -> bytes:
    """All that comes until the end, or until the other side resets what it has not read."""
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 20):
            data += piece
    return bytes(data)


async def still_serves(one: Worker) -> None:
    done = await one.run("begin(); a = ok(d.cuMemAlloc(1 << 20)); print('served')")
    assert done.stdout == "served\n", done.stderr


def test_the_handshake_is_as_specified() -> None:
    async def story() -> None:
        async with worker() as one:
            assert enter(one, one.secret)[0] == WELCOME
            assert enter(one, "0" * 64)[0] == WRONG_SECRET
            assert enter(one, "")[0] == WRONG_SECRET
            assert enter(one, one.secret, version=VERSION + 1)[0] == WRONG_VERSION

    asyncio.run(story())


@pytest.mark.parametrize("secret", ["0" * 64, ""])
def test_a_program_with_a_wrong_or_missing_secret_makes_no_cuda_call(secret: str) -> None:
    async def story() -> None:
        async with worker() as one:
            done = await one.run("print(d.cuInit(0)[0].name, d.cuInit(0)[0].name)", secret=secret)
            assert done.stdout == "CUDA_ERROR_NO_DEVICE CUDA_ERROR_NO_DEVICE\n"
            assert done.stderr.count("refused the lease's secret") == 1
            assert (await one.handle.status()).cuda_calls == 0

    asyncio.run(story())


def test_a_stranger_who_sends_a_byte_now_and_then_is_shown_out() -> None:
    async def story() -> None:
        async with worker() as one, asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(sock=knock(one))
            await reader.readexactly(40)
            shown_out = asyncio.ensure_future(reader.read())
            while not shown_out.done():  # each byte comes well within the time that one read may take
                writer.write(b"x")
                await asyncio.wait([shown_out], timeout=0.5)
            writer.close()
            await still_serves(one)

    asyncio.run(story())


def test_a_recorded_handshake_is_worth_nothing_the_second_time() -> None:
    async def story() -> None:
        async with worker() as one:
            sock = knock(one)
            challenge, ours = read(sock, 40), os.urandom(32)
            mac = hmac.new(one.secret.encode(), b"shim" + challenge[8:] + ours, hashlib.sha256).digest()
            recorded = struct.pack("<II", MAGIC, VERSION) + ours + mac
            sock.sendall(recorded)
            assert struct.unpack("<I", read(sock, 40)[4:8]) == (WELCOME,)
            again = knock(one)
            read(again, 40)
            again.sendall(recorded)
            assert struct.unpack("<I", read(again, 40)[4:8]) == (WRONG_SECRET,)

    asyncio.run(story())


def test_random_bytes_never_break_a_worker() -> None:
    async def story() -> None:
        async with worker() as one:
            before = one.handle.pid

            @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
            @given(st.binary(max_size=400))
            def strangers(data: bytes) -> None:
                with knock(one) as sock:
                    sock.sendall(data)

            @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
            @given(
                st.lists(
                    st.tuples(
                        st.integers(0, 160), st.binary(max_size=120), st.none() | st.integers(0, 2**32 - 1)
                    ),
                    max_size=6,
                )
            )
            def guests(frames: list[tuple[int, bytes, int | None]]) -> None:
                status, sock = enter(one, one.secret)
                assert status == WELCOME
                with sock:
                    for (
                        call,
                        body,
                        lie,
                    ) in frames:  # well-formed frames of nonsense, and lies about their length
                        length = len(body) if lie is None else lie
                        try:
                            sock.sendall(struct.pack("<IHH", length, call, 0) + body)
                        except OSError:
                            break

            strangers()
            guests()
            assert not one.handle.ended
            assert (await one.handle.status()).pid == before
            await still_serves(one)

    asyncio.run(story())


def rss_mib(one: Worker) -> int:
    status = Path(f"/proc/{one.handle.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) >> 10


def test_lies_about_sizes_cost_the_worker_no_memory_and_others_are_served_meanwhile() -> None:
    """Sixty guests each promise half a GiB, send a little of it and stay."""

    async def story() -> None:
        async with worker() as one:
            await still_serves(one)
            before = rss_mib(one)
            liars = []
            for call in (LOAD_IMAGE, LOAD_LIBRARY, LINK_ADD) * 20:
                status, sock = enter(one, one.secret)
                assert status == WELCOME
                sock.sendall(struct.pack("<IHH", 512 << 20, call, 0) + b"x" * 5000)
                liars.append(sock)
            await still_serves(one)
            await until(lambda: unused(one))  # by programs: none has said a whole sentence
            grown = rss_mib(one) - before
            assert grown < MOST_GROWTH_MIB, f"{grown} MiB"
            for sock in liars:
                sock.close()
            await still_serves(one)
            assert not one.handle.ended

    asyncio.run(story())


def test_a_size_beyond_the_protocol_ends_its_teller_only() -> None:
    async def story() -> None:
        async with worker() as one:
            for call, length in (
                (LOAD_IMAGE, (512 << 20) + 1),
                (COPY_TO_DEVICE, 2 << 20),
                (FIRST_FUNCTION, 2**32 - 1),
            ):
                _, sock = enter(one, one.secret)
                sock.sendall(struct.pack("<IHH", length, call, 0))
                assert read(sock, 1) == b""  # the connection has ended
            await still_serves(one)

    asyncio.run(story())


ELF = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
LIARS = {
    "three bytes": b"abc",
    "a wrapper, with a pointer to anywhere": struct.pack("<IIQQ", 0x466243B1, 1, 0x4141414141414141, 0),
    "the beginning of a wrapper": struct.pack("<II", 0x466243B1, 1),
    "a fat binary of fifteen bytes": struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**40)[:15],
    "a fat binary whose entry is longer than it": struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64)
    + struct.pack("<HHIQ", 2, 0x101, 64, 2**40).ljust(64, b"\0"),
    "a cubin's first bytes": ELF,
    "a cubin with section headers beyond its end": ELF
    + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 2**40, 0, 64, 56, 0, 64, 9, 0),
    "a cubin with program headers beyond its end": ELF
    + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 2**63, 0, 0, 64, 56, 9, 64, 0, 0),
    "a cubin with a section beyond its end": ELF
    + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, 0, 64, 56, 0, 64, 1, 0)
    + struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 64, 65, 0, 0, 0, 0),
}


def test_images_that_say_more_than_came_are_refused() -> None:
    async def story() -> None:
        async with worker() as one:
            _, sock = enter(one, one.secret)
            for call in (LOAD_IMAGE, LOAD_LIBRARY):
                for what, image in LIARS.items():
                    sock.sendall(struct.pack("<IHH", len(image), call, 0) + image)
                    length, _call, _reserved, result, _printed = struct.unpack("<IHHII", read(sock, 16))
                    read(sock, length - 8)
                    assert result == INVALID_IMAGE, what
            await still_serves(one)

    asyncio.run(story())


def test_replayed_frames_are_as_good_as_new_ones_and_no_better() -> None:
    """The same bytes again: what they allocate counts against the cap, and what is gone cannot go twice."""

    async def story() -> None:
        async with worker(memory_mib=8) as one:
            _, sock = enter(one, one.secret)
            allocate = struct.pack("<IHHQ", 8, FIRST_FUNCTION, 0, 1 << 20)
            addresses, refused = [], 0
            for _ in range(20):
                sock.sendall(allocate)
                length, call, _reserved, result, _printed = struct.unpack("<IHHII", read(sock, 16))
                body = read(sock, length - 8)
                assert call == FIRST_FUNCTION
                if result == 0:
                    addresses.append(struct.unpack("<Q", body)[0])
                else:
                    assert result == OUT_OF_MEMORY
                    refused += 1
            assert (len(addresses), refused) == (8, 12)
            free = struct.pack("<IHHQ", 8, FIRST_FUNCTION + 3, 0, addresses[0])
            sock.sendall(free * 50)
            sock.sendall(struct.pack("<IHH", 0, FIRST_FUNCTION + 5, 0))  # cuMemGetInfo, which tells of the 49
            assert struct.unpack("<IHHII", read(sock, 16))[3] == INVALID_VALUE
            assert (await one.handle.status()).memory_used_bytes == 7 << 20
            sock.close()
            await still_serves(one)

    asyncio.run(story())


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 300_000])
def test_a_guest_that_dies_in_the_middle_of_a_frame_leaves_nothing_behind(cut: int) -> None:
    async def story() -> None:
        async with worker() as one:
            await still_serves(one)
            before = rss_mib(one)
            for _ in range(100):
                _, sock = enter(one, one.secret)
                frame = struct.pack("<IHHQ", 8, FIRST_FUNCTION, 0, 1 << 16)
                frame += struct.pack("<IHH", 400_000, LOAD_IMAGE, 0) + bytes(cut)
                sock.sendall(frame[: 16 + cut] if cut < 16 else frame)
                sock.close()
            await asyncio.to_thread(eventually_unused, one)
            assert rss_mib(one) - before < MOST_GROWTH_MIB
            await still_serves(one)

    asyncio.run(story())


def eventually_unused(one: Worker) -> None:
    def unused() -> bool:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(one.folder / "control.sock"))
            control.sendall(b"status\n")
            status = json.loads(control.makefile().readline())
        return status["connections"] == 0 and status["memory_used_bytes"] == 0

    eventually(unused)


def test_callers_who_say_nothing_do_not_keep_others_out() -> None:
    async def story() -> None:
        async with worker() as one:
            silent = [knock(one) for _ in range(60)]
            await still_serves(one)
            for sock in silent:
                sock.close()

    asyncio.run(story())


def test_a_program_that_dies_in_the_middle_of_a_frame_costs_nothing() -> None:
    async def story() -> None:
        async with worker() as one:
            _, sock = enter(one, one.secret)
            sock.sendall(struct.pack("<IHH", 500_000_000, 17, 0) + b"x" * 1000)  # half an image
            sock.close()
            await still_serves(one)
            await until(lambda: unused(one))

    asyncio.run(story())


def buffers_in_use(pid: int) -> set[int]:
    """Where the threads of a process that wait for a socket receive to (recvfrom) or send from (sendmsg, what comes second)."""
    found = set()
    with open(f"/proc/{pid}/mem", "rb") as memory:

        def word(address: int) -> int:
            memory.seek(address)
            return int.from_bytes(memory.read(8), "little")

        for task in Path(f"/proc/{pid}/task").iterdir():
            # A thread may end, or its call, while it is looked at.
            with contextlib.suppress(OSError, OverflowError):
                call, *arguments = (task / "syscall").read_text().split()
                if call == "45":
                    found.add(int(arguments[1], 16))
                elif call == "46":
                    found.add(word(word(int(arguments[1], 16) + 16) + 16))
    return found


@pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() != "x86_64", reason="only root may look into a worker"
)
def test_a_large_copy_over_a_socket_goes_to_device_memory_and_from_it_without_another() -> None:
    """A client that sends half of a copy, and one that does not read, show where the bytes go to and come from."""
    size = 1 << 20

    async def story() -> None:
        async with worker() as one:
            program = one.start(
                "begin(); print(int(ok(d.cuMemAlloc(8 << 20))), flush=True); sys.stdin.readline()"
            )
            assert program.stdout is not None
            there = int(await asyncio.to_thread(program.stdout.readline))
            memory = range(there, there + (8 << 20))

            def straight() -> bool:
                return any(address in memory for address in buffers_in_use(one.handle.pid))

            for call, rest, more in (
                ("copy_to_device", struct.pack("<QQ", there, 0), bytes(size // 2)),
                ("copy_to_host", struct.pack("<QQQ", there, 0, size), b""),
            ):
                _, sock = await asyncio.to_thread(enter, one, one.secret)
                length = len(rest) + (size if more else 0)
                ask = struct.pack("<IHH", length, call_number(call), 0) + rest + more
                await asyncio.to_thread(sock.sendall, ask if more else 40 * ask)
                await asyncio.to_thread(eventually, straight)
                sock.close()
                await asyncio.to_thread(eventually, lambda: not straight())
            await asyncio.to_thread(program.communicate, "\n")
            await still_serves(one)

    asyncio.run(story())


def test_a_goodbye_waits_for_the_answer_that_is_on_its_way() -> None:
    async def story() -> None:
        async with worker() as one:
            _, sock = await asyncio.to_thread(enter, one, one.secret)
            queries = struct.pack("<IHH", 0, USAGE, 0) * 4096
            sock.settimeout(1)
            # Until neither side's buffers take any more, and the worker waits inside an answer.
            with contextlib.suppress(TimeoutError):
                while True:
                    sock.sendall(queries)
            stopped = asyncio.create_task(one.handle.stop("course ml101 took the slice back"))
            await asyncio.sleep(0.1)
            sock.settimeout(20)
            said = b"course ml101 took the slice back"
            assert struct.pack("<IHH", len(said), GOODBYE, 0) + said in await asyncio.to_thread(rest, sock)
            await stopped

    asyncio.run(story())


def congestion_controls(port: int) -> list[str]:
    """The congestion control of each end of the connections to `port`, from the kernel's socket diagnostics (sock_diag(7))."""
    everything, established, with_congestion = 0x301, 1 << 1, 1 << 3
    asked = struct.pack("=BBBBI48x", socket.AF_INET, socket.IPPROTO_TCP, with_congestion, 0, established)
    names = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnostics:
        diagnostics.settimeout(20)
        diagnostics.send(struct.pack("=IHHII", 16 + len(asked), 20, everything, 1, 0) + asked)
        while True:
            told = diagnostics.recv(1 << 20)
            while told:
                size, kind = struct.unpack_from("=IH", told)
                message, told = told[16:size], told[size + 3 & ~3 :]
                if kind == 3:
                    return names
                if kind != 20:
                    pytest.skip("the kernel does not tell the congestion control of a socket here (tcp_diag)")
                ours = port in struct.unpack_from("!HH", message, 4)
                attributes = message[72:]
                while ours and attributes:
                    length, what = struct.unpack_from("=HH", attributes)
                    if what == 4:
                        names.append(attributes[4:length].rstrip(b"\0").decode())
                    attributes = attributes[length + 3 & ~3 :]


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_neither_end_paces_on_loopback(kind: str) -> None:
    """Whatever the machine's own congestion control is: BBR sets a timer for every packet."""
    said = "begin(); print('there', flush=True); sys.stdin.readline()"

    async def story() -> None:
        async with worker(tls=kind == "tls") as one:
            port = int(next(e for e in one.handle.endpoints if e.startswith(kind)).rpartition(":")[2])
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-u", "-c", PRELUDE + said),
                env=one.environment(kind=kind),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert program.stdout is not None
            assert await program.stdout.readline() == b"there\n"
            assert congestion_controls(port) == ["reno", "reno"]
            await program.communicate(b"\n")

    asyncio.run(story())
