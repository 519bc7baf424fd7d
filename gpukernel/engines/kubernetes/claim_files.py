"""Files of prepared claims on a node: a CDI file for the runtime, and lease files in memory for the containers.

For each request of a claim there is a folder with a lease file, which names the request's devices only; its containers see the folder,
read-only, at `LEASE_FOLDER`.  The folder above it is root's alone, so on the node nobody else reads a secret.  Inside a container its
program may run as any account, so there the file's mode lets each of them read.  The CDI file holds no secret.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpukernel.common.model import Lease
from gpukernel.engines.containers.bundle import LEASE_FILE, LEASE_FOLDER
from gpukernel.engines.containers.keeper import reachable
from gpukernel.engines.containers.specification import VERSION, library_folders, mount, variables
from gpukernel.engines.kubernetes.names import CDI_KIND, cdi_name, is_uid
from gpukernel.remoting.ceiling import CEILING_VARIABLE
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE, lease_text

__all__ = ["ClaimFiles", "Prepared", "not_in_memory"]

_STATE = "claim.json"


@dataclass(frozen=True)
class Prepared:
    """A claim that is prepared on this node.

    Attributes
    ----------
    lease
        The id of its lease.
    requests
        The UUIDs of the devices of each request.
    """

    namespace: str
    name: str
    uid: str
    key: str
    lease: str
    requests: Mapping[str, Sequence[str]]


def not_in_memory(folder: Path) -> str:
    """Return the kind of file system that `folder` is on, where what is written there may reach a disk; else nothing."""
    found, kind = -1, "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].encode().decode("unicode_escape")
        if folder.resolve().is_relative_to(place) and len(place) >= found:
            found, kind = len(place), after.split()[0]
    return "" if kind in ("tmpfs", "ramfs") else kind


class ClaimFiles:
    """The files of this node's claims.

    Parameters
    ----------
    claims
        A folder in memory, root's alone.
    cdi
        Where the runtime looks for CDI files.
    sockets
        Folders with sockets of this machine's workers; containers see them.
    libraries
        A folder of the node that has copies of the client's libraries; None: where gpukernel is installed, which then has to be on the
        node itself.
    """

    def __init__(
        self, claims: Path, cdi: Path, sockets: Sequence[Path] = (), libraries: Path | None = None
    ) -> None:
        self._claims, self._cdi, self._sockets = claims, cdi, list(sockets)
        self._libraries = libraries
        claims.mkdir(parents=True, exist_ok=True, mode=0o700)
        claims.chmod(0o700)
        cdi.mkdir(parents=True, exist_ok=True)

    def write(
        self, prepared: Prepared, lease: Lease, uuids: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Write a claim's files; replaces what is there, each file in one step.

        Parameters
        ----------
        uuids
            The devices of each request, where `prepared` names others: a device plugin's slots.

        Raises
        ------
        BundleError
            A container could not reach a worker.
        OSError
            They cannot be written.
        """
        lease = reachable(lease, self._sockets)
        folder = self._folder(prepared.uid)
        is_new = not (folder / _STATE).exists()
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            for request, own in (uuids or prepared.requests).items():
                self._write_lease(prepared.uid, request, lease, own)
            state = json.dumps(prepared.__dict__ | {"requests": dict(prepared.requests)})
            _put(folder / _STATE, state, 0o600)
            cdi = json.dumps(self._specification(prepared, lease), indent=1)
            _put(self._cdi_file(prepared.uid), cdi, 0o600)
        except OSError:
            if is_new:
                with contextlib.suppress(OSError):
                    self.remove(prepared.uid)
            raise

    def _write_lease(self, uid: str, request: str, lease: Lease, uuids: Sequence[str]) -> None:
        own = replace(lease, slices=tuple(one for one in lease.slices if one.uuid in uuids))
        folder = self._folder(uid) / request
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        _put(folder / LEASE_FILE.name, lease_text(own), 0o444)

    def write_over(self, prepared: Prepared, lease: Lease) -> None:
        """Say in a claim's lease files that `lease` is over, and why."""
        for request, uuids in prepared.requests.items():
            self._write_lease(prepared.uid, request, lease, uuids)

    def remove(self, uid: str) -> None:
        """Remove a claim's files, if there are any; first what a new container could still be given."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._cdi_file(uid).unlink()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder(uid))

    def all(self) -> list[Prepared]:
        """Return the claims that are prepared; one whose files are not whole is left out."""
        found = []
        for folder in self._claims.iterdir():
            try:
                found.append(Prepared(**json.loads((folder / _STATE).read_text())))
            except (OSError, ValueError, TypeError):
                continue
        return found

    def devices(self, prepared: Prepared) -> dict[str, str]:
        """Return the CDI name of each request."""
        return {request: cdi_name(prepared.uid, request) for request in prepared.requests}

    def _folder(self, uid: str) -> Path:
        if not is_uid(uid):
            raise ValueError(f"“{uid[:60]}” is no uid of a claim.")
        return self._claims / uid

    def _cdi_file(self, uid: str) -> Path:
        return self._cdi / f"gpukernel.io-claim_{uid}.json"

    def edits(self, prepared: Prepared, lease: Lease, request: str) -> dict[str, Any]:
        """Return what a container with a request's devices is given: variables and mounts, as CDI names them."""
        simulated = any(one.device_name.endswith("(simulated)") for one in lease.slices)
        part = lease.ceiling or any(one.memory_bytes < one.device_memory_bytes for one in lease.slices)
        folders = library_folders(simulated)
        if self._libraries is not None:
            folders = {self._libraries / host.name: inside for host, inside in folders.items()}
        mounts = [mount(host, inside) for host, inside in folders.items()]
        mounts += [mount(one, one) for one in self._sockets]
        named = variables(simulated, part)
        if lease.ceiling:
            # Kernels get lease files of their own; the claim's is where they find the ceiling.
            named[CEILING_VARIABLE] = named.pop(LEASE_FILE_VARIABLE)
        return {
            "env": [f"{name}={value}" for name, value in sorted(named.items())],
            "mounts": [*mounts, mount(self._folder(prepared.uid) / request, LEASE_FOLDER)],
        }

    def _specification(self, prepared: Prepared, lease: Lease) -> dict[str, Any]:
        return {
            "cdiVersion": VERSION,
            "kind": CDI_KIND,
            "devices": [
                {
                    "name": f"{prepared.uid}-{request}",
                    "containerEdits": self.edits(prepared, lease, request),
                }
                for request in prepared.requests
            ],
        }


def _put(file: Path, text: str, mode: int) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
            os.fchmod(descriptor, mode)
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
