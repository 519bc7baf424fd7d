"""Functions of the program in the order of its streams: the program goes on meanwhile, the stream does not."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from asyncio.subprocess import PIPE

from tests.remoting.conftest import PRELUDE, Worker, call_number, worker
from tests.remoting.round_trips import counted
from tests.remoting.test_listeners import INVALID_VALUE, WELCOME, enter, read, still_serves
from tests.remoting.test_worker import until, unused

INVALID_HANDLE, OUT_OF_MEMORY = 400, 2
HOST = r"""
begin(); cuda = ctypes.CDLL("libcuda.so.1"); HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p); BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p); kept = []
def handle(x): return ctypes.c_void_p(int(x))
def call(s, function): f = HOST(lambda data: function()); kept.append(f); return cuda.cuLaunchHostFunc(handle(s), f, None)
def back(s, function): f = BACK(lambda stream, status, data: function(status)); kept.append(f); return cuda.cuStreamAddCallback(handle(s), f, None, 0)
def stream(flags=1): return ok(d.cuStreamCreate(flags))
def state(result): return result[0].name.removeprefix("CUDA_").removeprefix("ERROR_")
said = []; go = threading.Event()
"""


def says(code: str, lines: list[str]) -> None:
    async def story() -> None:
        async with worker() as one:
            done = await one.run(HOST + code)
            assert done.stdout.splitlines() == lines, done.stderr
            assert done.returncode == 0, done.stderr
            await until(lambda: unused(one))

    asyncio.run(story())


def test_the_program_and_other_streams_go_on_while_a_function_runs_and_its_own_stream_waits() -> None:
    code = """
a, b = stream(), stream(); p = ok(d.cuMemAlloc(4)); ok(d.cuMemsetD32(p, 1, 1)); ok(d.cuCtxSynchronize()); e = ok(d.cuEventCreate(0))
print(call(a, lambda: (go.wait(60), said.append("ran")))); ok(d.cuMemsetD32Async(p, 7, 1, a)); ok(d.cuEventRecord(e, a))
ok(d.cuMemsetD8Async(ok(d.cuMemAlloc(4)), 1, 4, b)); ok(d.cuStreamSynchronize(b)); out = bytes(4); ok(d.cuMemcpyDtoHAsync(out, p, 4, b)); ok(d.cuStreamSynchronize(b))
print(said, state(d.cuStreamQuery(a)), state(d.cuEventQuery(e)), out[0]); go.set(); ok(d.cuEventSynchronize(e)); ok(d.cuMemcpyDtoH(out, p, 4)); print(said, state(d.cuStreamQuery(a)), out[0])
"""
    says(code, ["0", "[] NOT_READY NOT_READY 1", "['ran'] SUCCESS 7"])


def test_functions_run_in_the_order_of_their_stream_each_after_the_work_before_it() -> None:
    code = """
a = stream(); n = 50
for i in range(n): (call(a, lambda i=i: said.append(i)) if i % 2 else back(a, lambda status, i=i: said.append(i + status)))
ok(d.cuStreamSynchronize(a)); print(said == list(range(n)))
who = []; call(0, lambda: who.append(threading.get_ident())); ok(d.cuCtxSynchronize()); print(len(who), who[0] == threading.get_ident())
"""
    says(code, ["True", "1 False"])


def test_many_threads_wait_behind_one_function() -> None:
    code = """
context = ok(d.cuCtxGetCurrent()); a = stream(); call(a, lambda: go.wait(60)); waiting = threading.Barrier(41)
def work(): ok(d.cuCtxSetCurrent(context)); waiting.wait(); ok(d.cuStreamSynchronize(a)); said.append(1)
threads = [threading.Thread(target=work) for _ in range(40)]; [t.start() for t in threads]; waiting.wait(); b = stream(); ok(d.cuStreamSynchronize(b)); print(said)
go.set(); [t.join() for t in threads]; print(len(said))
"""
    says(code, ["[]", "40"])


def test_a_function_may_not_call_cuda() -> None:
    code = """
