"""The files of jobs on their node, in a folder that is root's, of the daemon and of the epilog (``gpukernel/native/slurm_hook``).

``FOLDER/NODE/jobs/ID`` has ``job``, what Slurm said of it; ``lease``, its lease file, which is its person's with mode 0600; and ``over``
once its epilog has run.

Guarantees
----------
* A file is the person's before its name is there, and is replaced in one step.
* Nobody but root can write in these folders, so no link leads elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from gpukernel.common.errors import PoolError
from gpukernel.remoting.lease_file import no_lease_text

__all__ = ["JobNote", "JobsFolder"]

MOST_BYTES = 4096


@dataclass(frozen=True)
class JobNote:
    """A job as it was put down; `restart` counts how often Slurm has started it again."""

    job: str
    user: int
    group: int
    cluster: str
    restart: int

    @property
    def person(self) -> str:
        """Return the name of its account, or its number where this machine knows none."""
        try:
            return pwd.getpwuid(self.user).pw_name
        except KeyError:
            return str(self.user)


class JobsFolder:
    """The folder of one node."""

    def __init__(self, folder: Path, node: str) -> None:
        self.path = folder / node
        self.jobs = self.path / "jobs"
        self.hooks, self.socket = self.path / "hooks", self.path / "socket"

    def prepare(self) -> None:
        """Make the folder.

        Raises
        ------
        PoolError
            It is not root's alone (where this is root), or cannot be made.
        """
        try:
            for place in (self.path.parent, self.path, self.jobs):
                place.mkdir(mode=0o711, parents=True, exist_ok=True)
                found = place.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                    raise PoolError(
                        f"{place} is not the daemon's alone; choose another folder with --folder."
                    )
                place.chmod(0o711)
        except OSError as error:
            raise PoolError(f"{self.path} cannot be made: {error.strerror}.") from None

    def ids(self) -> list[str]:
        """Return the numbers of the jobs that are there."""
        return sorted(one.name for one in self.jobs.iterdir() if one.name.isdigit())

    def begin(self, note: JobNote) -> None:
        """Put a job down, with a lease file that says where its slice is asked for.

        Raises
        ------
        OSError
            It cannot be written.
        """
        (self.jobs / note.job).mkdir(mode=0o711, exist_ok=True)
        self.write_lease(note, no_lease_text("", note.job, str(self.socket)))
        text = f"version 1\njob {note.job}\nuser {note.user}\ngroup {note.group}\ncluster {note.cluster}\nrestart {note.restart}\n"
        self._put(self.jobs / note.job / "job", text, 0o600)
        (self.jobs / note.job / "over").unlink(missing_ok=True)

    def note(self, job: str) -> JobNote | None:
        """Return what was put down of a job; None where nothing was, or not all of it."""
        try:
            with (self.jobs / job / "job").open("rb") as file:
                lines = file.read(MOST_BYTES).decode().splitlines()
            words = dict(line.split(" ", 1) for line in lines)
            if words["version"] != "1" or words["job"] != job:
                return None
            return JobNote(
                job, int(words["user"]), int(words["group"]), words["cluster"], int(words["restart"])
            )
        except (OSError, ValueError, KeyError):
            return None

    def is_over(self, job: str) -> bool:
        """Return whether the job's epilog has run."""
        return (self.jobs / job / "over").exists()

    def write_lease(self, note: JobNote, text: str) -> None:
        """Replace a job's lease file.

        Raises
        ------
        OSError
            It cannot be written.
        """
        self._put(self.jobs / note.job / "lease", text, 0o600, (note.user, note.group))

    def remove(self, job: str) -> None:
        """Remove what there is of a job; its epilog waits for this."""
        # The lease file is gone first: nobody finds the secret of a lease that is another's next.
        with contextlib.suppress(OSError):
            (self.jobs / job / "lease").unlink()
        shutil.rmtree(self.jobs / job, ignore_errors=True)

    def _put(self, file: Path, text: str, mode: int, owner: tuple[int, int] | None = None) -> None:
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        made = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(made, "w", encoding="utf-8") as target:
                target.write(text)
                if owner is not None and os.geteuid() == 0:
                    os.fchown(target.fileno(), *owner)
                os.fchmod(target.fileno(), mode)
            draft.replace(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
