"""The CDI specification of slices: ``gpukernel.io/slice=v100-0.02`` (CNCF's Container Device Interface, version 0.5.0).

A container gets the client's libraries, read-only, at `LIBRARIES`; the variables by which the dynamic linker and compilers find them;
a small file system in memory at `LEASE_FOLDER`, where the hook puts the lease file; and the sockets of this machine's workers.
Nothing of gpukernel is in the image.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukernel import native
from gpukernel.engines.containers.bundle import LEASE_FILE, LEASE_FOLDER
from gpukernel.remoting.environment import compiler_environment, shim_environment

__all__ = [
    "KIND",
    "LIBRARIES",
    "VERSION",
    "SliceDevice",
    "device_name",
    "library_folders",
    "mount",
    "specification",
    "variables",
]

KIND = "gpukernel.io/slice"
VERSION = "0.5.0"
LIBRARIES = Path("/opt/gpukernel")
_SIZE = "size=128k"


@dataclass(frozen=True)
class SliceDevice:
    """A device of the specification: a share of one GPU of `model`; `simulated` GPUs need what compilers are told."""

    model: str
    share: float
    simulated: bool

    @property
    def name(self) -> str:
        """Return its CDI name."""
        return device_name(self.model, self.share)


def device_name(model: str, share: float) -> str:
    """Return the CDI name of a share of a model, such as ``v100-0.02``: letters, figures, ``_``, ``-`` and ``.``."""
    word = re.sub(r"[^a-z0-9_.]+", "-", model.lower()).strip("-._") or "gpu"
    return f"{word}-{share:g}"


def library_folders(simulated: bool) -> dict[Path, Path]:
    """Return the folders of libraries on this machine, and where containers see them."""
    found = [native.shim_dir(), native.runtime_dir(), native.libraries_dir()]
    if simulated:
        found += [native.ptxas().parent, native.compiler_auditor().parent]
    return {folder: LIBRARIES / folder.name for folder in found}


def variables(simulated: bool, part: bool) -> dict[str, str]:
    """Return the variables of a container on a slice, a `part` of a device or all of it."""
    found = shim_environment(LEASE_FILE, compiler_environment({}, simulated=simulated, part=part))
    for folder, inside in library_folders(simulated=True).items():
        found = {
            name: re.sub(f"{re.escape(str(folder))}(?=[/:\\s]|$)", str(inside), value)
            for name, value in found.items()
        }
    return found


def mount(host: Path, inside: Path) -> dict[str, Any]:
    """Return a read-only mount of a folder of this machine."""
    return {
        "hostPath": str(host),
        "containerPath": str(inside),
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }


def specification(
    devices: Iterable[SliceDevice],
    sockets: Iterable[Path],
    hook_variables: Mapping[str, str],
    *,
    at_start: bool,
) -> dict[str, Any]:
    """Return the specification as it stands in ``/etc/cdi/gpukernel.json``.

    Parameters
    ----------
    devices
        What containers may ask for.
    sockets
        Folders of workers' sockets on this machine that containers may be given.
    hook_variables
        Set for the hooks: the runtime gives them no other.
    at_start
        A container starts with its slice or not at all; else its first program that uses CUDA asks for it.
    """
    found = list(devices)
    mounts = [
        mount(host, inside) for host, inside in library_folders(any(one.simulated for one in found)).items()
    ]
    mounts += [mount(folder, folder) for folder in sockets]
    lease = {
        "hostPath": "tmpfs",
        "containerPath": str(LEASE_FOLDER),
        "type": "tmpfs",
        "options": ["nosuid", "nodev", "noexec", "mode=0755", _SIZE],
    }
    when = "start" if at_start else "first-use"
    environment = [f"{name}={value}" for name, value in hook_variables.items()]

    def called(name: str, *words: str) -> dict[str, Any]:
        hook = str(native.oci_hook())
        return {"hookName": name, "path": hook, "args": [hook, *words], "env": environment}

    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "containerEdits": {"mounts": [*mounts, lease], "hooks": [called("poststop", "remove")]},
        "devices": [
            {
                "name": one.name,
                "containerEdits": {
                    "env": [
                        f"{name}={value}"
                        for name, value in sorted(variables(one.simulated, one.share < 1).items())
                    ],
                    "hooks": [
                        called("createRuntime", "create", when, sys.executable, one.model, f"{one.share:g}")
                    ],
                },
            }
            for one in found
        ],
    }
