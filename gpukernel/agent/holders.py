"""The person and course of each worker of this server, for the agent's log lines, kept across a restart of the agent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from pathlib import Path

from gpukernel.agent.keys import Key
from gpukernel.common.logs import fields

__all__ = ["Holders"]


class Holders:
    """A small file for each worker in `directory`, with its person and course; `server` is this server's name."""

    def __init__(self, directory: Path, server: str) -> None:
        self._directory = directory
        self._server = server
        self._known: dict[Key, tuple[str, str]] = {}
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        for path in directory.glob("*.json"):
            lease_id, _, index = path.stem.rpartition("-")
            with contextlib.suppress(OSError, ValueError, KeyError):
                kept = json.loads(path.read_text(encoding="utf-8"))
                self._known[lease_id, int(index)] = str(kept["person"]), str(kept["course"])

    def begin(self, key: Key, person: str, course: str) -> None:
        """Note the holder of a worker that is about to start."""
        self._known[key] = person, course
        with contextlib.suppress(OSError):  # without the file only log lines lack the names
            self._path(key).write_text(json.dumps({"person": person, "course": course}), encoding="utf-8")

    def end(self, key: Key) -> None:
        """Forget the holder of a worker that is dead."""
        self._known.pop(key, None)
        self._path(key).unlink(missing_ok=True)

    def keep(self, living: Collection[Key]) -> None:
        """Forget all but the holders of `living`."""
        for key in self._known.keys() - set(living):
            self.end(key)

    def about(self, key: Key) -> dict[str, dict[str, str]]:
        """Return logging's ``extra`` for a line about the worker of `key`."""
        person, course = self._known.get(key, ("", ""))
        device = f"{self._server}/{key[1]}"
        return fields(lease=key[0], person=person, course=course, server=self._server, device=device)

    def _path(self, key: Key) -> Path:
        return self._directory / f"{key[0]}-{key[1]}.json"
