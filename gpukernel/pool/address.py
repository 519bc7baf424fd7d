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
    "resolve_address",
    "resolve_state",
    "resolve_token",
    "short_directory",
    "socket_path",
]

ON_BEHALF = "gpukernel-on-behalf-bin"
"""The header with the name, in UTF-8, of the person that a call is made for; from those who may speak for others."""

MADE_BY = "gpukernel-made-by-bin"
"""The header with the name of the person whom an administrator's program (a web page) obeys; it gives no rights, but is written down."""

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


def resolve_address(explicit: str | None = None, state: Path | None = None) -> str:
    """The pool's address: `explicit`, else ``GPUKERNEL_POOL``, else the socket in the state directory.

    Returns
    -------
    str
        ``unix:/path/pool.sock`` or ``HOST:PORT``.

    Raises
    ------
    PoolError
        When the address has neither form.
    """
    chosen = explicit or (None if state else os.environ.get("GPUKERNEL_POOL"))
    if not chosen:
        return f"unix:{socket_path(resolve_state(state))}"
    host, _, port = chosen.rpartition(":")
    if chosen.startswith("unix:/") or (host and port.isdigit() and 0 < int(port) < 65536):
        return chosen
    raise PoolError(f"“{chosen}” is no pool's address; write unix:/path/pool.sock or HOST:PORT.")


def resolve_token(address: str, explicit: str | None = None) -> str:
    """The token for `address`: `explicit`, else ``GPUKERNEL_POOL_TOKEN``, which a JupyterHub sets for its servers, else what the
    file that ``GPUKERNEL_POOL_TOKEN_FILE`` names holds; that last one not for a unix socket, where the account says who one is."""
    if explicit or (explicit := os.environ.get("GPUKERNEL_POOL_TOKEN", "")) or address.startswith("unix:"):
        return explicit or ""
    path = os.environ.get("GPUKERNEL_POOL_TOKEN_FILE", "")
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise PoolError(f"the pool's token cannot be read from {path}: {error.strerror}.") from None
