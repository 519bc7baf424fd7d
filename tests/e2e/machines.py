"""Machines that are namespaces: each with addresses, files in ``/etc``, ``/home``, ``/root``, ``/run``, ``/tmp`` and ``/var/lib``, accounts and processes of
its own, and the repository's environment as ``/opt/gpukernel``.  They share the kernel and what is installed.

A pair of virtual network cards connects each two of them; there is no way to anywhere else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
_SPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
_COVERED = ("/root", "/home", "/run", "/opt", "/dev/shm", "/tmp", "/var/lib")
_NEEDED = ("unshare", "nsenter", "ip", "mount", "useradd")


def missing() -> str:
    """Return what keeps machines from being made here; empty where nothing does."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if absent := [name for name in _NEEDED if shutil.which(name, path=path) is None]:
        return f"{absent[0]} is not installed"
    words = ["unshare", *_SPACES, "--fork", "--mount-proc", "sh", "-c"]
    words += ["mount -t tmpfs none /mnt && ip link add name card1 type veth peer name card2"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()[:200]}" if tried.returncode else ""


class Machine:
    """Context manager; `folder` holds what it is made from."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self._shells: dict[str, Shell] = {}
        self._init: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir()
        subprocess.run(["cp", "-a", "/etc", str(self._folder / "etc")], check=True)
        (self._folder / "etc" / "machine-id").write_text(secrets.token_hex(16) + "\n")
        kept = list(dict.fromkeys([sys.base_prefix, str(ROOT), sys.prefix]))
        lines = ["set -e", "mount --make-rprivate /", f"hostname {self.name}"]
        lines += [f"mount --bind {self._folder}/etc /etc"]
        # What Python needs may lie below what is covered.
        for number, place in enumerate(kept):
            (self._folder / f"keep{number}").mkdir()
            lines += [f"mount --bind {shlex.quote(place)} {self._folder}/keep{number}"]
        lines += [f"exec 9<{self._folder}"]
        for place in _COVERED:
            lines += [
                f"mkdir -p {place}",
                f"mount -t tmpfs -o mode={'1777' if place == '/tmp' else '755'} none {place}",
            ]
        for number, place in enumerate(kept):
            lines += [
                f"mkdir -p {shlex.quote(place)}",
                f"mount --bind /proc/self/fd/9/keep{number} {shlex.quote(place)}",
            ]
        lines += [
            "mkdir /opt/gpukernel",
            f"mount --bind {shlex.quote(sys.prefix)} /opt/gpukernel",
            "exec 9<&-",
        ]
        lines += ["ip link set lo up", "echo ready", "exec sleep infinity"]
        self._init = subprocess.Popen(
            ["unshare", *_SPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", "\n".join(lines)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "ready\n":
            raise RuntimeError(f"machine {self.name} did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.switch_off()

    def switch_off(self) -> None:
        """End it with everything on it at once."""
        for shell in self._shells.values():
            shell.close()
        self._shells.clear()
        if self._init is not None:
            self._init.kill()
            self._init.wait()
            self._init = None

    @property
    def pid(self) -> int:
        """Its first process, as this machine numbers it."""
        assert self._init is not None
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        return int(children[0])

    def words(self) -> list[str]:
        """The beginning of a command that is to run there."""
        return ["nsenter", "--target", str(self.pid), *_SPACES]

    def know(self, name: str, address: str) -> None:
        """Add a line to its ``/etc/hosts``."""
        with (self._folder / "etc" / "hosts").open("a") as file:
            file.write(f"{address} {name}\n")

    def shell(self, account: str = "root") -> Shell:
        """The one shell of an account on it, in which variables last."""
        if account not in self._shells:
            self._shells[account] = Shell(self.words(), account)
        return self._shells[account]


def connect(machines: Mapping[str, Machine]) -> None:
    """Connect each two of the machines; all know all by the names in `machines`, and each has one address."""
    addresses = {name: f"10.213.9.{number}" for number, name in enumerate(machines, 1)}
    for name, machine in machines.items():
        machine.shell().run(f"ip address add {addresses[name]}/32 dev lo")
        for other, address in addresses.items():
            machine.know(other, address)
    for number, ends in enumerate(itertools.combinations(machines, 2)):
        one, other = (machines[name] for name in ends)
        cards = (f"to{number}a", f"to{number}b")
        # From outside, where the processes of both are in sight.
        words = ["nsenter", "--target", str(one.pid), "--net", "ip", "link", "add", "name", cards[0]]
        subprocess.run(
            [*words, "type", "veth", "peer", "name", cards[1], "netns", str(other.pid)], check=True
        )
        for name, far, card in zip(ends, reversed(ends), cards, strict=True):
            route = f"{addresses[far]}/32 dev {card} src {addresses[name]}"
            machines[name].shell().run(f"ip link set {card} up && ip route add {route}")


class Shell:
    """Bash on a machine, as an account of its own."""

    def __init__(self, words: list[str], account: str) -> None:
        if account != "root":
            words = [
                *words,
                "setpriv",
                f"--reuid={account}",
                f"--regid={account}",
                "--init-groups",
                "--no-new-privs",
            ]
        home = "/root" if account == "root" else f"/home/{account}"
        environment = {
            "HOME": home,
            "USER": account,
            "LANG": "C.UTF-8",
            "PATH": "/run/commands:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        }
        words = [
            *words,
            "env",
            "-i",
            "-C",
            home,
            *(f"{name}={value}" for name, value in environment.items()),
            "bash",
        ]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, command: str) -> str:
        """Run a command and return what it says; fail where it does."""
        status, said = self.try_(command)
        assert status == 0, f"{command}\n{said}"
        return said

    def try_(self, command: str) -> tuple[int, str]:
        """Run a command; return its status and what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = f"done-{secrets.token_hex(8)}"
        self._process.stdin.write(f"{command}\necho {mark} $?\n")
        self._process.stdin.flush()
        said = ""
        for line in self._process.stdout:
            before, found, status = line.partition(f"{mark} ")
            said += before
            if found:
                return int(status), said
        raise AssertionError(f"the shell has ended after {command}\n{said}")

    def close(self) -> None:
        """End the shell."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def started(folder: Path, *names: str) -> Iterator[dict[str, Machine]]:
    """Give machines by name, and switch them off at the end."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Machine(name, folder / name)) for name in names}
