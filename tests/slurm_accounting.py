"""Slurm's accounting on this machine: slurmdbd, and a MariaDB of its own behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.ports import free_port

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "faketime")
TRES = ("cpu", "gres/gpu", "gres/shard")
_CONF = """
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={home}/slurmdbd.pid
LogFile={home}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=slurm
"""


def missing() -> str:
    """Return what keeps accounting from starting here; empty where nothing does."""
    path = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return (
            f"{absent[0]} is not installed (Debian, Ubuntu: apt-get install slurmdbd mariadb-server faketime)"
        )
    return ""


class Accounting:
    """The daemons; `environment` is that of Slurm's commands."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home, self.environment = home, environment
        self.port, self._database = free_port(), free_port()
        self._daemons: list[subprocess.Popen[bytes]] = []

    def settings(self) -> str:
        """Return the lines of slurm.conf."""
        return (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePass={self.home}/munge/socket\n"
            f"AccountingStoragePort={self.port}\nAccountingStorageEnforce=associations,limits,qos\n"
            f"AccountingStorageTRES={','.join(TRES[1:])}\nJobCompType=jobcomp/none\n"
        )

    def start(self) -> None:
        """Start both; munged has to run."""
        data, socket = self.home / "database", self.home / "database.sock"
        with (self.home / "database.out").open("ab") as out:
            subprocess.run(
                ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"],
                env=self.environment, stdout=out, stderr=out, check=True, timeout=120,
            )  # fmt: skip
            database = subprocess.Popen(
                ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--user=root",
                 f"--port={self._database}", "--bind-address=127.0.0.1", "--skip-grant-tables",
                 "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"],
                env=self.environment, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self._daemons.append(database)
        conf = self.home / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text(_CONF.format(home=self.home, port=self.port, database=self._database))
        self._until(socket.exists)
        self._start_slurmdbd()

    def _start_slurmdbd(self, *before: str) -> None:
        with (self.home / "slurmdbd.out").open("ab") as out:
            process = subprocess.Popen(
                [*before, "slurmdbd", "-D"],
                env=self.environment,
                stdout=out,
                stderr=out,
                start_new_session=True,  # faketime runs it as a child
            )
        self._daemons.append(process)
        self._until(lambda: self.ask("sacctmgr", "--noheader", "show", "cluster") is not None)

    def roll_up(self) -> None:
        """Have slurmdbd add up the hours that are not over: it is started again with a clock that is an hour and more ahead."""
        _end(self._daemons.pop())
        self._start_slurmdbd("faketime", "-f", "+65m")

    def ask(self, *command: str) -> str | None:
        """Return the answer of one of Slurm's commands; None where it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout if done.returncode == 0 else None

    def must(self, *command: str) -> str:
        """Return the answer of one of Slurm's commands, which has to work."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout

    def stop(self) -> None:
        """Stop both."""
        while self._daemons:
            _end(self._daemons.pop())

    def _until(self, ready: object, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        assert callable(ready)
        while not ready():
            if time.monotonic() > end or any(one.poll() is not None for one in self._daemons):
                said = "\n".join(path.read_text()[-1500:] for path in self.home.glob("*d*.out"))
                self.stop()
                raise RuntimeError(f"Slurm's accounting did not start:\n{said}")
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon with all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(30)
            return
        except subprocess.TimeoutExpired:
            pass
