"""The confinement of workers: a ladder of rungs, each used where the machine has it.

A worker executes the work of people whom nobody knows.  What it gives up before that, the kernel keeps: a group with bounds, an account of
its own, no new privileges, limits, files and ports (Landlock), system calls (seccomp).  The worker takes the rungs itself
(``native/worker/confinement``); this module finds out which there are, once, by a rehearsal with the driver that workers load.

Below it a real device has MPS, which bounds a client's memory in the driver, and MIG, which divides the device; of both only NVIDIA's
documented interfaces are used.

Guarantees
----------
* A rung that is called used was taken by a process like a worker, and the driver library could be loaded afterwards.
* A worker that cannot take one of them does not start: none runs with less than what is reported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpukernel import native
from gpukernel.agent.cgroups import CgroupBounds, Cgroups, NoCgroups, find_cgroups
from gpukernel.agent.inventory import Inventory
from gpukernel.agent.keys import Key
from gpukernel.agent.processes import identity
from gpukernel.common.model import Rung

__all__ = [
    "ACCOUNTS",
    "IN_A_JOB",
    "RUNGS",
    "Confinement",
    "ConfinementImpossible",
    "Confines",
    "WorkerPlaces",
    "mps_environment",
]

log = logging.getLogger(__name__)

RUNGS = ("cgroup", "account", "no-new-privileges", "limits", "landlock", "system-calls")
"""The rungs from outside in."""

IN_A_JOB = "auto-in-a-job"
"""The setting of agents that a batch system has started: as ``auto``, but workers stay in the group by which that ends the job, and do not
end by the SIGTERM that it sends to every process of a job that is to leave: the agent ends them, after those who hold them were told."""

_DEAF = ("sh", "-c", "trap '' TERM; exec \"$@\"", "sh")

NOT_BESIDE_MPS = {"account", "system-calls"}
"""The rungs that ``auto`` leaves out where MPS runs: its control daemon serves one account at a time, and is reached by a connection."""

ACCOUNTS = (1_900_000_000, 1000)
"""The accounts of workers where the agent may change accounts and nobody named others: the first and how many.  Neither distributions
nor systemd give numbers in this range to anybody ("Users, Groups, UIDs and GIDs on systemd Systems")."""

THREADS = 2048
OWN_BYTES = 256 << 20
"""Memory of a worker beside what its programs make it take: code, stacks, the simulated device's threads."""

PROBE_SECONDS = 60
MIB = 2**20
MPS_CONTEXT_MIB = 1024
"""The room that MPS leaves a worker above its cap.  A client's limit counts what NVIDIA's driver takes for the context, which no slice is charged
for: 514 MiB on an H200 (driver 580.159, 2026-11-27), and a context fails where the limit is less."""


class ConfinementImpossible(Exception):
    """An error: a rung was asked for by name and cannot be used; the text is a sentence that says why."""


@dataclass(frozen=True)
class WorkerPlaces:
    """The folders that all workers of a server share: those of time slicing and of module images."""

    time_slicing: Path
    images: Path


@dataclass(frozen=True)
class Confines:
    """Parts of one worker's command: words before it, and options."""

    before: Sequence[str] = ()
    options: Sequence[str] = ()


