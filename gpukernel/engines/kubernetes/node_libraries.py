"""Copies of the client's libraries on a node, where the plugin itself runs in a container and containers of pods cannot see into it.

Copies of one content have one folder, named by it, so that a new version changes nothing for pods that run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from gpukernel.engines.containers.specification import library_folders

__all__ = ["copy_libraries"]


def copy_libraries(folder: Path) -> Path:
    """Return the folder below `folder` that has this installation's libraries, made where it is not there yet.

    Raises
    ------
    OSError
        It cannot be written.
    """
    sources = sorted(library_folders(simulated=True))
    content = hashlib.sha256()
    for source in sources:
        for file in sorted(one for one in source.rglob("*") if one.is_file()):
            content.update(f"{source.name}/{file.relative_to(source)}\0".encode())
            content.update(hashlib.sha256(file.read_bytes()).digest())
    found = folder / content.hexdigest()[:16]
    if found.is_dir():
        return found
    draft = folder / f".{found.name}.{os.getpid()}"
    try:
        for source in sources:
            shutil.copytree(source, draft / source.name, symlinks=True)
        draft.chmod(0o755)
        draft.rename(found)
    except OSError:
        if not found.is_dir():  # another one was quicker
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return found
