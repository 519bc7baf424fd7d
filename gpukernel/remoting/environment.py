"""The environment of a program on a slice: the lease file, and the shim (or direct mode's library) first on the library path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpukernel import native
from gpukernel.frameworks import SIMULATED_VARIABLE
from gpukernel.remoting.direct_environment import direct_directories, direct_environment, find_driver
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE, write_lease_file

if TYPE_CHECKING:
    from gpukernel.common.model import Lease

__all__ = [
    "QUIET_NUMBA",
    "compiler_environment",
    "compilers_for",
    "lease_environment",
    "program_environment",
    "shim_environment",
    "with_commands",
    "without_others",
]

QUIET_NUMBA = "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"
"""Numba's variable: 0 keeps it from warning of a grid that is small for the whole device, of which a slice is a part."""

_PTXAS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
"""Triton's variables; the second is for compute capability 9.0 and newer, whatever its name says."""
_XLA_FLAGS, _XLA_FOLDER, _XLA_TRIES = "XLA_FLAGS", "--xla_gpu_cuda_data_dir", "--xla_gpu_autotune_level"
"""Settings of XLA (TensorFlow's, JAX's): the folder of ``bin/ptxas`` before ``PATH``, and how hard it looks for the fastest kernel."""
_NVTX = "NVTX_INJECTION64_PATH"
"""NVTX's variable: the library that hears of the ranges that a program marks, here the shim, for the profiler."""
_FOLDERS = ("shim", "cudart", "libraries", "compilers", "ptxas")
"""Of an installation's libraries and programs that variables may name."""
_GROWING = ("TF_FORCE_GPU_ALLOW_GROWTH", "true")
"""TensorFlow takes memory as it needs it.  It would take the whole slice, from which its lease's other programs live, too, and keep a 32nd of
it in the program's memory as a table."""


