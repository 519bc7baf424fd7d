"""A Slurm cluster of one node, this machine, in processes of the test's own; it needs root, as Slurm does to run jobs of accounts."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
_CONF = """
ClusterName=gpukernel
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerParameters=sched_interval=5,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:8 State=UP
"""


def missing() -> str:
    """What keeps a cluster from starting here; empty where nothing does."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    path = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"{absent[0]} is not installed (Debian, Ubuntu: apt-get install slurmctld slurmd slurm-client munge)"
    return ""


class Cluster:
    """Context manager; `environment` is for Slurm's commands.  `home` has a short path: Slurm's sockets lie there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.host = socket.gethostname().partition(".")[0]
        self.environment = {
            "SLURM_CONF": str(home / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin",
        }
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for name in ("munge", "state", "spool"):
            (self.home / name).mkdir(mode=0o755)
        key = self.home / "munge" / "key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        ports = [free_port(), free_port()]
        conf = _CONF.format(
            home=self.home,
            host=self.host,
            cpus=os.cpu_count(),
            controller_port=ports[0],
            node_port=ports[1],
        )
        (self.home / "slurm.conf").write_text(conf)
        munge = self.home / "munge"
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )
        self._until(lambda: (munge / "socket").exists())
        self._start("slurmctld", "-D", "-f", str(self.home / "slurm.conf"))
        self._start("slurmd", "-D", "-f", str(self.home / "slurm.conf"), "-N", self.host)
        self._until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%T"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(RuntimeError):
            self.ask("scancel", "--user=root")
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def ask(self, *command: str) -> str:
        """The answer of one of Slurm's commands."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=30
        )
        return done.stdout if done.returncode == 0 else ""

    def jobs(self) -> list[str]:
        """The states of the jobs that are not over."""
        return self.ask("squeue", "--noheader", "--format=%T").split()

    def _start(self, *command: str) -> None:
        with (self.home / f"{command[0]}.out").open("wb") as out:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=out, stderr=out, cwd=self.home)
            )

    def _until(self, ready: object, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not ready():  # type: ignore[operator]
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                said = "\n".join(
                    path.read_text()[-1500:] for path in (*self.home.glob("*.out"), *self.home.glob("*.log"))
                )
                self.__exit__(None, None, None)
                raise RuntimeError(f"Slurm did not start:\n{said}")
            time.sleep(0.2)
