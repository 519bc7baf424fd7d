"""Programs at a terminal of a chosen size, and what they write there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>()][0-9A-B]?)")


def without_control(text: str) -> str:
    """Return what a terminal shows of `text`, as long as nothing in it moves the cursor up."""
    return _CONTROL.sub("", text).replace("\r\n", "\n").replace("\r", "")


class Terminal:
    """A program at a terminal; a context manager, which ends it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERMINAL_WIDTH", "GITHUB_ACTIONS")
        kept = {
            name: value for name, value in environment.items() if name not in unset or name not in os.environ
        }
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={"TERM": "xterm-256color", **kept},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # shells want to be at home there
        )
        os.close(theirs)
        self.said = ""

    def type(self, keys: str) -> None:
        """Type `keys`."""
        os.write(self._ours, keys.encode())

    def wait_for(self, pattern: str, seconds: float = 20) -> re.Match[str]:
        """Read until `pattern` is on the screen, and return where; what was said up to there is forgotten."""
        end = time.monotonic() + seconds
        while (match := re.search(pattern, without_control(self.said))) is None:
            assert time.monotonic() < end, f"no {pattern!r} in {self.said!r}"
            if not self._read(end - time.monotonic()):
                raise AssertionError(f"no {pattern!r} in all of {self.said!r}")
        self.said = ""
        return match

    def rest(self, seconds: float = 60) -> str:
        """Read until the program ends, and return everything that it wrote."""
        end = time.monotonic() + seconds
        while self._read(end - time.monotonic()):
            assert time.monotonic() < end, f"it goes on after {self.said!r}"
        self.process.wait(10)
        return self.said

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(seconds, 0))
        if not ready:
            return True
        try:
            read = os.read(self._ours, 65536)
        except OSError:  # the last program at the terminal has ended
            return False
        self.said += read.decode(errors="replace")
        return bool(read)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
