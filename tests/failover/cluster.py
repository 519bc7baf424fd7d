"""Several real pools on one real PostgreSQL server, with real agents: each is a process that can be killed and started again."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.ports import free_port

__all__ = ["Cluster", "Postgresql", "Process", "programs"]

READY_SECONDS = 120.0
MODELS = ("v100:2", "v100:2", "a100:1")
CLI = (sys.executable, "-m", "gpukernel.cli")


def programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs, which Debian keeps out of PATH; None where it is not installed."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent  # there may be a link to it alone
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return installed[-1] if installed else None


class Postgresql:
    """A PostgreSQL server of its own in `folder`, whose commits are on disk before they count, as in earnest."""

    def __init__(self, folder: Path) -> None:
        found = programs()
        assert found is not None
        self.programs, self.folder = found, folder
        self._as_account: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            names = {p.pw_name for p in pwd.getpwall()}
            account = pwd.getpwnam(next(n for n in ("postgres", "nobody", getpass.getuser()) if n in names))
            os.chown(folder, account.pw_uid, account.pw_gid)
            # Another program changes the account: what runs between fork and exec in a process with gRPC's threads may crash.
            who = f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"
            self._as_account = ["setpriv", *who]
        self.port = free_port()
        self._run("initdb", "-D", self.data, "-A", "trust", "-U", "pool")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def address(self, database: str = "postgres") -> str:
        return f"postgresql://pool@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        # Output goes to a file: a server that is started keeps what it inherits open.
        with (self.folder / "output").open("w") as output:
            return subprocess.run(
                [*self._as_account, self.programs / program, *map(str, arguments)],
                stdout=output,
                stderr=output,
                check=True,
                cwd=self.folder,
                text=True,
            )

    def start(self) -> None:
        """Start it, also after it was killed; return when it answers."""
        options = f"-k {self.folder} -p {self.port} -c listen_addresses=127.0.0.1 -c max_connections=100"
        end = time.monotonic() + READY_SECONDS
        while True:
            try:
                self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-o", options, "-w", "start")
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > end:  # the children of one that was killed take a moment to leave
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.2)

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def processes(self) -> list[int]:
        """Return the server's process and its children's."""
        server = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{server}/task/{server}/children").read_text()
        return [server, *map(int, children.split())]

    def kill(self) -> None:
        """End the server with SIGKILL; its children notice."""
        os.kill(self.processes()[0], signal.SIGKILL)


class Process:
    """A command of gpukernel's that stays in the foreground, and can be started again."""

    def __init__(self, name: str, log: Path, environment: dict[str, str], *arguments: object) -> None:
        self.name, self.log = name, log
        self._environment, self._arguments = environment, [*CLI, *map(str, arguments)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._arguments,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_ready(self, times: int = 1) -> None:
        """Wait until it has said so often that it is ready."""
        end = time.monotonic() + READY_SECONDS
        while self.log.read_text(errors="replace").count(" is ready") < times:
            if time.monotonic() > end or not self.runs:
                raise RuntimeError(f"{self.name} is not ready: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait for the end."""
        if self.process is not None and self.runs:
            self.process.send_signal(number)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Cluster:
    """Pools that share one authority, agents with the connection file of all pools, and the files of holders and administrators.

    Parameters
    ----------
    models
        The simulated devices of each GPU server.
    database
        Its name on the PostgreSQL server; without one, one pool has its file of SQLite.
    """

    def __init__(
        self, folder: Path, pools: int = 3, models: Sequence[str] = MODELS, database: str = "postgres"
    ) -> None:
        self.folder, self.database = folder, database
        assert database or pools == 1
        self.devices = sum(int(model.rpartition(":")[2]) for model in models)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUKERNEL_")}
        self.environment = environment
        if database:
            (folder / "postgresql").mkdir()
            self.postgresql = Postgresql(folder / "postgresql")
            self.environment = environment | {"GPUKERNEL_DATABASE": self.postgresql.address(database)}
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(pools)]
        self.pools = [
            Process(
                f"pool {n}",
                folder / f"pool{n}.log",
                self.environment,
                *("pool", "--listen", address, "--state", self.state(n)),
                *("--calls-per-second", 1000, "--calls-at-once", 1000),
            )
            for n, address in enumerate(self.addresses)
        ]
        self.agents = [
            Process(
                f"agent {n}",
                folder / f"agent{n}.log",
                environment,
                *("agent", "--pool", folder / f"gpu{n}.pool", "--simulate", model, "--name", f"gpu{n}"),
                *("--state", folder / f"agent{n}", "--confinement", "off"),
            )
            for n, model in enumerate(models)
        ]

    def state(self, number: int) -> Path:
        return self.folder / f"pool{number}"

    def gpukernel(self, *arguments: object) -> str:
        """Run a command beside the pools; return what it says."""
        done = subprocess.run(
            [*CLI, *map(str, arguments)],
            env=self.environment | {"GPUKERNEL_STATE": str(self.state(0))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def all_pools(self) -> str:
        return ",".join(f"tls://{address}" for address in self.addresses)

    def file(self, name: str, *options: object) -> Path:
        """Return a new connection file that leads to all pools."""
        path = self.folder / f"{name}.pool"
        self.gpukernel("token", "create", name, *options, "--file", path)
        return path

    def start(self) -> None:
        """Start everything, and return when all of it is ready."""
        if self.database:
            self.postgresql.start()
        if self.database not in ("", "postgres"):
            at = ("-h", self.postgresql.folder, "-p", self.postgresql.port, "-U", "pool")
            self.postgresql._run("createdb", *at, self.database)
        self.gpukernel("pool", "init", "--name", "127.0.0.1", "--state", self.state(0))
        for number in range(1, len(self.pools)):
            self.state(number).mkdir()
            shutil.copytree(self.state(0) / "tls", self.state(number) / "tls")
        for pool in self.pools:
            pool.start()
        for pool in self.pools:
            pool.wait_ready()
        self.administrator = self.file("admin", "--scope", "admin")
        self.holders = self.file("hub", "--scope", "service")
        for number, agent in enumerate(self.agents):
            self.file(f"gpu{number}", "--scope", "agent")
            agent.start()
        for agent in self.agents:
            agent.wait_ready()

    def stop(self) -> None:
        """Stop everything."""
        for process in (*self.agents, *self.pools):
            process.end(signal.SIGTERM)
        if self.database:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.postgresql.stop("immediate")


@contextlib.contextmanager
def cluster(pools: int = 3, models: Sequence[str] = MODELS, database: str = "postgres") -> Iterator[Cluster]:
    """Run a cluster in a folder of its own, which is removed unless something fails."""
    folder = Path(tempfile.mkdtemp(prefix="gpukernel-failover-"))
    folder.chmod(0o755)
    try:
        with contextlib.ExitStack() as stack:
            running = Cluster(folder, pools, models, database)
            stack.callback(running.stop)  # also where it does not come up
            running.start()
            yield running
    except BaseException:
        print(f"what the processes have said is in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder, ignore_errors=True)
