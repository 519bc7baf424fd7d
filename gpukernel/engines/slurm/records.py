"""The supply's folder: one record for each job, the way into the pool for each start of it, and the state for whoever asks.

The folder lies where the nodes see it.  A job's name in Slurm carries its tag, so jobs are found again by themselves.

Guarantees
----------
* A record is written before Slurm is asked for its job: whatever dies in between, the job is known by its tag.
* Folder and files are open to nobody but their account, and appear whole or not at all.
* One supply at a time holds the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpukernel.common.errors import PoolError

__all__ = ["JobRecord", "Records", "connection_file"]

KEPT_LOGS = 20


@dataclass(frozen=True)
class JobRecord:
    """One job of the supply.

    Attributes
    ----------
    asked
        When it was asked for, in seconds since the epoch.
    seconds
        Its time limit.
    job
        Its id in Slurm; empty until that is known.
    starts
        For how many of its starts there is a way into the pool.
    expires
        When the newest of them ends.
    leaving
        Why it was told to leave; empty where it was not.
    served
        Its GPUs were in the pool.
    over
        It has ended; the pool still lists its servers.
    """

    tag: str
    asked: float
    seconds: float
    job: str = ""
    starts: int = 0
    expires: float = 0.0
    leaving: str = ""
    served: bool = False
    over: bool = False


def connection_file(folder: Path, tag: str, start: int) -> Path:
    """Return the file with the way into the pool for one start of a job: 0 is its first one."""
    return folder / f"{tag}-{start}.pool"


class Records:
    """The records of one supply in `folder`, which this process holds until it ends.

    Raises
    ------
    PoolError
        Where another supply holds the folder, or it cannot be used.
    """

    def __init__(self, folder: Path, *, hold: bool = True) -> None:
        self.folder = folder
        if not hold:
            return
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise PoolError(f"{folder} belongs to somebody else; name another folder with --folder.")
            folder.chmod(0o700)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PoolError(
                f"A supply runs already on {folder}; stop it, or give this one another --name."
            ) from None
        except OSError as error:
            raise PoolError(
                f"{folder} cannot be used: {error.strerror}; name another folder with --folder."
            ) from None

    def release(self) -> None:
        """Let another supply have the folder."""
        os.close(self._lock)

    def all(self) -> dict[str, JobRecord]:
        """Return the records by tag, oldest first; what is none is left alone."""
        found = []
        for path in self.folder.glob("*.job"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found.append(JobRecord(**json.loads(path.read_text())))
        return {record.tag: record for record in sorted(found, key=lambda one: (one.asked, one.tag))}

    def new(self, now: float, seconds: float) -> JobRecord:
        """Write a record for a job that is about to be asked for."""
        return self.save(JobRecord(secrets.token_hex(4), now, seconds))

    def save(self, record: JobRecord, **changes: Any) -> JobRecord:
        """Write a record with changes, and return it."""
        record = replace(record, **changes)
        self.write(self.folder / f"{record.tag}.job", json.dumps(asdict(record)))
        return record

    def remove(self, record: JobRecord, *, keep_log: bool = False) -> None:
        """Forget a job that is over, with its ways into the pool."""
        for path in (*self.folder.glob(f"{record.tag}-*.pool"), self.folder / f"{record.tag}.job"):
            path.unlink(missing_ok=True)
        if not keep_log:
            self.log(record.tag).unlink(missing_ok=True)
        logs = sorted(self.folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[:-KEPT_LOGS]:
            path.unlink(missing_ok=True)

    def log(self, tag: str) -> Path:
        """Return the file that Slurm writes a job's output to."""
        return self.folder / f"{tag}.log"

    def last_words(self, tag: str) -> str:
        """Return the last line of a job's output; empty where there is none."""
        try:
            with self.log(tag).open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 4000, 0))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[:300] if lines else ""

    def write(self, path: Path, text: str) -> None:
        """Write a file of mode 0600, whole or not at all."""
        draft = path.with_name(f".{path.name}.new")
        with os.fdopen(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    # --- the state for whoever asks ---

    def publish(self, state: dict[str, Any]) -> None:
        """Write the state that `state` reads."""
        self.write(self.folder / "state.json", json.dumps(state))

    def state(self) -> dict[str, Any] | None:
        """Return what was last published, None where nothing was."""
        try:
            found = json.loads((self.folder / "state.json").read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def is_held(self) -> bool:
        """Return whether a supply runs on the folder."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False
