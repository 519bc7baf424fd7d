"""Lease files that a prolog writes as root for somebody else's job.

Guarantees
----------
* The file is the person's, mode 0600, before its name is there; whoever reads it sees all of it or nothing.
* Root writes and removes nothing in a folder that another account could exchange, a folder above it included: a link there would lead root elsewhere.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from gpukernel.cli.terminal.output import FAILED, NOT_THERE, USAGE, Problem

if TYPE_CHECKING:
    from gpukernel.common.model import Lease

__all__ = ["check_folder", "remove", "write_for"]


def check_folder(file: Path) -> None:
    """Raise a `Problem` where the folder of a lease file is not there, or as root where others may change what lies there."""
    folder = Path(os.path.realpath(file.parent))
    if not folder.is_dir():
        raise Problem(f"There is no folder {file.parent}.", NOT_THERE)
    if os.geteuid() != 0:
        return
    for place in (folder, *folder.parents):
        found = place.stat()
        shared = found.st_mode & 0o022 and (place == folder or not found.st_mode & stat.S_ISVTX)
        if found.st_uid != 0 or shared:
            raise Problem(
                f"{place} is not root's alone, so root writes and removes no lease file there; make a folder of root's, such as /run/gpukernel-jobs.",
                USAGE,
            )


def write_for(person: str, file: Path, lease: Lease) -> None:
    """Write a lease file; as root, for the account of that name where this machine has one."""
    from gpukernel.remoting.lease_file import lease_text

    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            with os.fdopen(descriptor, "w") as target:
                target.write(lease_text(lease))
                if os.geteuid() == 0 and (account := _account(person)) is not None:
                    os.fchown(target.fileno(), account.pw_uid, account.pw_gid)
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Problem(
            f"{file} cannot be written: {error.strerror}.  The lease is there; release it by its key, or ask again.",
            FAILED,
        ) from None


def remove(file: Path) -> None:
    """Remove a lease file, if it is there; as root only where `check_folder` lets it lie."""
    if not file.parent.is_dir():
        return
    check_folder(file)
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise Problem(f"{file} cannot be removed: {error.strerror}.", FAILED) from None


def _account(person: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(person)
    except (KeyError, ValueError):
        return None
