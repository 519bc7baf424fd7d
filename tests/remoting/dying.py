"""Programs that are killed at any moment, and what the next one pays for it: ``python -m tests.remoting.dying`` prints the figures of docs/robustness.md.

Each way to die is a program that says "on" and then keeps the device busy.  It is killed with SIGKILL at random moments, and it is measured how long the next
program takes from its start until its first synchronous calls have returned.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.remoting.conftest import Worker, worker

SPIN = """
SPIN = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u32 turns) {
    .reg .pred %p; .reg .b32 %r<3>;
    ld.param.u32 %r2, [turns]; mov.u32 %r1, 0;
again:
    add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, %r2; @%p bra again;
    ret;
}
.visible .entry endless() {
again:
    bra again;
}
'''
begin(); spin = load(SPIN, b"spin"); endless = load(SPIN, b"endless")
def launch(stream=0, turns=50000, blocks=2):
    return d.cuLaunchKernel(spin, blocks,1,1, 32,1,1, 0, stream, ((turns,), (ctypes.c_uint32,)), 0)
def on(): print("on", flush=True)
memory = ok(d.cuMemAlloc(40 << 20)); streams = [ok(d.cuStreamCreate(i % 2)) for i in range(8)]
"""

# What the program does when it dies; `while True` where it goes on queueing.
WAYS = {
    "one stream": "on()\nwhile True: launch()",
    "many streams": "on()\nwhile True:\n    for stream in streams: launch(stream)",
    "kernels of half a millisecond": "on()\nwhile True: launch(0, 10000, 1)",
    "the same, in many streams": "on()\nwhile True:\n    for stream in streams: launch(stream, 10000, 1)",
    "long kernels": "on()\nwhile True: launch(streams[0], 2_000_000)",
    "short kernels": "on()\nwhile True: launch(streams[1], 300, 1)",
    "queued, then idle": "for _ in range(20000): launch(0, 20000, 1)\non(); sys.stdin.readline()",
    "graphs": """
graph = ok(d.cuGraphCreate(0)); node = None
for _ in range(64):
    p = d.CUDA_KERNEL_NODE_PARAMS(); p.func = spin
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1
    p.kernelParams = ((50000,), (ctypes.c_uint32,))
    node = ok(d.cuGraphAddKernelNode(graph, [node] if node else [], 1 if node else 0, p))
run = ok(d.cuGraphInstantiate(graph, 0)); on()
while True: d.cuGraphLaunch(run, streams[1])
""",
    "cooperative": "on()\nwhile True: d.cuLaunchCooperativeKernel(spin, 8,1,1, 32,1,1, 0, streams[0], ((50000,), (ctypes.c_uint32,)))",
    "host functions": """
import time
call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.002)); address = ctypes.cast(call, ctypes.c_void_p).value
on()
while True:
    for stream in streams: launch(stream, 5000); d.cuLaunchHostFunc(stream, d.CUhostFn(address), 0)
""",
    "copies": """
data = bytearray(8 << 20); pointer = (ctypes.c_char * len(data)).from_buffer(data); host = ctypes.addressof(pointer); on()
while True:
    for stream in streams:
        launch(stream); d.cuMemcpyHtoDAsync(memory, host, len(data), stream); d.cuMemcpyDtoDAsync(memory, int(memory) + (16 << 20), 16 << 20, stream)
        d.cuMemsetD8Async(memory, 1, 40 << 20, stream)
""",
    "a value that never comes": """
for stream in streams: ok(d.cuStreamWaitValue32(stream, memory, 7, 1)); launch(stream)
on(); d.cuCtxSynchronize()
""",
    "endless": "for stream in streams: d.cuLaunchKernel(endless, 2,1,1, 32,1,1, 0, stream, 0, 0)\non(); d.cuCtxSynchronize()",
    "endless on the default stream": "d.cuLaunchKernel(endless, 2,1,1, 32,1,1, 0, 0, 0, 0); on()\nwhile True: launch()",
    "a large module": """
body = b"".join(b".visible .entry k%d() { .reg .b32 %%r<9>; mov.u32 %%r1, 1;" % i + b" add.u32 %r2, %r1, %r1; mul.lo.u32 %r3, %r2, %r1;" * 500 + b" ret; }\\n" for i in range(500))
image = b".version 7.0\\n.target sm_70\\n.address_size 64\\n" + body + b"\\0"
on(); d.cuModuleLoadData(image)
while True: launch()
""",
    "printing": """
PRINT = b'''.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 done) vprintf(.param .b64 format, .param .b64 arguments);
.global .b8 text[8] = {110, 111, 105, 115, 101, 32, 10, 0};
.visible .entry k() {
    .reg .b64 %rd<3>;
    mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, 0;
again:
    { .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; call.uni (c), vprintf, (a, b); }
    bra again;
}'''
f = load(PRINT, b"k")
for stream in streams: d.cuLaunchKernel(f, 2,1,1, 32,1,1, 0, stream, 0, 0)
on(); d.cuCtxSynchronize()
""",
    "synchronous copies": """
data = bytearray(40 << 20); host = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data)); on()
while True: d.cuMemcpyHtoD(memory, host, len(data)); d.cuMemcpyDtoH(host, memory, len(data))
""",
    "an endless kernel in a graph": """
graph = ok(d.cuGraphCreate(0)); p = d.CUDA_KERNEL_NODE_PARAMS(); p.func = endless
p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1
for _ in range(8): ok(d.cuGraphAddKernelNode(graph, [], 0, p))
run = ok(d.cuGraphInstantiate(graph, 0)); on()
while True: d.cuGraphLaunch(run, streams[1]); d.cuStreamSynchronize(streams[1])
""",
    "managed memory": """
managed = ok(d.cuMemAllocManaged(8 << 20, 1)); store = load(STORE_U32, b"store"); on()
while True:
    ctypes.memset(int(managed), 1, 8 << 20); launch()
    d.cuLaunchKernel(store, 1,1,1, 1,1,1, 0, 0, ((int(managed), 7), (ctypes.c_uint64, ctypes.c_uint32)), 0); d.cuCtxSynchronize()
""",
    "half a handshake, half a request": """
import struct
from gpukernel.remoting.lease_file import read_lease_file
from gpukernel.remoting.worker_query import WorkerQuery
lease = read_lease_file(os.environ["GPUKERNEL_LEASE_FILE"]); endpoints = lease.devices[0]; ends = []
import socket
for _ in range(8):
    end = socket.socket(socket.AF_UNIX); end.connect(endpoints[0].removeprefix("unix:")); end.sendall(bytes(9)); ends.append(end)
    ends.append(WorkerQuery(endpoints, lease.secret)); ends[-1]._socket.sendall(struct.pack("<IHH", 1 << 20, 3, 0) + bytes(5000))
on()
while True: launch()
""",
    "freed in stream order": """
on()
while True:
    for stream in streams:
        got, block = d.cuMemAllocAsync(1 << 18, stream)
        launch(stream)
        if not int(got): d.cuMemFreeAsync(block, stream)
""",
}

# It is killed on its way into the slice, or at its first calls.
BEGINNING = "the first calls"
WAYS[BEGINNING] = ""

# The next program: it needs the memory that the dead one had, and runs a kernel.
NEXT = """
begin(); memory = ok(d.cuMemAlloc(48 << 20)); f = load(STORE_U32, b"store")
ok(d.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, 0, ((int(memory), 7), (ctypes.c_uint64, ctypes.c_uint32)), 0)); ok(d.cuCtxSynchronize())
out = bytearray(4); ok(d.cuMemcpyDtoH(out, memory, 4)); assert out[0] == 7
print("served", flush=True)
"""


async def until_served(one: Worker) -> float:
    """Start the next program and return the seconds until it was served; it raises where it was refused."""
    start = time.perf_counter()
    program = one.start(NEXT)
    out, err = await asyncio.to_thread(program.communicate, timeout=120)
    seconds = time.perf_counter() - start
    if out != "served\n":
        raise RuntimeError(f"after {seconds:.1f} s: {err.strip()[-400:]}")
    return seconds


async def begun(one: Worker, way: str) -> subprocess.Popen[str]:
    """Start a program that keeps the device busy in that way, and wait until it does, but for `BEGINNING`."""
    program = one.start(SPIN + WAYS[way])
    if way == BEGINNING:
        return program
    assert program.stdout is not None
    said = await asyncio.to_thread(program.stdout.readline)
    assert said == "on\n", program.communicate()
    return program


async def killed(one: Worker, way: str, after: float) -> None:
    """Have a program die in that way, so many seconds after it began."""
    program = await begun(one, way)
    await asyncio.sleep(after)
    program.kill()
    await asyncio.to_thread(program.communicate)


def began_anew(one: Worker) -> bool:
    """Return whether the worker has executed itself anew since it was started."""
    return b"--resume" in Path(f"/proc/{one.handle.pid}/cmdline").read_bytes().split(b"\0")


async def _figures(ways: list[str], rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    print(f"{'way':32} {'killed':>6} {'median':>7} {'worst':>7}  seconds until the next program was served")
    async with worker(memory_mib=64) as one:
        idle = [await until_served(one) for _ in range(rounds)]
    print(f"{'(an idle slice)':32} {rounds:6} {statistics.median(idle):7.2f} {max(idle):7.2f}", flush=True)
    for way in ways:
        times, refused = [], []
        with tempfile.TemporaryDirectory() as folder:
            async with worker(memory_mib=64, time_slicing=Path(folder) / "time-slicing") as one:
                for _ in range(rounds):
                    await killed(one, way, chance.uniform(0, 0.5 if way == BEGINNING else 2))
                    start = time.perf_counter()
                    while True:
                        try:
                            await until_served(one)
                            break
                        except RuntimeError as error:
                            refused.append(str(error))
                    times.append(time.perf_counter() - start)
                anew = ", a fresh context" if began_anew(one) else ""
        print(
            f"{way:32} {rounds:6} {statistics.median(times):7.2f} {max(times):7.2f}  refused {len(refused)} {refused[:1] or ''}{anew}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("ways", nargs="*", default=list(WAYS))
    words = parser.parse_args()
    sys.exit(asyncio.run(_figures(words.ways, words.rounds, words.seed)))
