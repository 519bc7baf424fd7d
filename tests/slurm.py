"""A Slurm cluster on this machine, in processes of the test's own; it needs root, as Slurm does to run jobs of accounts."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from tests.ports import free_port
from tests.slurm_accounting import Accounting

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
_CONF = """
ClusterName=gpukernel
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={port}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
{accounting}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu{shard_type}
ReturnToService=2
SlurmdTimeout=10
KillWait=15
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,batch_sched_delay=0
"""
# The seconds after which slurmctld has written down what it decided: what was decided later, a crash undoes.
SAVED_AFTER = 6
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000 {gres} State=UNKNOWN\n"


def missing() -> str:
    """Return what keeps a cluster from starting here; empty where nothing does."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    path = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"{absent[0]} is not installed (Debian, Ubuntu: apt-get install slurmctld slurmd slurm-client munge)"
    return ""


@contextlib.contextmanager
def cluster_of(
    nodes: int = 1, gpus: int = 0, shards: int = 0, more: str = "", *, accounting: bool = False
) -> Iterator[Cluster]:
    """A cluster in a temporary directory whose path is short: Slurm's sockets lie there; `more` is for slurm.conf."""
    with TemporaryDirectory(prefix="gpukernel-slurm-") as home:
        Path(home).chmod(0o755)
        with Cluster(Path(home), nodes, gpus, shards, more, accounting=accounting) as running:
            yield running


