"""This process's account, also where the machine knows no name and no home for it, as in containers that run under any number."""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path

import platformdirs

from gpukernel.common.errors import PoolError

__all__ = ["account_name", "in_home", "own_name", "own_names", "state_in_home"]


def account_name(uid: int) -> str:
    """Return the name of an account of this machine; ``uid:12345``, which no account can be called, for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


def own_name() -> str:
    """Return the name of the person who runs this process: by the environment (``LOGNAME``, ``USER``), else of the account."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return account_name(os.getuid())


def own_names() -> set[str]:
    """Return the names by which a pool may know this process's person: over a unix socket an account without a name has another one
    than the environment says.
    """
    ours = account_name(os.getuid())
    return {own_name(), ours} if ours.startswith("uid:") else {own_name()}


def in_home(path: str | Path, instead: str) -> Path:
    """Return `path` with the home directory for its ``~``.

    Raises
    ------
    PoolError
        Where this account has no home directory; `instead` is the end of the sentence, which says what to do.
    """
    expanded = Path(os.path.expanduser(path))
    if expanded.parts[:1] and expanded.parts[0].startswith("~"):
        raise _homeless(instead)
    return expanded


def state_in_home(name: str, instead: str) -> Path:
    """Return the XDG state directory of `name`; raises as `in_home` does."""
    try:
        return in_home(platformdirs.user_state_dir(name), instead)
    except RuntimeError:  # what newer versions of platformdirs say
        raise _homeless(instead) from None


def _homeless(instead: str) -> PoolError:
    return PoolError(f"The account {own_name()} has no home directory on this machine; {instead}")
