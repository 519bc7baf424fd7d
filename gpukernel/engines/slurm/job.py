"""The part of the supply that runs inside a job, beside the agent.

Slurm tells a job that it ends in several ways.  The batch step, which this is, hears the warning before the time limit and a cancellation;
only other steps hear the beginning of a preemption and a bare ``scancel --signal=TERM``.  So there is one more step, an `Ear`, that does
nothing but listen.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from gpukernel.engines.slurm.commands import Slurm, SlurmAway, SlurmRefused
from gpukernel.engines.slurm.records import connection_file

__all__ = ["Ear", "NotTheJobs", "await_way_in", "own_devices", "seconds_left", "term_to_self"]

WAY_IN_SECONDS = 900.0
CANCELLED_SECONDS = 30.0
"""Slurm's default for KillWait."""

RESERVE = 0.3
LARGEST_RESERVE = 10.0
"""A part of the time that is left, at most so many seconds of it, is for stopping the workers."""

LISTENING_SECONDS = 30.0
AGAIN_SECONDS = 2.0
"""Seconds from a signal to the next step: most jobs are over by then, and a step that is being started keeps its job completing for long."""

ENDING_SECONDS = 30.0
"""Seconds that the step has to end by itself; one whose srun was killed first can keep its job completing for longer."""

_LISTEN = "trap 'echo TERM; kill $!; exit 0' TERM; echo LISTENING; while :; do sleep 86400 & wait $!; done"


class NotTheJobs(Exception):
    """An error: it cannot be told which of the devices are the job's; the text is a sentence."""


class Ear:
    """A step of the job that hears SIGTERM; a context manager, in which `heard` is called for each, in a thread.

    The step ends when it has heard one, so that it holds no job up, and another one is started where Slurm lets it.  Where none can be
    started at first, that is said, and the job hears less.  Slurm tells nobody what it told before the step was there, so
    `await_listening` comes before anybody can hold a slice of the job.
    """

    def __init__(self, heard: Callable[[], None], environment: Mapping[str, str] = os.environ) -> None:
        self._heard = heard
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._over = threading.Event()
        self._starting = threading.Lock()  # no step is started once this is over
        self._settled = threading.Event()  # it listens, or never will

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, name="ear", daemon=True).start()
        return self

    def await_listening(self, seconds: float = LISTENING_SECONDS) -> None:
        """Wait until the step hears signals or is known to hear none; after `seconds` say that it hears none yet, and go on."""
        if not self._settled.wait(seconds):
            self._complain(f"srun has started no step for {seconds:.0f} s; they are once it has")

    def _listen(self) -> None:
        try:
            self._hear()
        finally:
            self._settled.set()

    def _hear(self) -> None:
        words = [
            "srun",
            "--ntasks=1",
            "--nodes=1",
            "--overlap",
            "--gres=none",
            "--mem=0",
            "--input=none",
            "--quiet",
        ]
        heard = True
        first = True
        while heard and not self._over.wait(0 if first else AGAIN_SECONDS):
            heard = False
            try:
                process = self._start([*words, "sh", "-c", _LISTEN])
            except OSError as error:
                self._complain(f"srun cannot be run here: {error.strerror}")
                return
            if process is None:
                return
            assert process.stdout is not None
            for line in process.stdout:
                self._settled.set()
                if line.strip() == "TERM":
                    heard = True
                    self._heard()
            status = process.wait()
            if first and not heard and not self._over.is_set():
                self._complain(f"srun ended with {status}")
            first = False

    def _start(self, words: list[str]) -> subprocess.Popen[str] | None:
        """Start the step; return None where this is over already."""
        with self._starting:
            if self._over.is_set():
                return None
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**self._environment, "SLURM_EXPORT_ENV": "ALL"},
            )
            return self._process

    def _complain(self, why: str) -> None:
        print(f"Preemption and “scancel --signal=TERM” are not heard: {why}.", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:
            self._over.set()
        if (process := self._process) is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def await_way_in(folder: Path, tag: str, start: int, seconds: float = WAY_IN_SECONDS) -> Path:
    """Return the connection file for this start of the job once the supply has written it.

    Raises
    ------
    FileNotFoundError
        With a sentence, after `seconds`.
    """
    path = connection_file(folder, tag, start)
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise FileNotFoundError(
                f"There is no {path} after {seconds:.0f} s: the supply that asked for this job does not run, "
                "or its folder is not the same here."
            )
        time.sleep(0.5)
    return path


async def seconds_left(slurm: Slurm, job_id: str, notice: float, now: float) -> float:
    """Return for how many seconds holders may stay when this job was told to end.

    At most `notice`; less where Slurm ends the job before that, and as if it were cancelled where Slurm does not answer.
    """
    kill = CANCELLED_SECONDS
    try:
        kill = await slurm.kill_wait()
        job = await slurm.job(job_id)
    except (SlurmAway, SlurmRefused):
        job = None
    stays = job is not None and job.state in ("RUNNING", "SUSPENDED")
    span = job.ends - now if job is not None and stays and job.ends else kill
    return max(min(span - min(span * RESERVE, LARGEST_RESERVE), notice), 0.0)


def own_devices(found: Iterable[tuple[str, int]], environment: Mapping[str, str]) -> set[str]:
    """Return the UUIDs of the job's own devices among those that NVML shows.

    Where the cluster keeps devices from jobs (``ConstrainDevices``), NVML shows no other ones.  Else Slurm names them by the numbers of
    their device files, or by UUID.

    Parameters
    ----------
    found
        UUID and minor number of each.

    Raises
    ------
    NotTheJobs
        Where Slurm names none, others, or parts of one.
    """
    shown = list(found)
    named = environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS") or ""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    words = [word.strip() for word in (named or visible).split(",") if word.strip()]
    if not words:
        raise NotTheJobs("Slurm gave this job no GPU that it names: SLURM_JOB_GPUS is empty.")
    if len(shown) == len(words):
        return {uuid for uuid, _ in shown}
    chosen = {
        uuid
        for uuid, minor in shown
        for word in words
        if word == str(minor) or (re.fullmatch(r"GPU-[0-9a-fA-F-]{4,}", word) and uuid.startswith(word))
    }
    if len(chosen) != len(words):
        raise NotTheJobs(
            f"This machine shows {len(shown)} GPUs, and “{','.join(words)[:80]}”, which Slurm gave this job, does not name "
            f"{len(words)} of them; gres.conf has a File= or AutoDetect=nvml for each."
        )
    return chosen


def term_to_self() -> None:
    """Send SIGTERM to this process, whose handler does the rest."""
    os.kill(os.getpid(), signal.SIGTERM)
