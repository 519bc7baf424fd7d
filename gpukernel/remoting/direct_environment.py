"""The environment of a program on a slice in direct mode, and the real driver of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpukernel import native
from gpukernel.remoting.direct_table import Table
from gpukernel.remoting.lease_file import DIRECT_ENDPOINT

if TYPE_CHECKING:
    from gpukernel.common.model import Lease

__all__ = ["DRIVER_VARIABLE", "DriverNotFound", "direct_directories", "direct_environment", "find_driver"]

DRIVER_VARIABLE = "GPUKERNEL_DRIVER"
"""Names the real ``libcuda.so.1``."""


class DriverNotFound(Exception):
    """An error: there is no real ``libcuda.so.1`` here; the text is a sentence."""


def direct_directories(lease: Lease) -> list[Path]:
    """Return the directories of a lease's slices in CUDA order; empty where workers serve it."""
    ways = [endpoint for piece in lease.slices for endpoint in piece.endpoints]
    return [Path(way.removeprefix(DIRECT_ENDPOINT)) for way in ways if way.startswith(DIRECT_ENDPOINT)]


def find_driver(environment: Mapping[str, str]) -> Path:
    """Return the real ``libcuda.so.1`` of this machine: ``GPUKERNEL_DRIVER``, else where the loader and NVIDIA put it.

    Raises
    ------
    DriverNotFound
        Where there is none, or ``GPUKERNEL_DRIVER`` names what is not there.
    """
    if named := environment.get(DRIVER_VARIABLE):
        if not Path(named).is_file():
            raise DriverNotFound(f"{DRIVER_VARIABLE} names {named}, which is not there.")
        return Path(named).resolve()
    ours = {path.resolve() for path in native.own_drivers()}
    for path in [*_known_to_the_loader(), *_USUAL]:
        if path.is_file() and path.resolve() not in ours:
            return path.resolve()
    raise DriverNotFound(
        "The NVIDIA driver's libcuda.so.1 was not found on this machine; name it in GPUKERNEL_DRIVER, or use "
        "remote mode, which needs no driver here."
    )


_USUAL = [
    Path(folder, "libcuda.so.1")
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
        "/run/opengl-driver/lib",
        "/usr/lib",
    )
]


def _known_to_the_loader() -> list[Path]:
    for command in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run([command, "-p"], capture_output=True, text=True, check=False, timeout=10)
            return [
                Path(line.rpartition(" => ")[2])
                for line in said.stdout.splitlines()
                if line.lstrip().startswith("libcuda.so.1 ") and "x86-64" in line
            ]
    return []


def direct_environment(directories: Iterable[Path], base: Mapping[str, str]) -> dict[str, str]:
    """Return `base`, changed so that ``libcuda.so.1`` is direct mode's, and so that the real one shows the lease's devices
    alone.

    Raises
    ------
    OSError
        When a slice's directory is not to be reached from here.
    """
    environment = dict(base)
    uuids = []
    for directory in directories:
        table = Table(directory / "table")
        uuids.append(table.uuid)
        table.close()
        with contextlib.suppress(FileNotFoundError):  # of a simulated device only
            for line in (directory / "environment").read_text().splitlines():
                name, _, value = line.partition("=")
                environment[name] = value
    # Numbers count the lease's devices, in CUDA_VISIBLE_DEVICES too; the library counts them again.
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    folders = [str(native.direct_dir()), str(native.shim_dir())]
    # Over the real driver NVIDIA's own math libraries work; a program on another slice may have started this one.
    unwanted = [*folders, str(native.libraries_dir())]
    others = [
        part
        for part in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        if part and part not in unwanted
    ]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, *others])
    return environment
