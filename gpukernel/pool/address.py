"""Where a pool is: its state directory, its socket, its tokens."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs

from gpukernel.pool.errors import PoolError

__all__ = [
    "MADE_BY",
    "ON_BEHALF",
    "TEACHES",
    "door_of",
    "is_network_address",
    "resolve_address",
    "resolve_state",
    "short_directory",
    "socket_path",
]

ON_BEHALF = "gpukernel-on-behalf-bin"
"""The header with the name, in UTF-8, of the person that a call is made for; from those who may speak for others."""

MADE_BY = "gpukernel-made-by-bin"
"""The header with the name of the person whom an administrator's program (a web page) obeys; it gives no rights, but is written down."""

TEACHES = "gpukernel-teaches-bin"
"""The header with a course, in UTF-8, that the person on whose behalf a call is made instructs by a role that only the caller knows: a
JupyterHub's.  It may occur several times."""

_LONGEST_SOCKET_DIRECTORY = 60  # of the 107 characters that a unix socket's path may have


def resolve_state(explicit: Path | str | None = None) -> Path:
    """The state directory: `explicit`, else ``GPUKERNEL_STATE``, else the user's XDG state directory."""
    chosen = explicit or os.environ.get("GPUKERNEL_STATE") or platformdirs.user_state_dir("gpukernel")
    return Path(chosen).expanduser().absolute()


def short_directory(state: Path) -> Path:
    """A directory for sockets: `state`, or where its path is too long for one, a short stand-in under ``/tmp``.

    Raises
    ------
    PoolError
        When somebody else owns the stand-in.
    """
    if len(str(state)) <= _LONGEST_SOCKET_DIRECTORY:
        return state
    base = Path(f"/tmp/gpukernel-{os.getuid()}")
    path = base / hashlib.sha256(str(state).encode()).hexdigest()[:12]
    for directory in (base, path):
        directory.mkdir(mode=0o711, exist_ok=True)
        if directory.is_symlink() or directory.stat().st_uid != os.getuid():
            raise PoolError(
                f"{directory} belongs to somebody else; choose a state directory with a shorter path."
            )
    return path


def socket_path(state: Path) -> Path:
    """The pool's unix socket of a state directory."""
    return short_directory(state) / "pool.sock"


def door_of(directory: Path) -> Path:
    """The folder beside the pool's socket, and beside workers, that containers may be given: sockets and nothing else.

    The pool's socket there knows nobody's account: in a container everybody may be root, or another number than they are outside.
    """
    return directory / "door"


def is_network_address(text: str) -> bool:
    """Whether `text` is ``HOST:PORT`` or ``tls://HOST:PORT``."""
    host, _, port = text.removeprefix("tls://").rpartition(":")
    return bool(host) and "/" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def resolve_address(explicit: str | None = None, state: Path | None = None) -> str:
    """The pool's address: `explicit`, else ``GPUKERNEL_POOL``, else the socket in the state directory.

    Returns
    -------
    str
        ``unix:/path/pool.sock``, ``HOST:PORT``, ``tls://HOST:PORT``, or the whole path of a connection file
        (`gpukernel.pool.connection`).

    Raises
    ------
    PoolError
        When the address has none of these forms.
    """
    chosen = explicit or (None if state else os.environ.get("GPUKERNEL_POOL"))
    if not chosen:
        return f"unix:{socket_path(resolve_state(state))}"
    if chosen.startswith("unix:/") or is_network_address(chosen):
        return chosen
    file = Path(chosen).expanduser()
    if file.is_file():
        return str(file.absolute())
    raise PoolError(
        f"“{chosen}” is no pool's address and no connection file; write unix:/path/pool.sock, HOST:PORT, "
        "tls://HOST:PORT or the file's path."
    )
