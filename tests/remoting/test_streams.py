"""Several streams and several threads of one program, over the wire: none holds another back.

Where something must go on while something else waits, a program that lacks it would never end; nothing here measures
time."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.native.simgpu_driver.test_streams import SPIN
from tests.remoting.conftest import call_number, worker
from tests.remoting.test_listeners import WELCOME, enter, read

# A thread that is in a call, once it waits for the worker's answer.
THREADS = (
    SPIN
    + '''
import time
context = ok(d.cuCtxGetCurrent())
class Doing(threading.Thread):
    """Calls `what` in a context of its own and keeps what it returned."""
    def __init__(self, what):
        super().__init__(daemon=True); self.what, self.code, self.begun = what, None, threading.Event(); self.start(); self.begun.wait()
    def run(self):
        ok(d.cuCtxSetCurrent(context)); self.begun.set(); self.code = int(self.what()[0])
    def is_waiting(self):
        """In a system call that receives, or on a lock; not on the interpreter's, the only one of the process that waits for a time."""
        call, _, operation, _, timeout, *_ = (open(f"/proc/self/task/{self.native_id}/syscall").read() + " 0 0 0 0 0").split()
        return call in ("0", "45", "47") or (call == "202" and (not int(operation, 16) & 128 or not int(timeout, 16)))
    def settle(self):
        while not self.is_waiting(): time.sleep(0.001)
        return self
    def end(self):
        self.join(60); assert not self.is_alive(); return self.code
