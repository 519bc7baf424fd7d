"""The addresses of a pool: its state directory, its sockets, and the headers of its calls."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gpukernel.common.account import in_home, state_in_home
from gpukernel.common.errors import NoAddress, PoolError

__all__ = [
    "AWAY_MS",
    "MADE_BY",
    "MOST_ADDRESSES",
    "ON_BEHALF",
    "REFUSAL",
    "RETRY_AFTER",
    "TEACHES",
    "are_network_addresses",
    "container_sockets",
    "is_container_socket",
    "is_network_address",
    "make_container_sockets",
    "network_addresses",
    "rename_state",
    "resolve_address",
    "resolve_state",
    "short_directory",
    "socket_path",
]

ON_BEHALF = "gpukernel-on-behalf-bin"
"""The header with the name, in UTF-8, of the person that a call is made for; from those who may speak for others."""

MADE_BY = "gpukernel-made-by-bin"
"""The header with the name of the person whom an administrator's program (a web page) obeys; it gives no rights, but is written down."""

REFUSAL = "gpukernel-refusal"
"""The trailing header of a call that is refused: the stable code of `gpukernel.common.errors.Refused`."""

RETRY_AFTER = "grpc-retry-pushback-ms"
"""The trailing header of a call that came too soon: after how many milliseconds to make it again, as gRPC names it (gRFC A6)."""

AWAY_MS = 500
"""Milliseconds after which a call is made again whose pool could not reach its database."""

TEACHES = "gpukernel-teaches-bin"
"""The header with a course, in UTF-8, that the person on whose behalf a call is made instructs by a role that only the caller knows: a
JupyterHub's.  It may occur several times."""

MOST_ADDRESSES = 16
"""The most addresses of one connection."""

_LONGEST_SOCKET_DIRECTORY = 60  # of the 107 characters that a unix socket's path may have


def resolve_state(explicit: Path | str | None = None) -> Path:
    """Return the state directory: `explicit`, else ``GPUKERNEL_STATE``, else the user's XDG state directory.

    Raises
    ------
    PoolError
        Where that is below a home directory, and the account has none.
    """
    instead = "name a state directory with --state or GPUKERNEL_STATE."
    chosen = explicit or os.environ.get("GPUKERNEL_STATE")
    return (in_home(chosen, instead) if chosen else state_in_home("gpukernel", instead)).absolute()


def short_directory(state: Path) -> Path:
    """Return a directory for sockets: `state`, or where its path is too long for one, a short stand-in under ``/tmp``.

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
    """Return the pool's unix socket of a state directory."""
    return short_directory(state) / "pool.sock"


def container_sockets(directory: Path) -> Path:
    """Return the folder in the directory of the pool's socket that containers may be given: sockets and nothing else.

    The pool's socket there knows nobody's account: in a container everybody may be root, or another number than they are outside.
    """
    return directory / "containers"


def former_container_sockets(directory: Path) -> Path:
    """Return the name that version 0.1 gave to that folder."""
    return directory / "door"


def is_container_socket(socket: Path) -> bool:
    """Return whether `socket` is in such a folder, by its name or its former one."""
    return socket.parent in (
        container_sockets(socket.parent.parent),
        former_container_sockets(socket.parent.parent),
    )


def make_container_sockets(directory: Path) -> Path:
    """Make the folder `container_sockets` for a server; a folder of version 0.1 is renamed, and stays reachable as ``door``."""
    folder = container_sockets(directory)
    rename_state(former_container_sockets(directory), folder)
    folder.mkdir(parents=True, mode=0o711, exist_ok=True)
    return folder


def rename_state(old: Path, new: Path) -> None:
    """Rename the folder `old` of an earlier version, where there is one, to `new`, and leave a link in its place.

    Whoever has the folder open or mounted keeps it, and who knows its old name finds it.  The link is made before the folder
    moves, so that a process that is killed in between leaves what the next start completes.
    """
    link = old.with_name(f"{old.name}.link")
    if old.is_dir() and not old.is_symlink() and not new.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(new.name)
        old.rename(new)
    if link.is_symlink() and not os.path.lexists(old):
        link.rename(old)


def is_network_address(text: str) -> bool:
    """Return whether `text` is ``HOST:PORT`` or ``tls://HOST:PORT``."""
    host, _, port = text.removeprefix("tls://").rpartition(":")
    return bool(host) and "/" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def are_network_addresses(text: str) -> bool:
    """Return whether `text` is one network address, or a list of them with commas in between."""
    return all(is_network_address(one.strip()) for one in text.split(","))


def network_addresses(text: str, where: str) -> tuple[str, ...]:
    """Return the addresses in `text`, which is one or a list with commas in between: those of pools on one database.

    Parameters
    ----------
    where
        The place where the list was found, as the beginning of a sentence.

    Raises
    ------
    PoolError
        With a sentence that names what is wrong with which address.
    """
    found = tuple(one.strip() for one in text.split(","))
    for one in found:
        if not one:
            raise PoolError(
                f"{where} has a comma with no address beside it; write tls://HOST:PORT, tls://HOST:PORT."
            )
        if one.startswith("unix:"):
            raise PoolError(
                f"{where} lists the unix socket “{one[:100]}” among several addresses; list those that pools have on the network, "
                "as HOST:PORT or tls://HOST:PORT."
            )
        if not is_network_address(one):
            raise NoAddress(
                f"{where} lists “{one[:100]}”, which is no pool's address; write HOST:PORT or tls://HOST:PORT."
            )
        if found.count(one) > 1:
            raise PoolError(f"{where} lists {one} more than once; each address is that of another pool.")
    if len(found) > MOST_ADDRESSES:
        raise PoolError(f"{where} lists {len(found)} addresses; at most {MOST_ADDRESSES} are possible.")
    return found


def resolve_address(explicit: str | None = None, state: Path | None = None) -> str:
    """Return the pool's address: `explicit`, else ``GPUKERNEL_POOL``, else the socket in the state directory.

    Returns
    -------
    str
        ``unix:/path/pool.sock``, ``HOST:PORT``, ``tls://HOST:PORT``, several of the last two with commas in between, or the whole path
        of a connection file (`gpukernel.common.connection`).

    Raises
    ------
    PoolError
        When the address has none of these forms.
    """
    chosen = explicit or (None if state else os.environ.get("GPUKERNEL_POOL"))
    if not chosen:
        return f"unix:{socket_path(resolve_state(state))}"
    if "," in chosen and not Path(chosen).is_file():
        return ",".join(network_addresses(chosen, f"“{chosen[:200]}”"))
    if chosen.startswith("unix:/") or is_network_address(chosen):
        return chosen
    file = in_home(chosen, "write the whole path of the connection file.")
    if file.is_file():
        return str(file.absolute())
    raise NoAddress(
        f"“{chosen}” is no pool's address and no connection file; write unix:/path/pool.sock, HOST:PORT, "
        "tls://HOST:PORT, several of these with commas in between, or the file's path."
    )
