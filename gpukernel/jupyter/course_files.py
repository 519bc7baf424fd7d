"""The course files: a course's notebooks, copied into the home directory when a single-user server first starts for the
course.

The server does it, as its person: nothing is written into a home directory by somebody with more rights.  What was given once is not
given again, so what somebody changed or deleted stays so.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

__all__ = ["hand_out", "notebooks_of_course"]

log = logging.getLogger(__name__)


def notebooks_of_course() -> tuple[str, list[Path]]:
    """Return the course and its files, as JupyterHub's spawner names them in ``GPUKERNEL_COURSE`` and
    ``GPUKERNEL_NOTEBOOKS``.
    """
    named = os.environ.get("GPUKERNEL_NOTEBOOKS", "")
    return os.environ.get("GPUKERNEL_COURSE", ""), [Path(part) for part in named.split(os.pathsep) if part]


def hand_out(course: str, sources: Iterable[Path], into: Path, memory: Path) -> list[Path]:
    """Copy each of `sources` that was not given before; return the copies.

    Parameters
    ----------
    into
        The directory that a folder named for the course is made in; files of a source that is a folder keep their places in it.
    memory
        A file that says what was given.
    """
    given = _given(memory)
    made: list[Path] = []
    changed = False
    for source in sources:
        entry = f"{course}:{source}"
        if entry in given:
            continue
        target = into / course / source.name if course else into / source.name
        try:
            if not target.exists():  # else somebody has it already, and it is theirs
                target.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, target)
                else:
                    shutil.copyfile(source, target)
                made.append(target)
        except OSError as error:
            log.warning("gpukernel: %s of course %s was not copied: %s", source, course, error)
            continue
        given.append(entry)
        changed = True
    if changed:
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps(given, indent=1))
    return made


def _given(memory: Path) -> list[str]:
    try:
        content = json.loads(memory.read_text())
    except (OSError, ValueError):
        return []
    return [str(entry) for entry in content] if isinstance(content, list) else []