a = stream(); call(a, lambda: said.extend([state(d.cuMemAlloc(4)), state(d.cuStreamSynchronize(a)), state(d.cuCtxSynchronize())])); ok(d.cuStreamSynchronize(a)); print(*said); ok(d.cuMemAlloc(4))
"""
    says(code, ["NOT_PERMITTED NOT_PERMITTED NOT_PERMITTED"])


def test_a_graph_s_launch_does_not_wait_for_its_functions() -> None:
    code = """
a = stream(); ok(d.cuStreamBeginCapture(a, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)); call(a, lambda: (go.wait(60), said.append(1)))
graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(a)), 0)); print(said); ok(d.cuGraphLaunch(graph, a)); ok(d.cuGraphLaunch(graph, a)); print(said); go.set(); ok(d.cuStreamSynchronize(a)); print(said)
"""
    says(code, ["[]", "[]", "[1, 1]"])


def test_after_a_fault_a_callback_hears_of_it_and_a_function_is_not_called() -> None:
    code = """
a = stream(); bad = load(WILD, b"wild"); heard = threading.Event(); ok(d.cuLaunchKernel(bad, 1,1,1, 1,1,1, 0, a, 0, 0))
call(a, lambda: said.append("function")); back(a, lambda status: (said.append(status), heard.set())); heard.wait(60); print(said, state(d.cuStreamSynchronize(a)))
"""

    async def story() -> None:
        async with worker() as one:
            done = await one.run(HOST + code)
            assert done.stdout.splitlines()[-1] == "[700] ILLEGAL_ADDRESS", done.stderr

    asyncio.run(story())


def test_a_program_that_goes_in_the_middle_of_a_function_leaves_the_slice_free() -> None:
    code = """
a = stream(); call(a, lambda: (os.write(1, b"in\\n"), go.wait(600))); call(a, lambda: said.append(1)); ok(d.cuMemsetD8Async(ok(d.cuMemAlloc(4)), 1, 4, a)); ok(d.cuStreamSynchronize(a))
"""

    async def story() -> None:
        async with worker() as one:
            program = one.start(HOST + code)
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "in\n"
            program.kill()
            await asyncio.to_thread(program.communicate)
            await until(lambda: unused(one))
            assert (await one.run("begin(); print(ok(d.cuMemGetInfo())[0] >> 20)")).stdout == "64\n"

    asyncio.run(story())


def test_where_there_is_managed_memory_a_function_runs_in_the_calling_thread() -> None:
    code = """
import numpy as np
a = stream(); go.set(); call(a, lambda: said.append(1)); p = int(ok(d.cuMemAllocManaged(4000, 1))); x = np.ctypeslib.as_array((ctypes.c_uint32 * 1000).from_address(p)); print(said)
ok(d.cuMemsetD32Async(p, 5, 1000, a)); call(a, lambda: said.extend([int(x[999]), threading.current_thread() is threading.main_thread()])); print(said)
"""
    says(code, ["[1]", "[1, 5, True]"])


def test_the_next_functions_are_asked_for_ahead() -> None:
    """So that those of several streams do not wait for each other's round trips."""
    code = """
a, b = stream(0), stream(0); call(a, lambda: None); ok(d.cuStreamSynchronize(a)); call(b, lambda: go.wait(60)); ok(d.cuMemGetInfo()); print(flush=True); input(); go.set(); ok(d.cuCtxSynchronize())
"""

    async def story() -> None:
        async with worker() as one:
            environment = one.environment(kind="tcp", shared_memory=False)
            with counted(environment) as counter:
                program = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-u",
                    "-c",
                    PRELUDE + HOST + code,
                    env=environment,
                    stdin=PIPE,
                    stdout=PIPE,
                )
                assert program.stdout is not None
                await program.stdout.readline()

                async def asked_ahead() -> bool:
                    answered, asked = (
                        one.of("next_host_function") for one in (counter.answers, counter.requests)
                    )
                    return (answered, asked) == (2, 66)

                await until(asked_ahead)
                assert counter.requests.of("host_function_done") == 1
                await program.communicate(b"\n")
                assert program.returncode == 0

    asyncio.run(story())


