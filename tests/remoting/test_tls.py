"""TLS between programs and workers: everything that works without it, keys from the secret alone, and OpenSSL where nobody sees it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.remoting import tls
from gpukernel.remoting.worker_query import WorkerQuery, WorkerSilent
from tests.conftest import eventually
from tests.remoting.conftest import Worker, worker

RECORD, MORE = 16384, 64


def address(one: Worker) -> tuple[str, int]:
    kind, host, port = next(e for e in one.handle.endpoints if not e.startswith("unix:")).split(":")
    assert kind == "tls"
    return host, int(port)


THREADS = """
import threading
begin()
context = ok(d.cuCtxGetCurrent())
def work(number):
    ok(d.cuCtxSetCurrent(context))
    stream = ok(d.cuStreamCreate(0))
    there, said, back = ok(d.cuMemAlloc(300_000)), bytes([number]) * 300_000, bytearray(300_000)
    for _ in range(5):
        ok(d.cuMemcpyHtoDAsync(there, said, len(said), stream)); ok(d.cuMemcpyDtoHAsync(back, there, len(said), stream))
        ok(d.cuStreamSynchronize(stream))
        assert bytes(back) == said
threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
[t.start() for t in threads]; [t.join() for t in threads]
print("served")
"""
SIZES = """
begin()
there = ok(d.cuMemAlloc(5 << 20))
for size in (1, 4, 16383, 16384, 16385, 65535, 65536, 131072, 262144, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20):
    said = os.urandom(size); back = bytearray(size)
    ok(d.cuMemcpyHtoD(there, said, size)); ok(d.cuMemcpyDtoH(back, there, size))
    assert bytes(back) == said, size
