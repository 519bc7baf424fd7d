"""Interleaved measurement: subjects are measured one after the other, in rounds, so that noise meets all of them.

A ratio is the median of the rounds' ratios, and not the ratio of two figures that were taken a minute apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Subject:
    """A program that stays and measures one figure whenever it is asked to."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._process = subprocess.Popen(
            self._command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def processes(self) -> set[int]:
        """Return its process id, and those of the processes that it has forked."""
        own = self.pid
        return {own, *map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split())}

    def line(self) -> str:
        """Return the next line that it prints by itself.  Raises RuntimeError where it has ended."""
        if self._process.stdout and (line := self._process.stdout.readline()):
            return line
        raise RuntimeError(f"{' '.join(self._command)} ended with {self._process.wait()}")

    def measure(self, figure: str) -> float:
        """Return one round of `figure`: seconds, or bytes per second.  Raises RuntimeError where the program has ended."""
        return float(self.ask(figure))

    def ask(self, question: str) -> str:
        """Return its line of reply to one line.  Raises RuntimeError where the program has ended."""
        to, answers = self._process.stdin, self._process.stdout
        if to and answers:
            with contextlib.suppress(BrokenPipeError):
                print(question, file=to, flush=True)
                if answer := answers.readline():
                    return answer
        raise RuntimeError(f"{' '.join(self._command)} ended with {self._process.wait()}")

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


_libc = ctypes.CDLL(None, use_errno=True)


def processor_seconds(process: int) -> float:
    """Return the time that all threads of a process have had of a processor, in seconds (``clock_getcpuclockid(3)``); raises OSError where there is none of this id."""
    clock = ctypes.c_int()
    if error := _libc.clock_getcpuclockid(process, ctypes.byref(clock)):
        raise OSError(error, os.strerror(error))
    return time.clock_gettime(clock.value)


@contextlib.contextmanager
def subject(program: str, environment: Mapping[str, str] | None = None, *words: str) -> Iterator[Subject]:
    """Run ``python -m benchmarks.subjects.PROGRAM`` as a `Subject`, until the block ends."""
    with contextlib.closing(
        Subject([sys.executable, "-m", f"benchmarks.subjects.{program}", *words], environment)
    ) as one:
        yield one


@contextlib.contextmanager
def compiled_subject(program: str) -> Iterator[Subject]:
    """Run ``benchmarks/subjects/PROGRAM.cpp`` as a `Subject`, until the block ends."""
    with compiled(program) as path, contextlib.closing(Subject([str(path)])) as one:
        yield one


@contextlib.contextmanager
def compiled(program: str, *options: str) -> Iterator[Path]:
    """Compile ``benchmarks/subjects/PROGRAM.cpp``, and yield the program until the block ends."""
    with tempfile.TemporaryDirectory(prefix="gpukernel-") as folder:
        path, source = Path(folder, program), ROOT / "benchmarks" / "subjects" / f"{program}.cpp"
        subprocess.run(["c++", "-std=c++20", "-O2", str(source), "-o", str(path), *options], check=True)
        yield path


@contextlib.contextmanager
def placed(processes: Mapping[int, int]) -> Iterator[None]:
    """Keep each process, by its id, with all its threads on the processor that is named; afterwards wherever they may be."""

    def place(process: int, processors: set[int]) -> None:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), processors)

    for process, processor in processes.items():
        place(process, {processor})
    try:
        yield
    finally:
        for process in processes:
            place(process, os.sched_getaffinity(0))


def answer(figures: Mapping[str, Callable[[], float]]) -> None:
    """Measure what each line on standard input names, until there is none: the subject's side."""
    for line in sys.stdin:
        print(figures[line.strip()](), flush=True)


Rounds = Sequence[Mapping[str, float]]


def interleaved(measure: Mapping[str, Callable[[], float]], rounds: int, in_a_row: int = 1) -> Rounds:
    """Measure each of `measure` in every round, `in_a_row` times, of which the median counts; a first round does not count."""
    found = [
        {name: statistics.median(one() for _ in range(in_a_row)) for name, one in measure.items()}
        for _ in range(rounds + 1)
    ]
    return found[1:]


def median(rounds: Rounds, name: str) -> float:
    return statistics.median(one[name] for one in rounds)


def median_ratio(rounds: Rounds, name: str, baseline: str) -> float:
    """Return the median of the ratios of each round's own two figures."""
    return statistics.median(one[name] / one[baseline] for one in rounds)
