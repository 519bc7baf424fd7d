"""What a program needs to find its slice: a lease file, and the shim first on the library path.

The lease file is the only place outside the pool's database and the worker's memory that holds the lease's
secret.  It is a text file of mode 0600, one ``key value …`` a line, that the shim reads at ``cuInit``::

    version 1
    lease 8c1f…
    state live
    secret 3f9a…
    device 0 unix:/run/…/data.sock tcp:127.0.0.1:41234

Where somebody keeps the slice for a kernel, ``desk /path/of/a/socket`` and ``key KERNEL`` say whom to ask for it (gpukernel/jupyter/desk.py);
then ``state none`` means that there is no slice yet.

``device`` lines stand in CUDA device order, the endpoints of each best first.  ``state ended`` comes with a
``reason`` line, the sentence that the shim prints instead of connecting.  In direct mode the endpoint of a device is
``direct:DIRECTORY`` and a line ``driver PATH`` names the real ``libcuda.so.1``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpukernel import native
from gpukernel.remoting.direct import direct_directories, direct_environment, find_driver

if TYPE_CHECKING:
    from gpukernel.pool.model import Lease

__all__ = [
    "LEASE_FILE_VARIABLE",
    "lease_environment",
    "program_environment",
    "shim_environment",
    "write_lease_file",
    "write_no_lease_file",
]

LEASE_FILE_VARIABLE = "GPUKERNEL_LEASE_FILE"
_STATE = {"starting": "waiting", "live": "live", "ending": "ended", "ended": "ended"}


def write_lease_file(
    path: Path, lease: Lease, key: str = "", desk: str = "", driver: Path | None = None
) -> None:
    """Write `lease` for the shim, readable by this user only, replacing an older file in one step.

    Parameters
    ----------
    path
        Where the file goes; the directory must exist.
    lease
        A lease as `Acquire` returned it to its holder, with its secret.
    key, desk
        The kernel, and the socket of who keeps its slice; empty where nobody does.
    driver
        In direct mode, the real ``libcuda.so.1``.

    Raises
    ------
    OSError
        When the file cannot be written.
    """
    lines = ["version 1", f"lease {lease.id}", f"state {_STATE[lease.state]}", f"secret {lease.secret}"]
    if lease.end_reason:
        lines.append("reason " + " ".join(lease.end_reason.split()))
    if driver is not None:
        lines.append(f"driver {driver}")
    for number, piece in enumerate(lease.slices):
        lines.append(" ".join([f"device {number}", *piece.endpoints]))
    _write(path, lines, key, desk)


def write_no_lease_file(path: Path, reason: str, key: str, desk: str) -> None:
    """Write that there is no slice now, why, and whom to ask for one."""
    lines = ["version 1", "state none"]
    if reason:
        lines.append("reason " + " ".join(reason.split()))
    _write(path, lines, key, desk)


def _write(path: Path, lines: list[str], key: str, desk: str) -> None:
    if desk:
        lines = [*lines, f"key {key}", f"desk {desk}"]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def shim_environment(lease_file: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment `base`, changed so that ``libcuda.so.1`` is the shim and finds its lease.

    Returns
    -------
    dict
        A copy of `base` with ``LD_LIBRARY_PATH`` (the shim's directory first) and ``GPUKERNEL_LEASE_FILE``.
        The secret itself is not in it.
    """
    environment = dict(base)
    shim = str(native.shim_dir())
    others = [
        part for part in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part and part != shim
    ]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([shim, *others])
    environment[LEASE_FILE_VARIABLE] = str(lease_file)
    return environment


def lease_environment(
    path: Path, lease: Lease, base: Mapping[str, str]
) -> tuple[dict[str, str], Path | None]:
    """`base`, changed so that a program runs on `lease` in its mode, and in direct mode the real driver.

    Raises
    ------
    DriverNotFound
        In direct mode, where this machine has no driver.
    OSError
        In direct mode, where the slice cannot be reached from here.
    """
    directories = direct_directories(lease)
    if not directories:
        return shim_environment(path, base), None
    environment = direct_environment(directories, base)
    environment[LEASE_FILE_VARIABLE] = str(path)
    return environment, find_driver(environment)


def program_environment(path: Path, lease: Lease, base: Mapping[str, str]) -> dict[str, str]:
    """As `lease_environment`, and write the lease file to `path`.

    Raises
    ------
    DriverNotFound
        In direct mode, where this machine has no driver.
    OSError
        When the lease file cannot be written, or the slice cannot be reached from here.
    """
    environment, driver = lease_environment(path, lease, base)
    write_lease_file(path, lease, driver=driver)
    return environment