store = load(STORE_U32, b"store")
ok(d.cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, 0, ((there, 7), (None, ctypes.c_uint32)), 0))
back = bytearray(4); ok(d.cuMemcpyDtoH(back, there, 4)); assert back == b"\\7\\0\\0\\0"
print("served")
"""


@pytest.mark.parametrize("code", [SIZES, THREADS], ids=["sizes", "threads"])
def test_programs_run_over_tls_as_without_it(code: str) -> None:
    async def story() -> None:
        async with worker(tls=True) as one:
            done = await one.run(code, kind="tls")
            assert done.stdout == "served\n", done.stderr
            assert done.stderr == ""

    asyncio.run(story())


FORKS = """
begin()
there = ok(d.cuMemAlloc(4))
child = os.fork()
if child == 0:
    os._exit(0 if int(d.cuMemAlloc(4)[0]) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ok(d.cuMemcpyHtoD(there, b"abcd", 4)); back = bytearray(4); ok(d.cuMemcpyDtoH(back, there, 4)); assert back == b"abcd"
print("served")
"""
FORKS_BEFORE = """
child = os.fork()
begin()
there = ok(d.cuMemAlloc(4))
ok(d.cuMemcpyHtoD(there, b"abcd", 4)); back = bytearray(4); ok(d.cuMemcpyDtoH(back, there, 4)); assert back == b"abcd"
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("served")
"""


@pytest.mark.parametrize("code", [FORKS, FORKS_BEFORE], ids=["after", "before"])
def test_a_child_does_not_disturb_its_parents_connection(code: str) -> None:
    async def story() -> None:
        async with worker(tls=True) as one:
            done = await one.run(code, kind="tls")
            assert done.stdout == "served\n", done.stderr

    asyncio.run(story())


def test_a_goodbye_is_read_through_tls() -> None:
    async def story() -> None:
        async with worker(tls=True) as one:
            one_kind = one.environment(kind="tls")
            program = await asyncio.create_subprocess_exec(
                "python3",
                "-c",
                "import ctypes, sys; d = ctypes.CDLL('libcuda.so.1'); print(d.cuInit(0), flush=True); sys.stdin.readline();"
                "c = ctypes.c_void_p(); d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); d.cuCtxSetCurrent(c);"
                "print(d.cuCtxSynchronize() != 0)",
                env=one_kind,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert program.stdout is not None
            assert await program.stdout.readline() == b"0\n"
            await one.handle.stop("course ml101 took the slice back")
            out, err = await program.communicate(b"\n")
            assert out == b"True\n"
            assert b"course ml101 took the slice back" in err

    asyncio.run(story())


def test_python_asks_for_usage_over_tls_and_knows_a_wrong_secret() -> None:
    async def story() -> None:
        async with worker(tls=True, memory_mib=32) as one:
            only_tls = [e for e in one.handle.endpoints if e.startswith("tls:")]

            def ask(secret: str) -> int:
                with WorkerQuery(only_tls, secret) as query:
                    query.usage()
                    return query.usage().limit_bytes

            assert await asyncio.to_thread(ask, one.secret) == 32 << 20
            with pytest.raises(WorkerSilent, match="does not know the secret"):
                await asyncio.to_thread(ask, "0" * 64)
            assert (await one.handle.status()).connections == 0

    asyncio.run(story())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command (Debian: openssl)")
def test_openssls_own_client_shakes_hands_with_a_worker() -> None:
    """TLS 1.3 goes over the wire: another program reads the worker's first record."""

    async def story() -> None:
        async with worker(tls=True) as one:
            host, port = address(one)
            command = f"openssl s_client -connect {host}:{port} -tls1_3 -quiet"
            key = tls._derive(one.secret, b"tls 1.3 psk").hex()
            done = await asyncio.to_thread(
                subprocess.run,
                [*command.split(), "-psk", key, "-psk_identity", tls.identity_of(one.secret)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=60,
            )
            assert done.stdout[:8] == b"GPUK\4\0\0\0", done.stderr
            assert len(done.stdout) == 40

    asyncio.run(story())


def test_the_openssl_inside_names_itself() -> None:
    assert re.fullmatch(r"OpenSSL 3\.\d+\.\d+.*", tls.provider())


def test_the_key_changes_after_many_records() -> None:
    def pair() -> tuple[ctypes.CDLL, list[ctypes.c_void_p]]:
        library = tls._library()
        ends = [
            ctypes.c_void_p(library.gpukernel_tls_new(worker, b"k" * 32, ctypes.c_char_p(b"name")))
            for worker in (0, 1)
        ]
        flight, room, size = b"", ctypes.create_string_buffer(4096), ctypes.c_size_t()
        for turn in range(4):
            state = library.gpukernel_tls_handshake(
                ends[turn % 2], flight, ctypes.c_size_t(len(flight)), room, ctypes.byref(size)
            )
            assert state >= 0, library.gpukernel_tls_error(ends[turn % 2])
            flight = room.raw[: size.value]
        return library, ends

    library, (program, server) = pair()
    library.gpukernel_tls_rekey_after(program, ctypes.c_uint64(3))
    lengths = []
    for number in range(10):
        said, out, back = (
            bytes([number]) * 100,
            ctypes.create_string_buffer(200),
            ctypes.create_string_buffer(300),
        )
        size = library.gpukernel_tls_seal(program, said, 100, None, 0, out)
        sealed = out.raw[:size]
        lengths.append(len(sealed))
        heard = b""
        while sealed:
            record, sealed = (lambda end: (sealed[:end], sealed[end:]))(
                5 + int.from_bytes(sealed[3:5], "big")
            )
            count = library.gpukernel_tls_open(server, record, ctypes.c_size_t(len(record)), back)
            assert count >= 0, library.gpukernel_tls_error(server)
            heard += back.raw[:count]
        assert heard == said
    assert len(set(lengths)) == 2  # some with the message that the key changes
    assert lengths[3] > lengths[2]


def test_openssl_is_not_to_be_seen_and_not_loaded_without_need() -> None:
    said = subprocess.run(
        ["nm", "-D", "--defined-only", native.tls_library()], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].partition("@")[0] for line in said.splitlines()}
    assert names
    assert all(name.startswith("gpukernel_tls_") for name in names), names

    mapped = "begin(); print('libgpukernel-tls' in open('/proc/self/maps').read())"

    async def story() -> None:
        async with worker() as one:
            for kind in ("unix", "tcp"):
                assert (await one.run(mapped, kind=kind)).stdout == "False\n"
        async with worker(tls=True) as one:
            assert (await one.run(mapped, kind="unix")).stdout == "False\n"
            assert (await one.run(mapped, kind="tls")).stdout == "True\n"
            beside = "import ssl; ssl.create_default_context(); " + mapped + "; ssl.create_default_context()"
            assert (await one.run(beside, kind="tls")).stdout == "True\n"  # beside Python's own

    asyncio.run(story())


def _point_to(lease: Path, port: int) -> None:
    lease.write_text(re.sub(r"(tls:[^:]+:)\d+", rf"\g<1>{port}", lease.read_text()))


def test_without_the_library_a_program_says_so_and_sends_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with worker(tls=True) as one:
            shutil.copy(native.shim_dir() / "libcuda.so.1", tmp_path)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                environment = one.environment(kind="tls")
                environment["LD_LIBRARY_PATH"] = str(tmp_path)
                _point_to(Path(environment["GPUKERNEL_LEASE_FILE"]), listener.getsockname()[1])
                done = await asyncio.to_thread(
                    subprocess.run,
                    ["python3", "-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.stdout == "100\n"
                assert "built without TLS" in done.stderr
                listener.settimeout(0)
                reached, _ = listener.accept()
                assert reached.recv(100) == b""

    asyncio.run(story())


def test_a_restarted_worker_speaks_tls_again() -> None:
    async def story() -> None:
        async with worker(tls=True) as one:
            fault = "begin(); ok(d.cuLaunchKernel(load(WILD, b'wild'), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)); print(d.cuCtxSynchronize()[0].name)"
            done = await one.run(fault, kind="tls")
            assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stderr

            def again() -> bool:
                with WorkerQuery(
                    [e for e in one.handle.endpoints if e.startswith("tls:")], one.secret
                ) as query:
                    return query.usage().used_bytes == 0

            await asyncio.to_thread(eventually, again)
            assert (await one.run("begin(); print('served')", kind="tls")).stdout == "served\n"

    asyncio.run(story())


def test_nothing_but_the_environment_variable_of_the_lease_is_needed() -> None:
    """OpenSSL's own variables change nothing."""

    async def story() -> None:
        async with worker(tls=True) as one:
            environment = one.environment(kind="tls") | {
                "OPENSSL_CONF": "/nonexistent/openssl.cnf",
                "OPENSSL_MODULES": "/nonexistent",
            }
            done = await asyncio.to_thread(
                subprocess.run,
                ["python3", "-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.stdout == "0\n", done.stderr

    asyncio.run(story())
