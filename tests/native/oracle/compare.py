"""Generated kernels through every path, compared: ``python -m tests.native.oracle.compare`` (docs/robustness.md)."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tests.native.oracle.kernels import Kernel, generate
from tests.native.oracle.paths import (
    PTX_PATHS,
    Answer,
    DoesNotCompile,
    Host,
    Simulated,
    available,
    host_compiler,
)
from tests.native.oracle.shrink import shrunk
from tests.real_gpu import REAL

BATCH = 20


def _spent() -> float:
    """Return the seconds of a processor that this program and what it called have had."""
    return sum(os.times()[:4])


@dataclass
class Difference:
    """A kernel whose answers differ, or that one side alone executes."""

    kernel: Kernel
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.kernel.name}, {self.path}: {self.what}"


@dataclass
class Tally:
    kernels: int = 0
    executions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    launches: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take up what another process did with the same kernels."""
        self.executions += other.executions
        self.differences += other.differences
        self.launches += other.launches
        for what, seconds in other.seconds.items():
            self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def spend(self, what: str, since: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + _spent() - since


def first_difference(kernel: Kernel, expected: Answer | str, got: Answer | str) -> str:
    """Return where two answers differ first, in words; an empty text: nowhere."""
    if isinstance(expected, str) or isinstance(got, str):
        left, right = (a if isinstance(a, str) else "an answer" for a in (expected, got))
        return "" if left == right else f"the host has {left}, the GPU: {right}"
    count, size = len(kernel.slots), kernel.block[0] * kernel.block[1] * kernel.block[2]
    for n in range(0, len(expected.out), 8):
        if (mine := expected.out[n : n + 8]) != (its := got.out[n : n + 8]):
            thread, slot = divmod(n // 8, count)
            return (
                f"thread {thread % size} of block {thread // size}, {kernel.slots[slot]}: "
                f"0x{int.from_bytes(mine, 'little'):x} on the host, 0x{int.from_bytes(its, 'little'):x} on the GPU"
            )
    for name, whole, its in (("cell", expected.cells, got.cells), ("own memory", expected.own, got.own)):
        for n, (a, b) in enumerate(zip(whole, its, strict=True)):
            if a != b:
                where = (
                    f"cell {n // 8}" if name == "cell" else f"byte {n % 64} of thread {n // 64}'s own memory"
                )
                return f"{where}: 0x{a:02x} on the host, 0x{b:02x} on the GPU"
    return ""


def compare(kernels: list[Kernel], names: list[str], device: Simulated, tally: Tally) -> int:
    """Run kernels of one program through the host and the named paths; return how many were run.

    An error ends it on a real device.
    """
    source = "".join(k.text() for k in kernels)
    since = _spent()
    expected: dict[str, Answer | str] = {}
    host = Host(source)
    for kernel in kernels:
        expected[kernel.name] = host.run(kernel)
        if expected[kernel.name] != host.run(kernel, 1):
            tally.differences.append(Difference(kernel, "host", "its answer depends on the order of threads"))
    tally.spend("host", since)
    tally.kernels += len(kernels)
    for name in names:
        compiler, library = PTX_PATHS[name]
        if not library and any(k.library for k in kernels):
            continue
        since = _spent()
        ptx = compiler(source)
        tally.spend(name, since)
        since = _spent()
        module = device.load(ptx)
        for number, kernel in enumerate(kernels):
            got = module if isinstance(module, str) else device.run(module, kernel)
            tally.executions += 1
            tally.launches[name] += 1
            if what := first_difference(kernel, expected[kernel.name], got):
                tally.differences.append(Difference(kernel, name, what))
            if isinstance(got, str) and REAL:
                return number + 1
            if isinstance(got, str):
                module = device.load(ptx)  # the context was lost
        if not isinstance(module, str):
            device.unload(module)
        tally.spend("simulated", since)
    return len(kernels)


def compare_apart(kernels: list[Kernel], names: list[str], level: int | None, tally: Tally) -> None:
    """Do the same on a real device in processes of their own: an error of a kernel is its process's."""

    def work(connection: Connection, some: list[Kernel], name: str) -> None:
        own = Tally()
        done = compare(some, [name], Simulated(None, level), own)
        connection.send((own, done))

    tally.kernels += len(kernels)
    for name in names:
        rest = kernels
        while rest:
            mine, its = multiprocessing.get_context("fork").Pipe()
            process = multiprocessing.get_context("fork").Process(target=work, args=(its, rest, name))
            process.start()
            its.close()
            if not mine.poll(300):
                process.kill()
                raise TimeoutError(f"{name} has given no answer for 300 s, in {rest[0].name} or a later one")
            own, done = mine.recv()
            process.join()
            tally.add(own)
            rest = rest[done:]


def report(found: Difference, folder: Path, device: Simulated, attempts: int = 150) -> None:
    """Print a difference, and save the kernel as it was and, made shorter in so many attempts, as it became."""
    print(found, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{found.kernel.name}-{found.path}.cu"
    file.write_text(f"// {found}\n{found.kernel.text()}")
    if not attempts or found.path == "host":
        return

    def differs(kernel: Kernel) -> str:
        try:
            ptx = PTX_PATHS[found.path][0](kernel.text())
            expected, other = (Host(kernel.text()).run(kernel, order) for order in (0, 1))
        except DoesNotCompile:
            return ""
        if expected != other or isinstance(expected, str):
            return ""
        module = device.load(ptx)
        if isinstance(module, str):
            return module
        try:
            return first_difference(kernel, expected, device.run(module, kernel))
        finally:
            device.unload(module)

    kernel, what = shrunk(found.kernel, differs, attempts)
    short = file.with_suffix(".short.cu")
    short.write_text(f"// {kernel.name}, {found.path}: {what}\n{kernel.text()}")
    short.with_suffix(".ptx").write_text(PTX_PATHS[found.path][0](kernel.text()))
    print(f"    {what}; see {short}", flush=True)


def batch(seed: int, number: int, size: int) -> list[Kernel]:
    """Return one program's kernels; every third program does without CUDA's library, so that Clang can compile it."""
    first = (seed << 32) + number * size
    return [generate(n, library=number % 3 != 2) for n in range(first, first + size)]


def paths_of(number: int, names: list[str], each: int) -> list[str]:
    """Return the paths of one program: ``each`` of NVRTC's in turn, and Clang's where they can compile it."""
    nvrtc, other = ([n for n in names if n.startswith("nvrtc") is which] for which in (True, False))
    some = [nvrtc[(number + n) % len(nvrtc)] for n in range(min(each, len(nvrtc)))]
    return some + (other if number % 3 == 2 else [])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--count", type=int, default=1 << 40, help="programs, at most")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--batch", type=int, default=BATCH, help="kernels of one program")
    options.add_argument("--each", type=int, default=2, help="of NVRTC's ways to compile, for each program")
    options.add_argument("--path", action="append", help="this way to compile alone: " + ", ".join(PTX_PATHS))
    options.add_argument(
        "--kernel", type=int, help="the kernel of this number alone (k7 is 7), through every path"
    )
    options.add_argument(
        "--no-library", action="store_true", help="with --kernel: as in the programs that Clang compiles"
    )
    options.add_argument(
        "--shrink", type=int, default=150, help="attempts to make a kernel that differs shorter"
    )
    options.add_argument("--level", type=int, help="of optimisation of a real device's own compiler, 0 to 4")
    options.add_argument("--library", type=Path, help="the simulated GPU's library, if it is another one")
    options.add_argument(
        "--found", type=Path, default=Path("build/oracle"), help="the folder for what differs"
    )
    options.add_argument("--stop-after", type=int, default=20, help="differences")
    chosen = options.parse_args()
    names = chosen.path or available()
    if host_compiler() is None or not names:
        print("This needs a C++ compiler, and NVRTC's wheel or Clang.", file=sys.stderr)
        return 2
    device = None if REAL else Simulated(chosen.library)
    tally, begin = Tally(), time.monotonic()
    number = 0
    while time.monotonic() - begin < chosen.seconds and number < chosen.count:
        if chosen.kernel is not None:
            kernels, some = [generate(chosen.kernel, not chosen.no_library)], names
        else:
            kernels, some = batch(chosen.seed, number, chosen.batch), paths_of(number, names, chosen.each)
        before = len(tally.differences)
        try:
            if device:
                compare(kernels, some, device, tally)
            else:
                compare_apart(kernels, some, chosen.level, tally)
        except DoesNotCompile as error:
            chosen.found.mkdir(parents=True, exist_ok=True)
            file = chosen.found / f"program-{chosen.seed}-{number}.cu"
            file.write_text("".join(k.text() for k in kernels))
            print(f"program {number} of seed {chosen.seed} does not compile; see {file}\n{str(error)[:2000]}")
            return 1
        for found in tally.differences[before:]:
            if device:
                report(found, chosen.found, device, chosen.shrink)
            else:
                print(found, flush=True)
        if chosen.kernel is not None or len(tally.differences) >= chosen.stop_after:
            break
        number += 1
        if sys.stderr.isatty():
            print(f"\r{tally.kernels} kernels …", end="\r", file=sys.stderr, flush=True)
    seconds = time.monotonic() - begin
    print(
        f"seed {chosen.seed}: {tally.kernels} kernels, {tally.executions} compared executions in {seconds:.0f} s "
        f"({', '.join(f'{n} {s:.0f} s' for n, s in tally.seconds.items())}), {len(tally.differences)} differences"
    )
    return 1 if tally.differences else 0


if __name__ == "__main__":
    sys.exit(main())
