"""A container as its runtime describes it (OCI runtime specification, "State" and "Configuration"), and the way into its files.

Before it starts, a container's files are seen from outside through ``/proc/PID/root``, in the container's own mounts.  The image chooses
what links lie there, so every path in it is walked by ``openat2`` with ``RESOLVE_IN_ROOT``: a link never leads out of the image.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "LEASE_FILE",
    "LEASE_FOLDER",
    "Bundle",
    "BundleError",
    "open_inside",
    "open_lease_folder",
    "read_bundle",
]

LEASE_FOLDER = Path("/run/gpukernel")
LEASE_FILE = LEASE_FOLDER / "lease"

_OPENAT2, _RESOLVE_IN_ROOT, _TMPFS = 437, 0x10, 0x01021994
MOST_BYTES = 8 << 20


class BundleError(RuntimeError):
    """An error: the runtime's description cannot be used; the text is a sentence."""


@dataclass(frozen=True)
class Bundle:
    """A container that is being made.

    Attributes
    ----------
    container, process
        The runtime's name of it, and the number of its first process.
    root
        The folder of its files, in its own mounts.
    user, group
        Whom its program runs as, by this machine's numbers.
    """

    container: str
    process: int
    root: Path
    user: int
    group: int


def _mapped(number: int, mappings: list[dict[str, int]]) -> int:
    """Return this machine's number of the account `number` of a container."""
    if not mappings:
        return number
    for one in mappings:
        if 0 <= (above := number - one["containerID"]) < one["size"]:
            return one["hostID"] + above
    raise BundleError(f"The container's program runs as {number}, which is no account of this machine.")


def read_bundle(state: dict[str, Any]) -> Bundle:
    """Return what the runtime's `state` and the configuration beside it say.

    Raises
    ------
    BundleError
        Something is missing there.
    """
    try:
        bundle = Path(state["bundle"])
        with (bundle / "config.json").open("rb") as file:
            configuration = json.loads(file.read(MOST_BYTES))
        user = configuration["process"]["user"]
        linux = configuration.get("linux", {})
        return Bundle(
            str(state["id"]),
            int(state["pid"]),
            bundle / configuration["root"]["path"],
            _mapped(int(user.get("uid", 0)), linux.get("uidMappings", [])),
            _mapped(int(user.get("gid", 0)), linux.get("gidMappings", [])),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BundleError(f"The runtime's words about the container cannot be read ({what}).") from None


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)


def open_inside(bundle: Bundle, path: Path, flags: int) -> int:
    """Open `path` as the container sees it; no link leads out of the container.

    Raises
    ------
    OSError
        As `os.open` does.
    """
    root = os.open(
        f"/proc/{bundle.process}/root{bundle.root.absolute()}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    )
    try:
        how = _How(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
        opened = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            root,
            os.fsencode(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if opened < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        return int(opened)
    finally:
        os.close(root)


def open_lease_folder(bundle: Bundle) -> int:
    """Open the file system in memory that the runtime has mounted for the lease file.

    Raises
    ------
    BundleError
        It is not there: a secret is not written into an image.
    """
    try:
        folder = open_inside(bundle, LEASE_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BundleError(
            f"The runtime has not mounted {LEASE_FOLDER} in the container ({error.strerror})."
        ) from None
    about = (ctypes.c_long * 32)()
    if _libc.fstatfs(folder, about) != 0 or about[0] != _TMPFS:
        os.close(folder)
        raise BundleError(
            f"{LEASE_FOLDER} in the container is not the file system in memory of the CDI file."
        )
    return folder
