"""The standard error of a worker, for the agent's log.

A worker outlives its agent, so it writes into a file of its directory; the agent reads on where it, or the agent before it,
had read to.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["WorkerLog"]

_LONGEST_LOOK = 65536
_MOST_LINES = 50
_LARGEST_FILE = 1 << 20


class WorkerLog:
    """The ``worker.log`` of a worker's directory.

    A worker serves a stranger's program and could be made to write much: of one look at most `_MOST_LINES` lines are told, and how
    many there were more.  The file is emptied once it is larger than `_LARGEST_FILE` and read.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "worker.log"
        self._mark = directory / "worker.log.read"
        self._read = 0
        with contextlib.suppress(OSError, ValueError):
            self._read = int(self._mark.read_text())

    def new_lines(self, *, all_of_it: bool = False) -> list[str]:
        """Return the lines since the last call; a line without an end is left for the next, unless `all_of_it` is wanted."""
        try:
            size = self._path.stat().st_size
            if size <= self._read:
                return []
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read(_LONGEST_LOOK)
        except OSError:
            return []
        whole = len(data) if all_of_it or len(data) == _LONGEST_LOOK else data.rfind(b"\n") + 1
        if not whole:
            return []
        left = size - self._read - len(data)
        self._read += whole + (left if left > 0 else 0)
        if size > _LARGEST_FILE and whole == len(data):
            with contextlib.suppress(OSError):  # the worker appends: it goes on at the beginning
                os.truncate(self._path, 0)
                self._read = 0
        with contextlib.suppress(OSError):
            self._mark.write_text(str(self._read))
        text = data[:whole].decode(errors="replace")
        # Control characters would be obeyed by the terminal on which somebody reads the log.
        lines = ["".join(c if c.isprintable() else "\ufffd" for c in line) for line in text.splitlines()]
        lines = [line for line in lines if line.strip()]
        more = len(lines) - _MOST_LINES
        if more > 0 or left > 0:
            lines = [
                *lines[:_MOST_LINES],
                f"{max(more, 0)} lines and {max(left, 0)} bytes more are left out.",
            ]
        return lines
