"""The lease file: how a program finds its slice.

It is the only place outside the pool's database and the worker's memory that holds the lease's secret.  It is a text file of
mode 0600, one ``key value …`` a line, that ``GPUKERNEL_LEASE_FILE`` names and the shim reads at ``cuInit``
(``native/common/lease_file.h``)::

    version 2
    lines 6
    lease 8c1f…
    state live
    secret 3f9a…
    device 0 unix:/run/…/data.sock tcp:127.0.0.1:41234

``lines`` is the number of lines: a file that is cut off between two of them is told from a whole one.  ``device`` lines stand in
CUDA device order, the endpoints of each best first.  In direct mode the endpoint of a device is ``direct:DIRECTORY`` and a line
``driver PATH`` names the real ``libcuda.so.1``.  ``state ended`` comes with a ``reason`` line, the sentence that the shim prints
instead of connecting.

A kernel's file has two lines more: ``socket PATH`` names the kernel socket (`gpukernel.jupyter.kernel_socket`), where its slice is
asked for, and ``kernel KEY`` the kernel.  Then ``state none`` means that there is no slice now.

In a job of Slurm the variable is ``slurm:FOLDER``, which is the same for all jobs: it names the file of the job that a program is of,
``FOLDER/NODE/jobs/JOB/lease``; where that is not there yet, the slice is asked for at ``FOLDER/NODE/socket`` as for a kernel.

Guarantees
----------
* A file is replaced in one step: who reads it sees the old one or the new one, never a part.
* A file that is cut off is an error at whichever byte, never another lease and never “no slice”.
* Version 1 (gpukernel 0.1) is read as well; it called ``socket`` and ``kernel`` otherwise.  Without ``lines``, a file that lacks lines
  after its first ``device`` reads as the same lease with fewer devices.
* Reading never waits and is bounded: no FIFO, device or huge file can hold up who reads.
* This module needs nothing but the standard library, since kernels load it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpukernel.common.model import Lease

__all__ = [
    "DIRECT_ENDPOINT",
    "LEASE_FILE_VARIABLE",
    "OF_SLURM",
    "LeaseFile",
    "LeaseFileError",
    "lease_file_path",
    "lease_text",
    "no_lease_text",
    "read_lease_file",
    "write_lease_file",
    "write_no_lease_file",
]

DIRECT_ENDPOINT = "direct:"
LEASE_FILE_VARIABLE = "GPUKERNEL_LEASE_FILE"
OF_SLURM = "slurm:"
VERSION = "2"
MOST_BYTES = 2**16
AGAIN = "; start the program or the kernel again"
CUT_OFF = f"is cut off or damaged{AGAIN}"
_STATE = {"starting": "waiting", "live": "live", "ending": "ended", "ended": "ended"}
_VERSION_1 = {"desk": "socket", "key": "kernel"}
"""Keys of version 1 that have other names now."""


class LeaseFileError(Exception):
    """The lease file cannot be read; the text is a sentence."""


@dataclass(frozen=True)
class LeaseFile:
    """The content of a lease file; a field that the file lacks is empty.

    Attributes
    ----------
    lease, state, secret
        The lease's identifier; ``none``, ``waiting``, ``live`` or ``ended``; and the secret that its workers know.
    reason
        Why there is no slice.
    driver
        In direct mode, the real ``libcuda.so.1``.
    devices
        In CUDA device order, the endpoints of each, best first.
    kernel, socket
        The kernel's key, and the path of the socket where its slice is asked for; empty for a program.
    """

    lease: str = ""
    state: str = ""
    secret: str = field(default="", repr=False)
    reason: str = ""
    driver: str = ""
    kernel: str = ""
    socket: str = ""
    devices: tuple[tuple[str, ...], ...] = ()


_WORDS = frozenset(LeaseFile.__dataclass_fields__) - {"devices"}


def lease_file_path(environment: Mapping[str, str]) -> str:
    """Return the path of the lease file that a program's variables name; empty where they name none."""
    named = environment.get(LEASE_FILE_VARIABLE, "")
    if not named.startswith(OF_SLURM):
        return named
    job, node = environment.get("SLURM_JOB_ID", ""), environment.get("SLURMD_NODENAME", "")
    if not (job.isascii() and job.isdigit()) or not node or "/" in node:
        return ""
    return f"{named.removeprefix(OF_SLURM)}/{node}/jobs/{job}/lease"


