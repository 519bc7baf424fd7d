"""The agent's identity to the pool: its machine, the place where its workers live, its process, and what outlives that process.

Guarantees
----------
* One process at a time holds a state directory, so an agent knows every worker that can live there.
* A copy of a state directory is another place: its workers are not those of the original.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpukernel.agent.validity import Epochs, Validity, boot_seconds
from gpukernel.common.errors import PoolError
from gpukernel.common.machine import stable_machine_identity

__all__ = ["OwnIdentity", "workers_may_live"]

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the namespace whose /proc shows every process (linux/proc_ns.h)."""

WORKER_NAME = "gpukernel-worker"[:15]
"""The name of a worker's process, as far as Linux keeps it."""

SAVED_PART = 10
"""The end of the validity is written down when it has moved by this part of its length: an earlier end is a safe one."""


class OwnIdentity:
    """The identity of the agent on the state directory `state`, which it holds until its process ends.

    Raises
    ------
    PoolError
        Where another agent holds the directory.

    Attributes
    ----------
    machine, place, instance
        As `gpukernel.pool.domain.fencing.Registration` has them.
    proof
        A secret that shows a pool later that this is the same state directory, or a copy of it.
    validity, epochs
        As the agent before this one left them.
    """

    def __init__(self, state: Path, clock: Callable[[], float] = boot_seconds) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(state / "agent.lock")
        self._path = state / "agent.json"
        kept = self._read()
        known = str(kept.get("id", ""))
        self._id = known or secrets.token_hex(16)
        self.proof = _digest("proof", self._id)
        self._boot = _boot()
        self.instance = secrets.token_hex(8)
        self.machine = stable_machine_identity() or _digest(self._id)
        until = kept.get("until")
        same_start = bool(self._boot) and kept.get("boot") == self._boot
        self.validity = Validity(clock, float(until) if same_start and until is not None else None)
        self.epochs = Epochs(int(kept.get("epoch", 0)))
        self._saved: tuple[int, float] = (-1, 0.0)
        self.save(0.0)
        # Another file, or another start of the machine, is another place: there is no telling what lives at the first one.
        found = self._path.with_name("agent.lock").stat()
        self.place = _digest(self._id, self._boot, str(found.st_dev), str(found.st_ino))

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            return kept if isinstance(kept, dict) else {}
        except (OSError, ValueError):
            return {}

    def save(self, seconds: float) -> None:
        """Write down what the next agent has to know, where that is news; `seconds` is how long the pool lets workers live."""
        epoch, until = self.epochs.highest, self.validity.until
        if epoch == self._saved[0] and (until or 0.0) - self._saved[1] < seconds / SAVED_PART:
            return
        kept = {"id": self._id, "boot": self._boot, "epoch": epoch, "until": until}
        new = self._path.with_suffix(".new")
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            json.dump(kept, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        self._saved = epoch, until or 0.0

    def close(self) -> None:
        """Let another agent have the state directory."""
        with contextlib.suppress(OSError):
            os.close(self._lock)


def workers_may_live(processes: Path = Path("/proc")) -> bool:
    """Return whether workers may live on this machine already: one is in sight, or not every process of the machine is."""
    try:
        if (processes / "self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE or not (
            processes / "1"
        ).exists():
            return True
    except OSError:
        return True
    for path in processes.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if path.read_text().strip() == WORKER_NAME:
                return True
    return False


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise PoolError(
            f"An agent runs already on {path.parent}; stop it, or choose another directory with --state."
        ) from None
    return descriptor


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