class Cluster:
    """Context manager; `environment` is for Slurm's commands.  Its nodes are daemons of this machine: one under the machine's name,
    several as ``n1``, ``n2`` …; each has `gpus` devices that Slurm counts and nothing looks at, of `shards` each.
    """

    def __init__(
        self,
        home: Path,
        nodes: int = 1,
        gpus: int = 0,
        shards: int = 0,
        more: str = "",
        *,
        accounting: bool = False,
    ) -> None:
        self.home = home
        self.host = socket.gethostname().partition(".")[0]
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)] if nodes > 1 else [self.host]
        self.environment = {
            "SLURM_CONF": str(home / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin",
        }
        self._gpus, self._shards, self._more = gpus, shards, more
        self.accounting = Accounting(home, self.environment) if accounting else None
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._port, self._kept = free_port(), socket.socket()

    def __enter__(self) -> Self:
        for name in ("munge", "state", *(f"spool.{node}" for node in self.nodes)):
            (self.home / name).mkdir(mode=0o755)
        key = self.home / "munge" / "key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        self._configure()
        munge = self.home / "munge"
        self._start(
            "munged",
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
        if self.accounting:
            try:
                self.accounting.start()
            except BaseException:
                self._daemons["munged"].kill()
                raise
            # A cluster is known before its controller speaks for the first time, which then starts at once.
            self.accounting.must("sacctmgr", "--immediate", "add", "cluster", "gpukernel")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self._until(lambda: all(state == "idle" for state in self.node_states()))
        return self

    def _configure(self) -> None:
        conf = _CONF.format(
            home=self.home,
            host=self.host,
            port=self._port,
            shard_type=",shard" if self._shards else "",
            accounting=self.accounting.settings()
            if self.accounting
            else "AccountingStorageType=accounting_storage/none",
        )
        conf += self._more.format(home=self.home)
        gres = f"Gres=gpu:{self._gpus}" if self._gpus else ""
        if self._shards:
            gres += f",shard:{self._gpus * self._shards}"
        cpus = os.cpu_count()
        for node in self.nodes:
            conf += _NODE.format(name=node, host=self.host, port=free_port(), cpus=cpus, gres=gres)
        conf += (
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:8 State=UP\n"
            "PartitionName=gpu Nodes=ALL MaxTime=INFINITE PriorityTier=1 GraceTime=20 State=UP\n"
            "PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF State=UP\n"
        )
        (self.home / "slurm.conf").write_text(conf)
        lines = ["AutoDetect=off"]
        if self._gpus:
            for number in range(self._gpus):
                # A null device: Slurm tells jobs the numbers of character devices only.
                os.mknod(self.home / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            # Shard jobs are not told the number of their GPU, as `gpukernel slurm configure` has it.
            flags = " Flags=no_gpu_env" if self._shards else ""
            lines.append(f"Name=gpu File={self.home}/gpu[0-{self._gpus - 1}]{flags}")
            lines += [
                f"Name=shard Count={self._shards} File={self.home}/gpu{number}{flags}"
                for number in range(self._gpus if self._shards else 0)
            ]
        (self.home / "gres.conf").write_text("\n".join(lines) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._daemons["slurmctld"].poll() is None:
            self.ask("scancel", "--user=root")
            end = time.monotonic() + 20
            while self.jobs() and time.monotonic() < end:
                time.sleep(0.2)
        self._kept.close()
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons.values()):
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if self.accounting:
            self.accounting.stop()
        for pid in self._of_jobs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ask(self, *command: str) -> str:
        """The answer of one of Slurm's commands."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=30
        )
        return done.stdout if done.returncode == 0 else ""

    def jobs(self) -> list[str]:
        """The states of the jobs that are not over."""
        return self.ask("squeue", "--noheader", "--format=%T").split()

    def node_states(self) -> list[str]:
        """The states of the nodes, by name."""
        lines = sorted(
            self.ask("sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %T").splitlines()
        )
        return [line.split()[1] for line in lines] or ["unknown"]

    def log(self) -> str:
        """The end of the controller's log."""
        return "\n".join((self.home / "slurmctld.log").read_text().splitlines()[-100:])

    # --- failures ---

    def start_controller(self) -> None:
        """Start slurmctld, also again."""
        self._kept.close()
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.home / "slurm.conf"))

    def kill_controller(self) -> None:
        """Kill slurmctld, once it has written down what it decided so far."""
        time.sleep(SAVED_AFTER)
        self._kill("slurmctld")
        # Bound and not listening: who connects is refused, and no other program of this machine takes the port.
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", self._port))

    def start_node(self, node: str) -> None:
        """Start a node's slurmd, also again."""
        self._start(node, "slurmd", "-D", "-f", str(self.home / "slurm.conf"), "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd and all processes of its jobs at once, as a machine does that loses its power."""
        self._kill(node)
        pids = self._of_jobs(node)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another one's end
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _kill(self, name: str) -> None:
        self._daemons[name].kill()
        self._daemons[name].wait()

    def _of_jobs(self, node: str = "") -> set[int]:
        """The living processes of this cluster's jobs, with their step daemons and all that they started: of one node, or of all."""
        parents: dict[int, int] = {}
        steps = set[int]()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if not node and _name(int(path.name)) == "slurmstepd" and self._is_here(path / "cwd"):
                    steps.add(int(path.name))  # also one that waits for a controller that is gone
                words = (path / "environ").read_bytes().decode(errors="replace").split("\0")
                name = next((word for word in words if word.startswith("SLURMD_NODENAME=")), "")
                if (
                    name
                    and f"SLURM_CONF={self.home}/slurm.conf" in words
                    and name.endswith(f"={node}" if node else "")
                ):
                    steps.add(int(path.name))
        for pid in list(steps):
            while (pid := parents.get(pid, 0)) and _name(pid) == "slurmstepd":
                steps.add(pid)
        found = set(steps)
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found

    def _is_here(self, link: Path) -> bool:
        return str(link.readlink()).startswith(str(self.home))

    # --- daemons ---

    def _start(self, name: str, *command: str) -> None:
        with (self.home / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=out, cwd=self.home
            )

    def _until(self, ready: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not ready():
            ended = [daemon for daemon in self._daemons.values() if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                said = "\n".join(
                    path.read_text()[-1500:] for path in (*self.home.glob("*.out"), *self.home.glob("*.log"))
                )
                for daemon in self._daemons.values():
                    daemon.kill()
                raise RuntimeError(f"Slurm did not start:\n{said}")
            time.sleep(0.2)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