def test_a_client_that_lies_about_its_functions_gets_an_error_and_keeps_nobody_waiting() -> None:
    introduce, function, following, done = map(
        call_number, ("introduce", "host_function", "next_host_function", "host_function_done")
    )
    synchronize = call_number("cuStreamSynchronize")

    def tell(sock: socket.socket, call: int, body: bytes) -> None:
        sock.sendall(struct.pack("<IHH", len(body), call, 0) + body)

    def ask(sock: socket.socket, call: int, body: bytes) -> int:
        tell(sock, call, body)
        length, answered, _ = struct.unpack("<IHH", read(sock, 8))
        assert answered == call
        return int(struct.unpack("<I", read(sock, length)[:4])[0])

    def lie(one: Worker) -> None:
        status, mine = enter(one, one.secret)
        also, second = enter(one, one.secret)
        assert (status, also) == (WELCOME, WELCOME)
        tell(mine, introduce, struct.pack("<IIQ", 1, 0, 77))
        wait = struct.pack("<Q", 0)
        assert ask(mine, synchronize, wait) == 0
        assert ask(second, following, struct.pack("<Q", 78)) == INVALID_HANDLE  # nobody's key
        assert ask(second, following, b"") == INVALID_HANDLE
        tell(second, done, struct.pack("<QQ", 77, 5))  # which nobody waits for
        tell(mine, function, struct.pack("<QQ", 123, 1))  # on no stream
        assert ask(mine, synchronize, wait) == INVALID_HANDLE
        assert ask(second, following, struct.pack("<Q", 77)) == 0
        tell(mine, function, struct.pack("<QQ", 0, 1))  # the number is taken until it is done
        assert ask(mine, synchronize, wait) == INVALID_VALUE
        tell(second, done, struct.pack("<QQ", 77, 1))
        tell(mine, function, struct.pack("<QQ", 0, 2))
        assert ask(second, following, struct.pack("<Q", 77)) == 0
        # Its stream waits for a function that nobody will run, until who would have run it is gone.
        second.close()
        assert ask(mine, synchronize, wait) == 0
        tell(mine, function, struct.pack("<QQ", 0, 3))
        assert ask(mine, synchronize, wait) == INVALID_VALUE
        mine.close()

    async def story() -> None:
        async with worker() as one:
            await asyncio.to_thread(lie, one)
            await still_serves(one)

    asyncio.run(story())


def test_functions_that_are_done_before_their_stream_comes_to_them_are_counted() -> None:
    """Otherwise a program could have its worker keep any number of them, behind one that is not done."""
    introduce, function, done, limit = map(
        call_number, ("introduce", "host_function", "host_function_done", "cuCtxGetLimit")
    )

    def frame(call: int, *words: int) -> bytes:
        return struct.pack(f"<IHH{len(words)}Q", 8 * len(words), call, 0, *words)

    def fill(one: Worker) -> None:
        status, sock = enter(one, one.secret)
        assert status == WELCOME
        sock.sendall(struct.pack("<IHHIIQ", 16, introduce, 0, 1, 0, 77) + frame(function, 0, 1))

        def error() -> int:
            sock.sendall(struct.pack("<IHHI", 4, limit, 0, 0))
            length, answered, _ = struct.unpack("<IHH", read(sock, 8))
            assert answered == limit
            return int(struct.unpack("<I", read(sock, length)[:4])[0])

        for wanted, numbers in ((0, range(2, 100)), (OUT_OF_MEMORY, range(100, 900))):
            sock.sendall(b"".join(frame(function, 0, n) + frame(done, 77, n) for n in numbers))
            assert error() == wanted
        sock.close()

    async def story() -> None:
        async with worker(host_memory=1 << 18) as one:  # 512 bytes for each
            await asyncio.to_thread(fill, one)
            await until(lambda: unused(one))

    asyncio.run(story())