'''
)
TRANSPORTS = pytest.mark.parametrize(
    "transport", [{}, {"shared_memory": False}, {"kind": "tcp"}], ids=["shared memory", "unix", "tcp"]
)


def said(code: str, prelude: str = THREADS, **options: object) -> str:
    async def story() -> str:
        async with worker() as one:
            done = await one.run(prelude + code, **options)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

    return asyncio.run(story())


@TRANSPORTS
@pytest.mark.parametrize(
    "wait",
    [
        "d.cuStreamSynchronize(s)",
        "d.cuEventSynchronize(event)",
        "d.cuCtxSynchronize()",
        "d.cuMemcpyDtoHAsync(back, DONE, 4, s)",
        "d.cuMemcpyDtoH(back, DONE, 4)",
        "d.cuStreamSynchronize(0)",
    ],
)
def test_a_thread_that_waits_holds_no_other_back(wait: str, transport: dict[str, object]) -> None:
    """The kernel that one thread waits for ends when another, which makes its first call now, launches."""
    code = f"""
s = blocking(); event = ok(d.cuEventCreate(0)); back = ctypes.c_uint32(); spin(s); ok(d.cuEventRecord(event, s))
waiting = threading.Event(); main = threading.get_native_id()
def other():
    while True:  # until it waits for the worker: receives, or waits on a futex that two processes share, as Python's own locks are none
        call, _, operation, *_ = (open(f"/proc/self/task/{{main}}/syscall").read() + " 0 0").split()
        if call in ("0", "45", "47") or (call == "202" and int(operation, 16) == 0): break
        time.sleep(0.001)
    ok(d.cuCtxSetCurrent(context)); signal(free_stream()); return (0,)
t = Doing(other); print(int({wait}[0]), t.end(), word(DONE))
"""
    assert said(code, **transport) == "0 0 1"


def test_memory_is_freed_and_given_again_while_another_thread_waits() -> None:
    """A free waits for the device: what comes behind it does not, but for an allocation that needs the room."""
    code = """
s = free_stream(); spin(s); t = Doing(lambda: d.cuStreamSynchronize(s)).settle()
big = ok(d.cuMemAlloc(48 << 20)); ok(d.cuMemFree(big)); write(FLAG); again = ok(d.cuMemAlloc(48 << 20))
print(t.end(), int(d.cuMemAlloc(48 << 20)[0]), word(DONE))
"""
    assert said(code) == "0 2 1"


def test_threads_that_free_before_they_ask_again_never_lack_room() -> None:
    """Three times 20 of 64 MiB: what is asked for while another thread's memory comes back is there."""
    code = """
def work():
    for round in range(300): ok(d.cuMemFree(ok(d.cuMemAlloc(20 << 20))))
    return (0,)
print([t.end() for t in [Doing(work) for _ in range(3)]])
"""
    assert said(code) == "[0, 0, 0]"


def test_many_threads_wait_at_the_same_time() -> None:
    code = """
streams = [free_stream() for _ in range(24)]
for i, s in enumerate(streams): spin(s, FLAG, DONE + 8 * i)
threads = [Doing(lambda s=s: d.cuStreamSynchronize(s)).settle() for s in streams]
write(FLAG); print({t.end() for t in threads}, sum(word(DONE + 8 * i) for i in range(24)))
"""
    assert said(code) == "{0} 24"


@TRANSPORTS
def test_what_a_thread_did_before_another_began_is_done_before(transport: dict[str, object]) -> None:
    """Four threads take turns under a lock: each finds what the one before has queued, and nothing older."""
    code = """
turn = threading.Condition(); state = [0]; shared = blocking()
def work(number):
    mine = ctypes.c_uint32()
    for round in range(100):
        with turn:
            turn.wait_for(lambda: state[0] % 4 == number)
            ok(d.cuMemcpyDtoHAsync(mine, SEEN, 4, shared)); assert mine.value == state[0], (mine.value, state[0])
            state[0] += 1; ok(d.cuMemsetD32Async(SEEN, state[0], 1, shared)); turn.notify_all()
    return (0,)
threads = [Doing(lambda n=n: work(n)) for n in range(4)]
print([t.end() for t in threads], state)
"""
    assert said(code, **transport) == "[0, 0, 0, 0] [400]"


def test_threads_that_copy_much_at_the_same_time_get_their_own_bytes() -> None:
    code = """
def work(number):
    n = (3 << 20) + number; s = free_stream(); memory = int(ok(d.cuMemAlloc(n))); host = bytes([number]) * n; back = bytearray(n)
    for _ in range(6):
        ok(d.cuMemcpyHtoDAsync(memory, host, n, s)); ok(d.cuMemcpyDtoHAsync(back, memory, n, s)); assert back == host
        ok(d.cuMemsetD8Async(memory, 99, n, s))
    ok(d.cuMemFree(memory)); return (0,)
print([t.end() for t in [Doing(lambda n=n: work(n)) for n in range(6)]])
"""
    assert said(code) == "[0, 0, 0, 0, 0, 0]"


@TRANSPORTS
@pytest.mark.parametrize(
    "memory",
    ["ctypes.create_string_buffer(n)", "(ctypes.c_char * n).from_address(ok(d.cuMemHostAlloc(n, 0)))"],
)
def test_a_copy_into_one_stream_waits_for_no_other_streams_kernel(
    memory: str, transport: dict[str, object]
) -> None:
    code = f"""
n = 5 << 20; busy, s = blocking(), blocking(); there = int(ok(d.cuMemAlloc(n))); host = {memory}; back = bytearray(n)
spin(busy); ctypes.memset(host, 7, n)
ok(d.cuMemcpyHtoDAsync(there, ctypes.addressof(host), n, s)); ok(d.cuMemcpyDtoHAsync(back, there, n, s))
assert set(back) == {{7}} and not is_done(busy)
write(FLAG); ok(d.cuCtxSynchronize()); print(word(DONE))
"""
    assert said(code, SPIN, **transport) == "1"


@TRANSPORTS
def test_copies_into_a_busy_stream_do_not_hold_the_program_back(transport: dict[str, object]) -> None:
    code = """
n = 5 << 20; s = blocking(); there = int(ok(d.cuMemAlloc(n))); host = ctypes.create_string_buffer(n); back = bytearray(n)
spin(s); ctypes.memset(host, 7, n); ok(d.cuMemcpyHtoDAsync(there, host, n, s)); ctypes.memset(host, 8, n)
assert not is_done(s); write(FLAG)
ok(d.cuMemcpyDtoHAsync(back, there, n, s)); print(set(back), word(DONE))
"""
    assert said(code, SPIN, **transport) == "{7} 1"


def test_more_than_is_staged_waits_and_arrives() -> None:
    """Thirty pieces in a stream whose kernel another thread ends later."""
    code = """
n = 30 << 20; s = free_stream(); there = int(ok(d.cuMemAlloc(n))); host = bytes(range(256)) * (n // 256)
for _ in range(3): ok(d.cuMemsetD8Async(there, 1, n, s)); ok(d.cuMemcpyHtoDAsync(there, host, n, s))
back = bytearray(n); ok(d.cuMemcpyDtoHAsync(back, there, n, s)); print(back == host)
"""
    assert said(code, SPIN) == "True"


def test_a_synchronous_copy_is_done_when_it_returns_whatever_stream_looks() -> None:
    code = """
n = 2 << 20; there = int(ok(d.cuMemAlloc(n))); host = bytes([9]) * n; back = bytearray(n)
for _ in range(30):
    ok(d.cuMemsetD8Async(there, 1, n, 0)); ok(d.cuMemcpyHtoD(there, host, n)); ok(d.cuMemcpyDtoHAsync(back, there, n, beside)); assert back == host
print("done")
"""
    assert said(code, SPIN) == "done"


@TRANSPORTS
def test_a_large_synchronous_copy_comes_after_what_blocking_streams_have(
    transport: dict[str, object],
) -> None:
    """What a kernel in one writes when another thread lets it: before the copy to the device, and into what the copy to the host brings."""
    code = """
n = 2 << 20; there = int(ok(d.cuMemAlloc(n))); host, back = bytes([9]) * n, bytearray(n); s = blocking()
ok(d.cuMemcpyHtoD(there, host, n))
spin(s, FLAG, there + n - 8); t = Doing(lambda: d.cuMemcpyDtoH(back, there, n)).settle(); write(FLAG); print(t.end(), back[-8:].hex())
spin(s, OTHER, there + n - 8); t = Doing(lambda: d.cuMemcpyHtoD(there, host, n)); write(OTHER); print(t.end())
ok(d.cuMemcpyDtoH(back, there, n)); print(back == host)
"""
    assert said(code, **transport).splitlines() == ["0 0100000009090909", "0", "True"]


def test_threads_have_default_streams_of_their_own() -> None:
    code = """
spin(PER_THREAD)
t = Doing(lambda: (signal(PER_THREAD), d.cuStreamSynchronize(PER_THREAD))[1]); assert t.end() == 0
ok(d.cuStreamSynchronize(PER_THREAD)); print(word(DONE))
"""
    assert said(code) == "1"


def test_an_event_that_is_waited_for_may_be_destroyed() -> None:
    code = """
s = free_stream(); event = ok(d.cuEventCreate(0)); spin(s); ok(d.cuEventRecord(event, s))
a, b = Doing(lambda: d.cuEventSynchronize(event)).settle(), Doing(lambda: d.cuStreamSynchronize(s)).settle()
ok(d.cuEventDestroy(event)); ok(d.cuStreamDestroy(s)); more = [ok(d.cuEventCreate(0)) for _ in range(50)]
write(FLAG); print(a.end(), b.end(), word(DONE))
"""
    assert said(code) == "0 0 1"


def test_every_thread_that_waits_learns_that_the_context_is_lost() -> None:
    code = """
wild = load(WILD, b"wild"); s = free_stream(); spin(s)
threads = [Doing(lambda: d.cuStreamSynchronize(s)).settle() for _ in range(3)]
other = free_stream(); ok(d.cuLaunchKernel(wild, 1,1,1, 1,1,1, 0, other, 0, 0)); print(int(d.cuStreamSynchronize(other)[0]), flush=True)
os._exit(0)
"""
    assert said(code).splitlines()[-1] == "700"


def test_an_interrupt_ends_every_threads_wait() -> None:
    async def story() -> None:
        async with worker() as one:
            code = """
s, t = free_stream(), free_stream(); spin(s); spin(t, OTHER)
threads = [Doing(lambda x=x: d.cuStreamSynchronize(x)).settle() for x in (s, t, s)]
print("on", flush=True); print([x.end() for x in threads])
"""
            program = one.start(THREADS + code)
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "on\n"
            await one.handle.interrupt()
            out, errors = await asyncio.to_thread(program.communicate)
            assert out == "[46, 46, 46]\n", errors
            assert errors.count("was interrupted") == 1
            assert (await one.run(SPIN + "write(FLAG); print(word(FLAG))")).stdout == "1\n"

    asyncio.run(story())


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_client_cannot_make_a_worker_start_threads_without_end() -> None:
    """It says that it has many threads and asks for hundreds of waits at once; each is answered in the end."""

    async def story() -> None:
        async with worker() as one:
            busy = one.start(
                THREADS
                + 's = free_stream(); spin(s); word(FLAG); print("on", flush=True); sys.stdin.readline(); write(FLAG); ok(d.cuCtxSynchronize()); print("off", flush=True)'
            )
            assert busy.stdout is not None
            assert busy.stdin is not None
            assert await asyncio.to_thread(busy.stdout.readline) == "on\n"
            before = threads_of(one.handle.pid)
            number = call_number("cuCtxSynchronize")
            introduce, attend = call_number("introduce"), call_number("attend")

            def ask(sock: socket.socket, key: int, waits: int) -> None:
                introduction = struct.pack("<II", 1, 1) + b"x" + struct.pack("<Q", key)
                sock.sendall(struct.pack("<IHH", len(introduction), introduce, 0) + introduction)
                sock.sendall(struct.pack("<IHHQ", 8, attend, 0, key) * 3)
                sock.sendall(b"".join(struct.pack("<IHH", 0, number, i) for i in range(waits)))

            def answers(sock: socket.socket, waits: int) -> set[int]:
                numbers = set()
                for _ in range(waits):
                    length, call, which, result, printed = struct.unpack("<IHHII", read(sock, 16))
                    assert (length, call, result, printed) == (8, number, 0, 0)
                    numbers.add(which)
                return numbers

            socks = []
            for key in range(1, 5):
                status, sock = await asyncio.to_thread(enter, one, one.secret)
                assert status == WELCOME
                await asyncio.to_thread(ask, sock, key, 300)
                socks.append(sock)
            await asyncio.to_thread(eventually, lambda: threads_of(one.handle.pid) >= before + 100)
            assert threads_of(one.handle.pid) <= before + 128 + 4 + 4
            busy.stdin.write("\n")
            busy.stdin.flush()
            for sock in socks:
                assert await asyncio.to_thread(answers, sock, 300) == set(range(300))
                sock.close()
            assert await asyncio.to_thread(busy.stdout.readline) == "off\n"
            await asyncio.to_thread(busy.communicate)
            await asyncio.to_thread(eventually, lambda: threads_of(one.handle.pid) <= before + 4)

    asyncio.run(story())


PRINTS = '''
say = load(b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 length) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[7] = {104, 101, 108, 108, 111, 10, 0};
.visible .entry say() {
  .reg .b64 %rd<3>;
  mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, 0;
  { .param .b64 format; .param .b64 values; .param .b32 length;
    st.param.b64 [format], %rd1; st.param.b64 [values], %rd2; call.uni (length), vprintf, (format, values); }
  ret;
}""", b"say")
word, memory = ctypes.create_string_buffer(4), ok(d.cuMemAlloc(4))
stream, event = (ok(make(0)) for make in (d.cuStreamCreate, d.cuEventCreate))
def launch(): ok(d.cuLaunchKernel(say, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
'''


@TRANSPORTS
def test_what_kernels_print_comes_with_the_first_wait_for_them(transport: dict[str, object]) -> None:
    waits = (
        "d.cuCtxSynchronize()",
        "d.cuStreamSynchronize(stream)",
        "d.cuCtxSynchronize()",
        "d.cuMemcpyDtoH(ctypes.addressof(word), memory, 4)",
        "(d.cuEventRecord(event, stream), d.cuEventSynchronize(event))[1]",
    )
    code = "".join(
        # Nothing comes with a wait where nothing has run since the last one.
        f"ok({wait}); print('nothing'); launch(); ok({wait}); print('done')\n"
        for wait in waits
    )
    said_ = said(code, prelude="begin()" + PRINTS, **transport)
    assert said_.split() == ["nothing", "hello", "done"] * len(waits)


LINES = '''
line = load(b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 length) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[7] = {37, 53, 49, 49, 100, 10, 0};
.visible .entry line(.param .u64 values) {
  .reg .b64 %rd<3>;
  mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; ld.param.u64 %rd2, [values];
  { .param .b64 format; .param .b64 values; .param .b32 length;
    st.param.b64 [format], %rd1; st.param.b64 [values], %rd2; call.uni (length), vprintf, (format, values); }
  ret;
}""", b"line")
ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 4 << 20))
values = int(ok(d.cuMemAlloc(4 * 8000)))
numbers = (ctypes.c_uint32 * 8000)(*range(8000)); ok(d.cuMemcpyHtoD(values, numbers, 4 * 8000))
for n in range(8000): ok(d.cuLaunchKernel(line, 1, 1, 1, 1, 1, 1, 0, 0, ((values + 4 * n,), (ctypes.c_void_p,)), 0))
if FAULTS: ok(d.cuLaunchKernel(load(WILD, b"wild"), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
d.cuCtxSynchronize()
'''


def test_the_newest_lines_of_kernels_and_a_fault_are_told_where_the_worker_has_no_room_for_all() -> None:
    async def lines(faults: bool) -> list[str]:
        async with worker() as one:
            return (await one.run(f"begin(); FAULTS = {faults}" + LINES)).stdout.splitlines()

    told = asyncio.run(lines(False))
    assert len(told) > 1500  # of 512 bytes each, by a pipe of 1 MiB
    assert told[-1].strip() == "7999"
    told = asyncio.run(lines(True))
    assert told[-2].strip() == "7999"
    assert told[-1].startswith("gpukernel: ")


def test_events_and_streams_need_no_current_context_where_they_say_whose_they_are() -> None:
    code = """
stream, event, later = ok(d.cuStreamCreate(0)), ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
ok(d.cuCtxSetCurrent(None))
for call in (
    d.cuEventRecord(event, stream), d.cuEventRecordWithFlags(later, stream, 0), d.cuStreamWaitEvent(stream, event, 0),
    d.cuStreamSynchronize(stream), d.cuStreamQuery(stream), d.cuEventSynchronize(later), d.cuEventQuery(event),
    d.cuEventElapsedTime(event, later), d.cuEventDestroy(later),
):
    ok(call)
# A default stream is the current context's, and there is none.
print({d.cuEventRecord(event, 0)[0].name, d.cuStreamSynchronize(0)[0].name, d.cuStreamQuery(0)[0].name})
"""
    assert said(code) == "{'CUDA_ERROR_INVALID_CONTEXT'}"
