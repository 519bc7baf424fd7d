"""The folder of module images that the workers of a server share, kept within bounds.

Workers write to it and read from it by name, and check what they read (``native/worker/calls/images.h``).  They do not see what else is
there, so the agent removes what is too much, and what is no image.
"""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

__all__ = ["ImageCache"]

MOST_BYTES = 1 << 30
MOST_FILES = 10_000
_NAME = re.compile(r"[0-9a-f]{64}(\.\d+)?")


class ImageCache:
    """The images in `directory`: the least recently used go where there are more than `MOST_BYTES`, or than `MOST_FILES`."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._most_files = most_files
        self._seen = 0

    def prune(self) -> None:
        """Remove what is too much; costs one system call where nothing was added."""
        with contextlib.suppress(OSError):
            changed = self._directory.stat().st_mtime_ns
            if changed != self._seen:
                self._prune()
                self._seen = self._directory.stat().st_mtime_ns

    def _prune(self) -> None:
        files = []
        for path in self._directory.iterdir():
            if path.name == "salt":
                continue
            with contextlib.suppress(OSError):
                status = path.lstat()
                if not _NAME.fullmatch(path.name) or not stat.S_ISREG(status.st_mode):
                    path.rmdir() if stat.S_ISDIR(status.st_mode) else path.unlink()
                elif status.st_size > self._most_bytes // 4:
                    path.unlink()
                else:
                    files.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in files)
        files.sort()
        for count, (_, size, path) in enumerate(files):
            if total <= self._most_bytes and len(files) - count <= self._most_files:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