def compilers_for(lease: Lease, environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment`, changed so that compilers hand over PTX where the devices of `lease` are simulated.

    Triton and XLA are told to use this package's ``ptxas``, unless the user has named another; without one in ``PATH`` others find it there.
    Numba does not warn of small grids where a slice is part of a device.
    XLA tries no kernels for their speed, which takes seconds each and says nothing of a simulated device.
    The dynamic linker (``rtld-audit(7)``) is told of a library that puts this package's NVRTC and nvJitLink before NVIDIA's, from wherever
    they are loaded.  NVTX, unless the user has named another library, tells the shim of the ranges that the program marks.
    `gpukernel.frameworks` is told that the devices are simulated.  Where a device is real nothing names them: a program that was started on a simulated one may start another on a real one.
    """
    return compiler_environment(
        environment,
        simulated={one.device_name.endswith("(simulated)") for one in lease.slices} == {True},
        part=any(one.memory_bytes < one.device_memory_bytes for one in lease.slices),
    )


def compiler_environment(environment: Mapping[str, str], *, simulated: bool, part: bool) -> dict[str, str]:
    """Return what `compilers_for` returns, for devices that are `simulated` or not, and slices that are a `part` of one or all of it."""
    changed = dict(environment)
    own = str(native.ptxas())
    if simulated:
        changed[SIMULATED_VARIABLE] = "1"
    else:
        changed.pop(SIMULATED_VARIABLE, None)
    if part:
        changed.setdefault(QUIET_NUMBA, "0")
    for variable in _PTXAS:
        if simulated:
            changed.setdefault(variable, own)
        elif changed.get(variable) == own:
            del changed[variable]
    hears = str(native.shim_dir() / "libcuda.so.1")
    if simulated:
        changed.setdefault(_NVTX, hears)
    elif changed.get(_NVTX) == hears:
        del changed[_NVTX]
    _tell_xla(changed, str(native.ptxas().parent), wanted=simulated)
    _end_list(changed, "LD_AUDIT", str(native.compiler_auditor()), wanted=simulated)
    _end_list(changed, "PATH", str(native.ptxas().parent), wanted=simulated and bool(changed.get("PATH")))
    return changed


def _end_list(environment: dict[str, str], variable: str, own: str, *, wanted: bool) -> None:
    """Let the list in `variable` have `own` at its end, or nowhere."""
    given = environment.get(variable, "")
    if not wanted and own not in given.split(":"):
        return
    parts = [part for part in given.split(":") if given and part != own]
    if parts := [*parts, own] if wanted else parts:
        environment[variable] = ":".join(parts)
    else:
        del environment[variable]


def with_commands(base: Mapping[str, str], interpreter: str = sys.executable) -> dict[str, str]:
    """Return `base` with the folder of `interpreter` at the end of ``PATH``, unless it is there: ``gpukernel`` and NVML's tools of its
    environment are found where that is not activated, and nothing else is found in another place than before.

    What another installation of this package has put there is taken away (`without_others`).
    """
    changed = without_others(base)
    folder = os.path.dirname(interpreter)
    given = changed.get("PATH", "")
    if given and os.path.isabs(folder) and folder not in given.split(os.pathsep):
        changed["PATH"] = f"{given}{os.pathsep}{folder}"
    return changed


def without_others(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` without the libraries and programs of other installations of this package, such as those of a slice that the container
    was started with: two auditors of the dynamic linker would take each other's libraries for NVIDIA's, and each call would end nowhere.
    """
    changed = dict(base)
    own = (native.compiler_auditor(), native.runtime_auditor())
    names = {one.name for one in own}
    audited = [Path(part) for part in changed.get("LD_AUDIT", "").split(":")]
    others = {one.parent.parent for one in audited if one.name in names} - {one.parent.parent for one in own}
    folders = [other / name for other in others for name in _FOLDERS]

    def is_foreign(path: str) -> bool:
        return any(Path(path).is_relative_to(folder) for folder in folders)

    for variable in ("LD_AUDIT", "LD_LIBRARY_PATH", "PATH") if folders else ():
        parts = changed.pop(variable, "").split(":")
        if kept := [part for part in parts if part and not is_foreign(part)]:
            changed[variable] = ":".join(kept)
    for variable in (_NVTX, *_PTXAS):
        if is_foreign(changed.get(variable, "")):
            del changed[variable]
    for word in changed.get(_XLA_FLAGS, "").split():
        name, _, folder = word.partition("=")
        if name == _XLA_FOLDER and is_foreign(folder):
            _tell_xla(changed, folder, wanted=False)
    return changed


def _tell_xla(environment: dict[str, str], folder: str, *, wanted: bool) -> None:
    """Let XLA's flags name `folder` at their end, unless the user has named another, or nowhere."""
    words = environment.get(_XLA_FLAGS, "").split()
    own, quick = f"{_XLA_FOLDER}={folder}", f"{_XLA_TRIES}=0"
    given = {word.partition("=")[0] for word in words}
    if wanted and _XLA_FOLDER not in given:
        words += [own] if _XLA_TRIES in given else [own, quick]
    elif not wanted and own in words:
        at = words.index(own)
        del words[at : at + 1 + (words[at + 1 : at + 2] == [quick])]
    else:
        return
    if words:
        environment[_XLA_FLAGS] = " ".join(words)
    else:
        del environment[_XLA_FLAGS]


def without_runtime(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` without this package's CUDA runtime and math libraries: over a driver of the machine's own, NVIDIA's work."""
    environment = dict(base)
    _end_list(environment, "LD_AUDIT", str(native.runtime_auditor()), wanted=False)
    own = {str(native.runtime_dir()), str(native.libraries_dir())}
    if own.intersection(parts := environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(part for part in parts if part not in own)
    return environment


def shim_environment(lease_file: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment `base`, changed so that ``libcuda.so.1`` is the shim and finds its lease.

    The CUDA runtime is this package's, too: NVIDIA's asks a driver for what a shim does not have.  Programs find it by name, and the
    dynamic linker (``rtld-audit(7)``) is told to put it before NVIDIA's wherever else they look.

    Returns
    -------
    dict
        A copy of `base` with ``LD_LIBRARY_PATH`` (the shim's directory first, then the runtime's and the math libraries'), ``LD_AUDIT``,
        ``GPUKERNEL_LEASE_FILE`` and, unless it is there, ``TF_FORCE_GPU_ALLOW_GROWTH``.  The secret itself is not in it.
    """
    environment = without_runtime(with_commands(base))
    own = [str(one) for one in (native.shim_dir(), native.runtime_dir(), native.libraries_dir())]
    others = [
        part for part in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part and part not in own
    ]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*own, *others])
    _end_list(environment, "LD_AUDIT", str(native.runtime_auditor()), wanted=True)
    environment[LEASE_FILE_VARIABLE] = str(lease_file)
    environment.setdefault(*_GROWING)
    return environment


def lease_environment(
    path: Path, lease: Lease, base: Mapping[str, str]
) -> tuple[dict[str, str], Path | None]:
    """Return `base`, changed so that a program runs on `lease` in its mode, and in direct mode the real driver.

    Raises
    ------
    DriverNotFound
        In direct mode, where this machine has no driver.
    OSError
        In direct mode, where the slice cannot be reached from here.
    """
    base = with_commands(base)  # before what compilers add: their folder is the last
    directories = direct_directories(lease)
    if not directories:
        return shim_environment(path, compilers_for(lease, base)), None
    environment = direct_environment(directories, compilers_for(lease, without_runtime(base)))
    environment[LEASE_FILE_VARIABLE] = str(path)
    return environment, find_driver(environment)


def program_environment(path: Path, lease: Lease, base: Mapping[str, str]) -> dict[str, str]:
    """Write the lease file to `path`, and return the environment of `lease_environment`.

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
