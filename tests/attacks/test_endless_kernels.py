"""Starve the neighbours of a simulated device with kernels that never end, launched in many streams of slices with tiny weights.

The attacker gains the processor: on a simulated device every running kernel is a thread, and nothing made one rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.remoting.conftest import AT_FULL_SPEED, Worker, worker

BEGIN = """
.version 7.0
.target sm_70
.address_size 64
"""
# Ways to hold a processor for ever.  Each looks for the end of its time somewhere else, or nowhere.
ENDLESS = {
    "a loop": """
.visible .entry k() {
again:
    bra again;
}""",
    "a loop of 20,000 instructions": """
.visible .entry k() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 1;
again:
"""
    + "    mad.lo.u32 %r1, %r1, %r1, %r1;\n" * 20_000
    + """    bra again;
}""",
    "a table of branches": """
.visible .entry k() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 0;
again:
targets: .branchtargets again;
    brx.idx %r1, targets;
}""",
    "calls without a loop": """
.visible .func f(.param .b32 depth) {
    .reg .b32 %r<3>; .reg .pred %p;
    ld.param.u32 %r1, [depth]; setp.eq.u32 %p, %r1, 0; @%p ret;
    sub.u32 %r2, %r1, 1;
    { .param .b32 a; st.param.b32 [a], %r2; call.uni f, (a); }
    { .param .b32 b; st.param.b32 [b], %r2; call.uni f, (b); }
    ret;
}
.visible .entry k() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 48;
    { .param .b32 a; st.param.b32 [a], %r1; call.uni f, (a); }
    ret;
}""",
    "a barrier": """
.visible .entry k() {
again:
    bar.sync 0;
    bra again;
}""",
    "naps": """
.visible .entry k() {
again:
    nanosleep.u32 1;
    bra again;
}""",
    "printing": """
.extern .func (.param .b32 done) vprintf(.param .b64 format, .param .b64 arguments);
.global .b8 text[8] = {110, 111, 105, 115, 101, 32, 0, 0};
.visible .entry k() {
    .reg .b64 %rd<3>;
    mov.u64 %rd1, text; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, 0;
again:
    { .param .b64 a; .param .b64 b; .param .b32 c; st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; call.uni (c), vprintf, (a, b); }
    bra again;
}""",
    # As good as endless: a grid of two billion blocks, none of which does anything.
    "blocks": """
.visible .entry k() {
    ret;
}""",
}

HOSTILE = """
begin(); f = load(open(os.environ["KERNEL"], "rb").read(), b"k")
streams = [ok(d.cuStreamCreateWithPriority(1, -1 if i % 2 else 0)) for i in range(8)]
for stream in streams: ok(d.cuLaunchKernel(f, int(os.environ["BLOCKS"]),1,1, 64,1,1, 0, stream, 0, 0))
print("on", flush=True); sys.stdin.readline()
"""

# Kernels that end, one after another, with as many threads as the hostile ones: beside what else runs on this machine, the system
# gives more to more threads.  It waits for none, so that the next one is always there.
HONEST = """
SPIN = b'''
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin() {
    .reg .pred %p; .reg .b32 %r<2>;
    mov.u32 %r1, 0;
again:
    add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 20000; @%p bra again;
    ret;
}
'''
begin(); f = load(SPIN, b"spin")
streams = [ok(d.cuStreamCreate(1)) for _ in range(8)]
def spin():
    for stream in streams: ok(d.cuLaunchKernel(f, 4,1,1, 64,1,1, 0, stream, 0, 0))
spin(); ok(d.cuCtxSynchronize()); print("on", flush=True)
while True: spin()
"""


def processor_seconds(pid: int) -> float:
    """Return what the process has had of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def started(one: Worker, code: str) -> subprocess.Popen[str]:
    """Start `code` on the worker, and wait until it says that it is on."""
    program = one.start(code)
    assert program.stdout is not None
    said = await asyncio.to_thread(program.stdout.readline)
    assert said == "on\n", program.communicate()
    return program


@contextlib.asynccontextmanager
async def workers(shared: Path, *weights: float) -> AsyncIterator[list[Worker]]:
    """Workers of one device, with these weights."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(worker(time_slicing=shared, weight=weight)) for weight in weights
        ]


async def shares(folder: Path, kinds: list[str], seconds: float) -> tuple[list[float], list[float]]:
    """Return the shares of the processor, and of the device's turns, of an honest slice of weight 0.5 and of hostile ones of weight 0.02, all the time at work."""
    async with workers(folder / "time-slicing", 0.5, *[0.02] * len(kinds)) as everybody, asyncio.timeout(120):
        programs = []
        with pytest.MonkeyPatch.context() as environment:
            for number, (one, kind) in enumerate(zip(everybody[1:], kinds, strict=True)):
                text = folder / f"{number}.ptx"
                text.write_text(BEGIN + ENDLESS[kind])
                environment.setenv("KERNEL", str(text))
                environment.setenv("BLOCKS", str(2**31 - 1 if kind == "blocks" else 4))
                programs.append(await started(one, HOSTILE))
        programs.append(await started(everybody[0], HONEST))
        before = [processor_seconds(one.handle.pid) for one in everybody]
        turns = [(await one.handle.status()).turn_seconds for one in everybody]
        await asyncio.sleep(seconds)
        used = [
            processor_seconds(one.handle.pid) - start for one, start in zip(everybody, before, strict=True)
        ]
        had = [
            (await one.handle.status()).turn_seconds - start
            for one, start in zip(everybody, turns, strict=True)
        ]
        for program in programs:
            program.kill()
            program.communicate()
        return [each / sum(used) for each in used], [each / sum(had) for each in had]


@AT_FULL_SPEED
def test_endless_kernels_get_no_more_than_their_weight(tmp_path: Path) -> None:
    # What else runs on this machine disturbs the shares of the processor, which the system gives by threads: the hostile slices had
    # 88 % of it before.  One undisturbed run of three is enough.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (honest, *hostile), turns = asyncio.run(shares(folder, list(ENDLESS), 6))
        together = 0.5 + 0.02 * len(hostile)
        if (
            honest > 0.6 * 0.5 / together
            and max(hostile) < honest / 4
            and max(turns[1:]) < 1.5 * 0.02 / together
        ):
            return
    pytest.fail(f"of the processor {honest:.2f} and {hostile}; of the turns {turns}")