class Confinement:
    """The ladder of one server.

    Parameters
    ----------
    setting
        ``auto``: every rung that the machine has, except, where MPS runs, those that it does not bear; ``off``;
        or names of `RUNGS`, separated by commas, all of which must be there.
    accounts
        The first account of workers and how many there are; only used where the agent may change accounts.
    state
        The agent's directory, whose mark its groups carry.

    Raises
    ------
    ConfinementImpossible
        When `setting` names a rung that does not exist, or that this machine lacks.
    """

    def __init__(
        self,
        setting: str,
        inventory: Inventory,
        state: Path,
        places: WorkerPlaces,
        accounts: tuple[int, int] = ACCOUNTS,
    ) -> None:
        self._inventory = inventory
        self._places = places
        self._first, self._count = accounts
        self._last_given = -1
        self._before: Sequence[str] = _DEAF if setting == IN_A_JOB else ()
        self._of: dict[Key, int] = {}  # accounts
        self._cgroups: Cgroups | None = None
        wanted = self._wanted(setting)
        self._used: frozenset[str] = frozenset()
        self.rungs = self._find(wanted, setting, state) if inventory.devices else ()
        missing = [rung for rung in self.rungs if rung.name in wanted and not rung.used]
        if setting not in ("auto", IN_A_JOB, "off") and missing:
            raise ConfinementImpossible(
                f"The rung “{missing[0].name}” of --confinement cannot be used here: {missing[0].detail}."
            )
        self._open_places()
        self.rungs += device_rungs(inventory)

    def _wanted(self, setting: str) -> frozenset[str]:
        if setting == "off":
            return frozenset()
        if setting == IN_A_JOB:
            return self._wanted("auto") - {"cgroup"}
        if setting == "auto":
            if self._inventory.simulated:
                return frozenset(RUNGS)
            return frozenset(RUNGS) - (NOT_BESIDE_MPS if mps_directory() else set())
        names = frozenset(setting.split(","))
        if unknown := names - set(RUNGS):
            raise ConfinementImpossible(
                f"“{', '.join(sorted(unknown))}” is no rung of --confinement; write auto, off, or some of {','.join(RUNGS)}."
            )
        return names

    @staticmethod
    def _why_not_wanted(name: str, setting: str) -> str:
        if setting == IN_A_JOB and name == "cgroup":
            return "workers stay in the group of the job"
        if setting not in ("auto", IN_A_JOB):
            return "switched off by --confinement"
        if name == "account":
            return "MPS serves one account at a time; name it in --confinement to use it"
        return "programs reach MPS by a connection, which it refuses"

    def _find(self, wanted: frozenset[str], setting: str, state: Path) -> tuple[Rung, ...]:
        lacking = {name: self._why_not_wanted(name, setting) for name in RUNGS if name not in wanted}
        details: dict[str, str] = {}
        if "cgroup" in wanted:
            try:
                self._cgroups = find_cgroups(state)
            except NoCgroups as error:
                lacking["cgroup"] = str(error)
        if "account" in wanted and (closed := _closed_to_others(state)):
            lacking["account"] = f"no other account may pass through {closed}"
        while True:
            trying = [name for name in RUNGS if name in wanted and name not in lacking]
            found, trouble = self._rehearse(trying)
            lacking |= {name: why for name, (used, why) in found.items() if not used}
            if not trouble and set(trying) == {name for name, (used, _) in found.items() if used}:
                details = {name: detail for name, (_, detail) in found.items()}
                break
            if trouble and not any(not used for used, _ in found.values()):
                lacking |= dict.fromkeys(
                    self._culprits(trying), f"the driver library cannot be used with it: {trouble}"
                )
        if "cgroup" in lacking:
            self._cgroups = None
        self._used = frozenset(trying)
        if self._cgroups is not None:
            details["cgroup"] = self._cgroups.detail
        if "account" in self._used:
            details["account"] = f"{self._first} to {self._first + self._count - 1}"
        rungs = [
            Rung(
                name,
                name in self._used,
                (details.get(name, "") if name in self._used else lacking[name])[:500],
            )
            for name in RUNGS
        ]
        by = [name for name in ("landlock", "system-calls") if name in self._used]
        why = f"by {' and '.join(by)}" if by else "neither landlock nor system-calls is in use"
        return (*rungs, Rung("no-network", bool(by), why))

    def _culprits(self, names: Sequence[str]) -> Sequence[str]:
        """Return the rungs of `names` without which the driver library can be loaded: one where one is enough."""
        doubtful = [name for name in ("account", "landlock", "system-calls") if name in names]
        for culprits in (*([name] for name in doubtful), doubtful):
            _, trouble = self._rehearse([name for name in names if name not in culprits])
            if not trouble and culprits:
                return culprits
        raise ConfinementImpossible(f"The driver library cannot be used: {trouble}.")

    def _rehearse(self, names: Sequence[str]) -> tuple[dict[str, tuple[bool, str]], str]:
        """Have a process take the rungs `names` as a worker would; return what came of each, and the driver's trouble."""
        command = [str(native.worker_executable()), "--probe", "--library", self._inventory.library]
        command += self._inner(names, self._first)
        before: Sequence[str] = ()
        result = {}
        if "cgroup" in names and self._cgroups is not None:
            try:
                before, directories = self._cgroups.create(
                    "probe", CgroupBounds(OWN_BYTES * 16, THREADS, 1.0)
                )
            except (OSError, subprocess.SubprocessError) as error:
                return {"cgroup": (False, f"a group cannot be given bounds: {error}")}, ""
            command += [word for directory in directories for word in ("--cgroup", str(directory))]
            if not directories:
                result["cgroup"] = (True, "")
        try:
            done = subprocess.run(
                [*before, *command],
                env=dict(self._inventory.worker_environment(0)),
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
            said = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return {}, f"the rehearsal failed: {error}"
        finally:
            if "cgroup" in names and self._cgroups is not None:
                self._cgroups.remove("probe")
        result |= {each["rung"]: (each["used"], each["detail"]) for each in said["rungs"]}
        return result, said["library"]

    def _inner(self, names: Iterable[str], account: int) -> list[str]:
        """Return the worker's options for the rungs that it takes itself."""
        inside = [name for name in RUNGS if name in names and name not in ("cgroup", "account")]
        words = [*inside, *([] if self._inventory.simulated else ["real-device"])]
        options = ["--confine", ",".join(words)] if inside else []
        # All accounts have one group, by which they share what this server's workers share.
        return options + (["--account", f"{account}:{self._first}"] if "account" in names else [])

    def _open_places(self) -> None:
        """Give the accounts of workers what they need of the shared folders, and nobody else."""
        images, turns = self._places.images, self._places.time_slicing
        salt = images / "salt"
        if not salt.exists():
            salt.touch(mode=0o600)
            salt.write_bytes(secrets.token_bytes(32))
        devices = [turns / str(device.index) for device in self._inventory.devices]
        for path in devices:
            path.touch(mode=0o600)
        confined = "account" in self._used
        group = self._first if confined else -1
        # Images cannot be listed, and removed by those only who wrote them.
        for path, mode in (
            (images, 0o1730 if confined else 0o700),
            (salt, 0o640 if confined else 0o600),
            # Direct mode may have opened these two for users' programs.
            *((path, path.stat().st_mode & 0o666 | (0o660 if confined else 0o600)) for path in devices),
            (turns, turns.stat().st_mode & 0o711 | (0o710 if confined else 0o700)),
        ):
            with contextlib.suppress(PermissionError):  # made by an agent of another account
                os.chown(path, -1, group)
                path.chmod(mode)
        if confined and self._inventory.processes:
            Path(self._inventory.processes).chmod(0o1777)

    def enter(self, key: Key, memory_bytes: int, host_memory: int, share: float) -> Confines:
        """Prepare a worker's cell; `leave` follows when it has ended, or could not be started.

        Parameters
        ----------
        memory_bytes
            Its cap of device memory, which takes memory of this machine where the device is simulated.
        host_memory
            Bytes that its programs may make it take.

        Raises
        ------
        OSError
            When its group cannot be made.
        """
        account = self._free_account() if "account" in self._used else 0
        options = self._inner(self._used, account)
        before = self._before
        if account:
            self._of[key] = account
        if self._cgroups is not None:
            try:
                before, directories = self._cgroups.create(
                    _name(key), self._bounds(memory_bytes, host_memory, share)
                )
            except BaseException:
                self.leave(key)
                raise
            options += [word for directory in directories for word in ("--cgroup", str(directory))]
        return Confines(tuple(before), tuple(options))

    def _free_account(self) -> int:
        taken = set(self._of.values())
        for step in range(1, self._count + 1):
            number = (self._last_given + step) % self._count
            if self._first + number not in taken:
                self._last_given = number
                return self._first + number
        raise OSError(f"all {self._count} accounts of workers are taken: give --worker-accounts more of them")

    def _bounds(self, memory_bytes: int, host_memory: int, share: float) -> CgroupBounds:
        device = memory_bytes if self._inventory.simulated else 0
        return CgroupBounds(OWN_BYTES + host_memory + device, THREADS, share)

    def change(self, key: Key, memory_bytes: int, host_memory: int, share: float) -> None:
        """Follow a worker's new cap and share."""
        if self._cgroups is not None:
            try:
                self._cgroups.change(_name(key), self._bounds(memory_bytes, host_memory, share))
            except (OSError, subprocess.SubprocessError) as error:
                log.warning("the bounds of a worker's group stay as they were: %s", error)

    def adopt(self, key: Key, pid: int) -> None:
        """Note the account of a worker that an earlier agent started."""
        if (process := identity(pid)) and 0 <= process.user - self._first < self._count:
            self._of[key] = process.user

    def leave(self, key: Key) -> None:
        """Give back what a worker had that is dead."""
        self._of.pop(key, None)
        if self._cgroups is not None:
            self._cgroups.remove(_name(key))

    def clear_all_but(self, keys: Iterable[Key]) -> None:
        """Remove the groups that an earlier agent left, except those of living workers."""
        if self._cgroups is not None:
            living = {_name(key) for key in keys}
            for name in self._cgroups.names():
                if name not in living:
                    self._cgroups.remove(name)


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def mps_directory() -> Path | None:
    """Return the directory of pipes of an MPS control daemon of root's or this account's; None where there is none.

    The usual one lies where every account may make it, and what `NOT_BESIDE_MPS` names would be gone with it.
    """
    directory = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    try:
        # A link of anybody's may lead to a folder of root's in which something happens to be called so.
        owners = {path.lstat().st_uid for path in (directory, directory / "control")} | {
            directory.stat().st_uid
        }
    except OSError:
        return None
    return directory if owners <= {0, os.getuid()} else None


def mps_environment(inventory: Inventory, index: int, memory_bytes: int) -> Mapping[str, str]:
    """Return what has MPS bound a worker's memory on a device, its context's included; empty without MPS.

    The limit is never more than the device has.
    """
    if inventory.simulated or mps_directory() is None:
        return {}
    limit = -(-memory_bytes // MIB) + MPS_CONTEXT_MIB
    there = [device.memory_bytes // MIB for device in inventory.devices if device.index == index]
    return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={min([limit, *there])}M"}


def _closed_to_others(state: Path) -> Path | None:
    """Return the outermost folder above the state directory that other accounts may not pass through."""
    for folder in reversed(state.resolve().parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def device_rungs(inventory: Inventory) -> tuple[Rung, ...]:
    """Return whether MPS and MIG stand below the workers of `inventory`, and why not."""
    if inventory.simulated:
        return (
            Rung("mps", False, "simulated devices have no MPS"),
            Rung("mig", False, "simulated devices have no MIG"),
        )
    directory = mps_directory()
    mps = (
        Rung("mps", True, f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT for each worker; pipes in {directory}")
        if directory
        else Rung("mps", False, "no MPS control daemon runs (nvidia-cuda-mps-control -d)")
    )
    return (mps, _mig(inventory))


def _mig(inventory: Inventory) -> Rung:
    import pynvml

    states = []
    try:
        pynvml.nvmlInit()
        for device in inventory.devices:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
            try:
                states.append(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
            except pynvml.NVMLError_NotSupported:
                states.append(False)
    except pynvml.NVMLError as error:
        return Rung("mig", False, f"NVML: {error}")
    if not any(states):
        return Rung("mig", False, "no device is in MIG mode")
    return Rung("mig", True, f"{sum(states)} of {len(states)} devices are in MIG mode")
