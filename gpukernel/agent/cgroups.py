"""The control groups of workers: bounds on memory, threads and the processor that the system keeps.

Three ways, the first that the machine offers: cgroup version 2 where the agent may write (a unit with ``Delegate=``, a container), a scope
of systemd where systemd is the manager, cgroup version 1.  Each worker has a group of its own, made before it starts and removed after its
end.  The groups of a state directory lie in one that carries its mark, so that the next agent finds what an earlier one left; it goes
with the last of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["CgroupBounds", "Cgroups", "NoCgroups", "find_cgroups"]

CONTROLLERS = ("memory", "pids", "cpu")
MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")
SYSTEMD = Path("/run/systemd/system")
_marked = threading.Lock()  # while a group is made in the marked one, that one does not go


class NoCgroups(Exception):
    """An error: workers cannot have groups of their own here; the text is a sentence that says why."""


@dataclass(frozen=True)
class CgroupBounds:
    """CgroupBounds of one worker: bytes of memory, a number of threads, and its share of a contended processor, 1 being a whole device's."""

    memory_bytes: int
    threads: int
    share: float


class Cgroups(Protocol):
    """The interface of the three ways."""

    detail: str
    """The way that it is done, for people."""

    def create(self, name: str, bounds: CgroupBounds) -> tuple[Sequence[str], Sequence[Path]]:
        """Make a group; return the words to put before the worker's command, and the directories that the worker joins."""
        ...

    def change(self, name: str, bounds: CgroupBounds) -> None:
        """Set other bounds for a living worker."""
        ...

    def remove(self, name: str) -> None:
        """End what is left in a group, and remove it."""
        ...

    def names(self) -> Iterable[str]:
        """Return the groups that exist, those of an earlier agent too."""
        ...


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)


