"""The log of the servers: lines for people, or one JSON object a line.

The standard library's logging, with two formatters: gRPC, SQLAlchemy and Alembic speak through it already, and a line of ours is a
sentence and five names, for which a library of its own would be more to install than to write.

A line about a lease carries `FIELDS`; `of_lease` and `fields` make them, for logging's ``extra``.

Guarantees
----------
* One event is one line: control characters in what people and programs say are written as escapes.  Only a traceback has more, and
  in JSON not even that.
* Tokens and secrets are in no line.
* Lines of one kind (the same text but for its figures) are written `LINES_A_MINUTE` times a minute, those with a traceback
  `TRACEBACKS_A_MINUTE` times; the others are summed up in one line.  So nobody fills a disk by what they make a server say.
"""

from __future__ import annotations

import enum
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from gpukernel.common.model import Lease, Slice

__all__ = ["FIELDS", "Form", "Level", "configure", "fields", "of_lease", "one_line"]

FIELDS = ("lease", "person", "course", "server", "device")
"""The fields that tell who holds what where: the lease's id, its person and course, the GPU server, and the device as ``SERVER/INDEX``."""


class Level(enum.StrEnum):
    """The least important line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Form(enum.StrEnum):
    """The form of a line."""

    TEXT = "text"
    JSON = "json"


_LONGEST = 4000

LINES_A_MINUTE = 600
TRACEBACKS_A_MINUTE = 20
_MINUTE = 60.0
_MOST_KINDS = 1000


def fields(**known: str) -> dict[str, dict[str, str]]:
    """Return logging's ``extra`` with some of `FIELDS`, or other names."""
    return {"fields": known}


def of_lease(lease: Lease, piece: Slice | None = None) -> dict[str, dict[str, str]]:
    """Return logging's ``extra`` for a line about `lease`, or about its slice `piece` alone."""
    pieces = (piece,) if piece is not None else lease.slices
    return fields(
        lease=lease.id,
        person=lease.holder.person,
        course=lease.holder.course,
        server=",".join(dict.fromkeys(one.server for one in pieces)),
        device=",".join(one.label for one in pieces),
    )


def one_line(text: str) -> str:
    """Return `text` in one line, with escapes for what is not printed: no log and no terminal takes it for anything else."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Lines(logging.Formatter):
    """A line for people: ``2026-09-01 10:00:00.000 INFO pool.leases.manager: granted lease=… person=…``"""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("gpukernel.")
        line = f"{when}.{record.msecs:03.0f} {record.levelname} {name}: {one_line(record.getMessage())}"
        for field, value in getattr(record, "fields", {}).items():
            quoted = one_line(str(value))
            if not quoted or any(c in quoted for c in ' "=\\'):
                quoted = json.dumps(quoted, ensure_ascii=False)
            line += f" {field}={quoted}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """The same as an object: ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, the fields, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{when}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": one_line(record.getMessage()),
        }
        line |= {field: one_line(str(value)) for field, value in getattr(record, "fields", {}).items()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _Summing(logging.StreamHandler[TextIO]):
    """A handler that sums up what is repeated too often."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._begin = clock()
        self._counts: dict[tuple[str, int, str], tuple[int, int]] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; called with the handler's lock."""
        if self._clock() - self._begin >= _MINUTE:
            self.sum_up()
        kind = (record.name, record.levelno, str(record.msg)[:200])
        if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            kind = (record.name, record.levelno, "lines of many kinds")
        written, left_out = self._counts.get(kind, (0, 0))
        if written < (TRACEBACKS_A_MINUTE if record.exc_info else LINES_A_MINUTE):
            self._counts[kind] = (written + 1, left_out)
            super().emit(record)
            return
        self._counts[kind] = (written, left_out + 1)
        if self._timer is None:
            # Said also where nothing else is written afterwards.
            self._timer = threading.Timer(_MINUTE, self._later)
            self._timer.daemon = True
            self._timer.start()

    def _later(self) -> None:
        self.acquire()
        try:
            self._timer = None
            self.sum_up()
        finally:
            self.release()

    def sum_up(self) -> None:
        """Write how many lines of each kind were left out, and begin to count anew."""
        counts, self._counts, self._begin = self._counts, {}, self._clock()
        for (name, level, text), (_, left_out) in counts.items():
            if left_out:
                said = f"… {left_out:,} more like this in the last minute: {text}"
                super().emit(logging.LogRecord(name, level, "", 0, said, None, None))


def configure(level: Level, form: Form, stream: TextIO | None = None) -> None:
    """Log to `stream` (standard error where None) from now on; of other libraries warnings only."""
    handler = _Summing(stream or sys.stderr)
    handler.setFormatter(_Json() if form is Form.JSON else _Lines())
    chosen: int = getattr(logging, level.upper())
    logging.basicConfig(level=max(chosen, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("gpukernel").setLevel(chosen)