def read_lease_file(path: Path | str) -> LeaseFile:
    """Return what the lease file at `path` says.

    Raises
    ------
    LeaseFileError
        It cannot be read, is cut off, or has a version that is not known here.
    """
    content = _content(path)
    if not content:
        raise LeaseFileError(f"The lease file {path} is empty{AGAIN}.")
    *lines, rest = content.split("\n")
    if rest:
        raise LeaseFileError(f"The lease file {path} {CUT_OFF}.")
    word, _, version = lines[0].partition(" ")
    if word != "version" or version not in ("1", VERSION):
        raise LeaseFileError(
            f"The lease file {path} has version “{version[:20] if word == 'version' else ''}”, and this gpukernel reads versions "
            "1 and 2: start the program or the kernel again with one version of gpukernel."
        )
    counted = len(lines) > 1 and lines[1].startswith("lines ")
    renamed = _VERSION_1 if version == "1" else {}
    values: dict[str, str] = {}
    devices: list[tuple[str, ...]] = []
    for line in lines[1:]:
        word, _, rest = line.partition(" ")
        word = renamed.get(word, word)
        if word == "device":
            devices.append(tuple(rest.split()[1:]))
        elif word in _WORDS:
            values[word] = rest
    found = LeaseFile(**values, devices=tuple(devices))
    if not (lines[1] == f"lines {len(lines)}" and found.state if counted else _whole(found)):
        raise LeaseFileError(f"The lease file {path} {CUT_OFF}.")
    return found


def _whole(file: LeaseFile) -> bool:
    """Return whether `file`, which does not say how many lines it has, has those that every file of its state has."""
    if file.state == "none":
        return bool(file.kernel and file.socket)
    return (
        bool(file.state)
        and bool(file.kernel) == bool(file.socket)
        and (file.state != "live" or bool(file.devices))
    )


def _content(path: Path | str) -> str:
    """Read a regular file of at most `MOST_BYTES`; the agent reads what a program's environment names, so never wait for more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = os.read(descriptor, MOST_BYTES + 1) if regular else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LeaseFileError(f"The lease file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise LeaseFileError(f"The lease file {path!r} cannot be read: {error}.") from None
    if not regular:
        raise LeaseFileError(f"The lease file {path} cannot be read: it is no regular file.")
    if len(content) > MOST_BYTES:
        raise LeaseFileError(f"The lease file {path} cannot be read: it is larger than {MOST_BYTES} bytes.")
    return content.decode(errors="replace")


def write_lease_file(
    path: Path, lease: Lease, kernel: str = "", socket: str = "", driver: Path | None = None
) -> None:
    """Write `lease` for the shim, readable by this user only, replacing an older file in one step.

    Parameters
    ----------
    path
        Where the file goes; the directory must exist.
    lease
        A lease as `Acquire` returned it to its holder, with its secret.
    kernel, socket
        The kernel's key, and the path of the kernel socket; empty for a program.
    driver
        In direct mode, the real ``libcuda.so.1``.

    Raises
    ------
    OSError
        When the file cannot be written.
    """
    _write(path, lease_text(lease, kernel, socket, driver))


def lease_text(lease: Lease, kernel: str = "", socket: str = "", driver: Path | None = None) -> str:
    """Return what `write_lease_file` writes."""
    lines = [f"lease {lease.id}", f"state {_STATE[lease.state]}", f"secret {lease.secret}"]
    if lease.end_reason:
        lines.append("reason " + " ".join(lease.end_reason.split()))
    if driver is not None:
        lines.append(f"driver {driver}")
    for number, piece in enumerate(lease.slices):
        lines.append(" ".join([f"device {number}", *piece.endpoints]))
    return _whole_text(lines, kernel, socket)


def write_no_lease_file(path: Path, reason: str, kernel: str, socket: str) -> None:
    """Write that there is no slice now, why, and where to ask for one; raises as `write_lease_file` does."""
    _write(path, no_lease_text(reason, kernel, socket))


def no_lease_text(reason: str, kernel: str, socket: str) -> str:
    """Return what `write_no_lease_file` writes."""
    lines = ["state none"]
    if reason:
        lines.append("reason " + " ".join(reason.split()))
    return _whole_text(lines, kernel, socket)


def _whole_text(lines: list[str], kernel: str, socket: str) -> str:
    if socket:
        lines = [*lines, f"kernel {kernel}", f"socket {socket}"]
    return "\n".join([f"version {VERSION}", f"lines {len(lines) + 2}", *lines]) + "\n"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