def _empty_and_remove(directory: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        for pid in map(int, (directory / "cgroup.procs").read_text().split()):
            if pid:  # 0 is a process that this one's namespace does not show, and to `kill` its own group
                os.kill(pid, signal.SIGKILL)
    with _marked:
        _remove(directory)
        _remove(directory.parent)


def _remove(directory: Path) -> None:
    with contextlib.suppress(
        OSError
    ):  # others are in it, or its processes die just now: the next agent removes it
        directory.rmdir()


def _folders(parent: Path) -> list[str]:
    try:
        return [path.name for path in parent.iterdir() if path.is_dir()]
    except FileNotFoundError:  # it went with the last of them, perhaps just now
        return []


class _Version2:
    def __init__(self, parent: Path, controllers: str) -> None:
        self._parent = parent
        self._controllers = controllers
        self.detail = f"cgroup version 2, {parent}"

    def prepare(self) -> None:
        self._parent.mkdir(exist_ok=True)
        _write(self._parent / "cgroup.subtree_control", self._controllers)

    def create(self, name: str, bounds: CgroupBounds) -> tuple[Sequence[str], Sequence[Path]]:
        directory = self._parent / name
        with _marked:
            self.prepare()
            directory.mkdir(exist_ok=True)
        self.change(name, bounds)
        with contextlib.suppress(OSError):  # without swap there is no such file
            _write(directory / "memory.swap.max", "0")
        with contextlib.suppress(OSError):
            _write(directory / "memory.oom.group", "1")
        return (), (directory,)

    def change(self, name: str, bounds: CgroupBounds) -> None:
        directory = self._parent / name
        _write(directory / "memory.max", str(bounds.memory_bytes))
        _write(directory / "pids.max", str(bounds.threads))
        with contextlib.suppress(OSError):  # the processor's controller may not be delegated
            _write(directory / "cpu.weight", str(_weight(bounds.share)))

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            _write(self._parent / name / "cgroup.kill", "1")
        _empty_and_remove(self._parent / name)

    def names(self) -> Iterable[str]:
        return _folders(self._parent)


class _Version1:
    def __init__(self, parents: dict[str, Path]) -> None:
        self._parents = parents
        self.detail = f"cgroup version 1: {', '.join(parents)}"

    def create(self, name: str, bounds: CgroupBounds) -> tuple[Sequence[str], Sequence[Path]]:
        with _marked:
            for parent in self._parents.values():
                (parent / name).mkdir(parents=True, exist_ok=True)
        self.change(name, bounds)
        return (), [parent / name for parent in self._parents.values()]

    def change(self, name: str, bounds: CgroupBounds) -> None:
        # Memory with swap is never less than memory: one of two orders is possible.
        memory = self._parents["memory"] / name
        files = [memory / "memory.memsw.limit_in_bytes", memory / "memory.limit_in_bytes"]
        for file in (*files, *files):
            with contextlib.suppress(OSError):
                _write(file, str(bounds.memory_bytes))
        if int(files[1].read_text()) > bounds.memory_bytes:
            raise OSError(f"{files[1]} cannot be set to {bounds.memory_bytes}")
        if parent := self._parents.get("pids"):
            _write(parent / name / "pids.max", str(bounds.threads))
        if parent := self._parents.get("cpu"):
            _write(parent / name / "cpu.shares", str(max(2, round(10.24 * _weight(bounds.share)))))

    def remove(self, name: str) -> None:
        for parent in self._parents.values():
            _empty_and_remove(parent / name)

    def names(self) -> Iterable[str]:
        return _folders(self._parents["memory"])


class _Scopes:
    def __init__(self, mark: str) -> None:
        self._mark = mark
        user = [] if os.geteuid() == 0 else ["--user"]
        self._run = [shutil.which("systemd-run") or "systemd-run", *user]
        self._control = [shutil.which("systemctl") or "systemctl", *user]
        self.detail = "scopes of systemd" + (" (the user's)" if user else "")

    def _unit(self, name: str) -> str:
        return f"{self._mark}-{name}.scope"

    def _properties(self, bounds: CgroupBounds) -> list[str]:
        return [
            f"MemoryMax={bounds.memory_bytes}",
            f"TasksMax={bounds.threads}",
            f"CPUWeight={_weight(bounds.share)}",
        ]

    def create(self, name: str, bounds: CgroupBounds) -> tuple[Sequence[str], Sequence[Path]]:
        words = [*self._run, "--scope", "--quiet", "--collect", "--slice=gpukernel.slice"]
        words += [f"--unit={self._unit(name)}", "--property=MemorySwapMax=0"]
        return (*words, *(f"--property={each}" for each in self._properties(bounds)), "--"), ()

    def change(self, name: str, bounds: CgroupBounds) -> None:
        subprocess.run(
            [*self._control, "set-property", "--runtime", self._unit(name), *self._properties(bounds)],
            check=True,
            capture_output=True,
            timeout=10,
        )

    def remove(self, name: str) -> None:
        """End what is left; a scope goes with its last process."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [*self._control, "kill", "--signal=KILL", self._unit(name)], capture_output=True, timeout=10
            )

    def names(self) -> Iterable[str]:
        command = [*self._control, "list-units", "--plain", "--no-legend", "--type=scope", f"{self._mark}-*"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
            units = [line.split()[0] for line in said.splitlines() if line.split()]
            return [unit.removeprefix(f"{self._mark}-").removesuffix(".scope") for unit in units]
        return []


def _weight(share: float) -> int:
    """Return a share as a weight of cgroup version 2, where 100 is what a group has that nobody set."""
    return max(1, min(10000, round(100 * share)))


def _hierarchies() -> dict[str, Path]:
    """Return this process's own directory in each hierarchy, by controller; that of version 2 is called ``""``."""
    mounts: dict[str, tuple[Path, str]] = {}
    for line in MOUNTS.read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        root, place = fields.split()[3:5]
        name, _, options = kind.split(maxsplit=2)
        if name == "cgroup2":
            mounts[""] = (Path(place), root)
        elif name == "cgroup":
            for controller in options.split(","):
                mounts[controller] = (Path(place), root)
    found = {}
    for line in MEMBERSHIP.read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in mounts:
                mount, top = mounts[controller]
                inside = own.removeprefix(top) if top != "/" else own
                found[controller] = mount / inside.strip("/")
    return found


def _delegated(directory: Path) -> bool:
    """Return whether systemd gave the subtree below `directory` away (its documentation, “Control Group APIs and Delegation”)."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def _version_2(own: Path, mark: str) -> _Version2:
    """Return groups beside this process's own, or below it where nothing else manages them."""
    offered = (own / "cgroup.controllers").read_text().split()
    parent = own
    if SYSTEMD.exists():
        # systemd cannot start a unit again whose own group was divided while workers lived in it.
        parent = own.parent
        if not _delegated(parent):
            raise NoCgroups(
                "systemd manages the groups: the agent's unit needs Delegate= and DelegateSubgroup=agent (systemd 254)"
            )
    if missing := [name for name in ("memory", "pids") if name not in offered]:
        raise NoCgroups(f"cgroup version 2 has no controller {' and '.join(missing)} here")
    wanted = " ".join(f"+{name}" for name in CONTROLLERS if name in offered)
    try:
        if parent == own and (own / "cgroup.type").exists():
            # A group with processes of its own can have no groups with bounds beside them.
            (own / "agent").mkdir(exist_ok=True)
            for pid in (own / "cgroup.procs").read_text().split():
                _write(own / "agent" / "cgroup.procs", pid)
        _write(parent / "cgroup.subtree_control", wanted)
        found = _Version2(parent / mark, wanted)
        with _marked:
            found.prepare()
            _remove(parent / mark)
    except OSError as error:
        raise NoCgroups(f"{parent} may not be divided: {error.strerror}") from None
    return found


def _version_1(own: dict[str, Path], mark: str) -> _Version1:
    parents: dict[str, Path] = {}
    for controller in CONTROLLERS:
        if controller in own:
            directory = own[controller] / mark
            try:
                with _marked:
                    directory.mkdir(exist_ok=True)
                    _remove(directory)
            except OSError as error:
                if controller == "memory":
                    raise NoCgroups(f"{directory} cannot be made: {error.strerror}") from None
                continue
            parents[controller] = directory
    if "memory" not in parents:
        raise NoCgroups("no hierarchy of cgroups has the controller memory")
    return _Version1(parents)


def find_cgroups(state: Path) -> Cgroups:
    """Return a way to bound workers, whose groups carry a mark of the directory `state`.

    Raises
    ------
    NoCgroups
        With a sentence for each way that was tried.
    """
    mark = f"gpukernel-{hashlib.sha256(str(state).encode()).hexdigest()[:8]}"
    try:
        own = _hierarchies()
    except OSError as error:
        raise NoCgroups(f"this system shows no cgroups: {error.strerror}") from None
    reasons = []
    if "" in own:
        try:
            return _version_2(own[""], mark)
        except (NoCgroups, OSError) as error:
            reasons.append(str(error))
    if SYSTEMD.exists():
        scopes = _Scopes(mark)
        words, _ = scopes.create("probe", CgroupBounds(1 << 28, 64, 1.0))
        try:
            done = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=10, check=False)
            if done.returncode == 0:
                return scopes
            reasons.append(f"systemd starts no scope for this account: {' '.join(done.stderr.split())[:200]}")
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"systemd-run: {error}")
    elif set(own) & set(CONTROLLERS):
        try:
            return _version_1(own, mark)
        except NoCgroups as error:
            reasons.append(str(error))
    raise NoCgroups("; ".join(reasons) or "this system has no cgroups")