def test_numbers_of_functions_without_room_are_told_in_their_order_and_gates_have_room_of_their_own() -> None:
    """Whatever numbers a program takes, what its worker keeps of them has a bound."""
    introduce, function, following, done, limit = map(
        call_number,
        ("introduce", "host_function", "next_host_function", "host_function_done", "cuCtxGetLimit"),
    )
    gate = 1 << 63

    def frame(call: int, *words: int) -> bytes:
        return struct.pack(f"<IHH{len(words)}Q", 8 * len(words), call, 0, *words)

    def fill(one: Worker) -> None:
        (status, mine), (also, second) = enter(one, one.secret), enter(one, one.secret)
        assert (status, also) == (WELCOME, WELCOME)
        mine.sendall(struct.pack("<IHHIIQ", 16, introduce, 0, 1, 0, 77) + frame(function, 0, 1))

        def error() -> int:
            mine.sendall(struct.pack("<IHHI", 4, limit, 0, 0))
            length, _, _ = struct.unpack("<IHH", read(mine, 8))
            return int(struct.unpack("<I", read(mine, length)[:4])[0])

        def told(count: int) -> list[tuple[int, int]]:
            second.sendall(frame(following, 77) * count)
            lengths = (struct.unpack("<IHH", read(second, 8))[0] for _ in range(count))
            return [struct.unpack_from("<Qi", read(second, length), 8) for length in lengths]

        assert (error(), told(1)) == (0, [(1, 0)])
        mine.sendall(b"".join(frame(function, 0, n) + frame(done, 77, n) for n in range(2, 900)))
        assert error() == OUT_OF_MEMORY
        first = told(1)[0][0]
        assert 100 < first < 800
        assert told(899 - first) == [(n, OUT_OF_MEMORY) for n in range(first + 1, 900)]
        mine.sendall(b"".join(frame(function, 0, gate | n) for n in range(1, 257)))
        assert error() == 0
        mine.sendall(b"".join(frame(function, 0, gate | n) for n in range(257, 300)))
        assert error() == OUT_OF_MEMORY
        assert told(43) == [(gate | n, OUT_OF_MEMORY) for n in range(257, 300)]
        # Later ones first, and in between: numbers that meet are told in their order.
        for n in (1009, 1007, 1008, 1005, 1001):
            mine.sendall(frame(function, 0, n))
        assert error() == OUT_OF_MEMORY
        assert told(5) == [(n, OUT_OF_MEMORY) for n in (1001, 1005, 1007, 1008, 1009)]
        # A program that lies: of every other number no more are kept than there are places.
        mine.sendall(b"".join(frame(function, 0, 10_000 + 2 * n) for n in range(50_000)))
        assert error() == OUT_OF_MEMORY
        kept = told(1000)
        assert kept == [(10_000 + 2 * n, OUT_OF_MEMORY) for n in range(1000)]
        second.sendall(frame(following, 77) * 2000)
        mine.sendall(frame(done, 77, 1))
        last = 0
        for _ in range(1000):
            (length,) = struct.unpack("<I", read(second, 8)[:4])
            number, status = struct.unpack_from("<Qi", read(second, length), 8)
            if status != OUT_OF_MEMORY:
                break
            last = number
        assert 12_000 <= last < 10_000 + 2 * 4096
        mine.close()
        second.close()

    async def story() -> None:
        async with worker(host_memory=1 << 18) as one:
            await asyncio.to_thread(fill, one)
            await until(lambda: unused(one))

    asyncio.run(story())


def test_a_program_may_end_while_a_function_runs_that_comes_back_to_it() -> None:
    """Python ends the thread of such a one, and with it the system unwinds what called the function."""
    code = """
import time
for a in (stream(), stream()): call(a, lambda: (said.append(1), time.sleep(2)))
while len(said) < 1: pass
print("end")
"""
    says(code, ["end"])
