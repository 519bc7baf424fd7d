"""A pool, a real Slurm with shards, and on each of its nodes an agent and the daemon that gives shard jobs their slices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpukernel import native
from gpukernel.client.admin import AdminClient
from gpukernel.common.model import Device, Lease
from tests.engines.slurm.lending import command, output_of
from tests.ports import free_port
from tests.slurm import Cluster

SHARDS = 100
CONF = """
CliFilterPlugins=lua
Epilog={home}/hook
"""
LITTLE = ["setpriv", "--bounding-set=-all,+chown,+fowner", "--no-new-privs"]
"""The daemon's rights besides those of every account, as in ``deploy/systemd/gpukernel-slurm.service``."""
MEMORY = (
    "from cuda.bindings import driver as d\n"
    "d.cuInit(0); _, one = d.cuDeviceGet(0); _, context = d.cuDevicePrimaryCtxRetain(one); d.cuCtxSetCurrent(context)\n"
    "print(d.cuDeviceGetCount()[1], d.cuDeviceTotalMem(one)[1], flush=True)\n"
)
"""A program that says how many devices it sees and how much memory the first has, in bytes."""


PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
typedef int (*Call)();
int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    size_t bytes = 0;
    int device = 0, status;
    if (!library) return puts("error no libcuda"), 1;
    status = ((Call)dlsym(library, "cuInit"))(0);
    if (!status) status = ((Call)dlsym(library, "cuDeviceGet"))(&device, 0);
    if (!status) status = ((Call)dlsym(library, "cuDeviceTotalMem_v2"))(&bytes, device);
    if (status) return printf("error %d\n", status), 1;
    return printf("%zu\n", bytes), 0;
}
"""


def memory_program(folder: Path) -> Path:
    """Return a program that every account can run and that prints the memory of its device, in bytes."""
    program, source = folder / "memory", folder / "memory.c"
    if not program.exists():
        source.write_text(PROGRAM)
        subprocess.run(["cc", "-o", str(program), str(source), "-ldl"], check=True, capture_output=True)
    return program


class Sharing:
    """The pool and the daemons; every device belongs to Slurm."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.home, self.state = cluster, home, home / "pool"
        self.environment = {**os.environ, **cluster.environment}
        self.admin, self.own = home / "admin.pool", home / "slurm.pool"
        self.folder = cluster.home / "jobs"
        self._processes: dict[str, subprocess.Popen[str]] = {}
        hook = cluster.home / "hook"
        hook.write_text(f"#!{native.slurm_hook()} {self.folder}\n")
        hook.chmod(0o755)
        words = ("slurm", "configure", "--filter", "--simulated", "--folder", str(self.folder))
        (cluster.home / "cli_filter.lua").write_text(self.run(*words))
        self.run("pool", "init", "--state", str(self.state), "--name", "127.0.0.1")
        self._port = free_port()
        self.start_pool()
        self.token("admin", "admin", self.admin)
        self.token("slurm", "slurm", self.own)
        for node in cluster.nodes:
            self.token(node, "agent", home / f"{node}.pool")
            self.start_agent(node)
        self.until(lambda: len(self.devices()) == 2 * len(cluster.nodes))
        for device in self.devices():
            self.run("server", "delegate", device.label, "--to", "slurm", "--pool", str(self.admin))
        for node in cluster.nodes:
            self.start_daemon(node)

    def run(self, *arguments: str) -> str:
        return output_of(self.environment, *arguments)

    def token(self, name: str, scope: str, file: Path) -> None:
        self.run("token", "create", name, "--scope", scope, "--file", str(file), "--state", str(self.state))

    def until(self, ready: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.home.glob("*.log"))

    # --- servers ---

    def _start(self, name: str, says: str, *words: str, before: Sequence[str] = ()) -> None:
        with (self.home / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [*before, *command(*words)],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._processes[name] = process
        assert process.stdout is not None
        assert says in process.stdout.readline(), self.logs()

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.communicate()

    def start_pool(self) -> None:
        listen = ["--listen", f"127.0.0.1:{self._port}", "--state", str(self.state)]
        self._start("pool", "The pool is ready", "pool", *listen)

    def start_agent(self, node: str) -> None:
        state = self.home / f"agent-{node}"
        self._start(
            f"agent-{node}", "is ready", "agent", "--pool", str(self.home / f"{node}.pool"), "--simulate", "v100:2",
            "--state", str(state), "--tcp-host", "127.0.0.1", "--name", node,
        )  # fmt: skip

    def start_daemon(self, node: str, sweep: str = "1s") -> None:
        self._start(
            f"daemon-{node}", "get their slices", "slurm", "node", "--pool", str(self.own), "--node", node,
            "--folder", str(self.folder), "--sweep", sweep, before=LITTLE,
        )  # fmt: skip

    def close(self) -> None:
        self.cluster.ask("scancel", "--user=root")
        for name in reversed(self._processes):
            self._processes[name].terminate()
        for process in self._processes.values():
            process.communicate(timeout=60)

    # --- jobs ---

    def node_folder(self, node: str = "") -> Path:
        """Return the folder of a node, or of the only one."""
        return self.folder / (node or self.cluster.nodes[0])

    def jobs_folder(self, node: str = "") -> Path:
        """Return the folder of a node's jobs."""
        return self.node_folder(node) / "jobs"

    def resume(self) -> None:
        """Take all nodes into service again: an epilog that fails takes its node out."""
        for node in self.cluster.nodes:
            self.cluster.ask("scontrol", "update", f"nodename={node}", "state=resume")
        self.until(lambda: not {"drained", "draining"} & set(self.cluster.node_states()))

    def srun(self, *words: str, user: int = 0, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["srun", "--quiet", *words], env=self.environment, capture_output=True, text=True, check=False,
            timeout=timeout, user=user, group=user, extra_groups=[], cwd="/tmp",
        )  # fmt: skip

    def python(self, code: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run Python in a job."""
        return self.srun(*options, sys.executable, "-c", code)

    def sbatch(self, script: str, *options: str, user: int = 0) -> str:
        """Submit a job and return its number."""
        done = subprocess.run(
            ["sbatch", "--parsable", *options], input=f"#!/bin/sh\n{script}\n", env=self.environment,
            capture_output=True, text=True, check=False, timeout=60, cwd="/tmp",
            user=user, group=user, extra_groups=[],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # --- the pool ---

    def leases(self, *, ended: bool = False) -> list[Lease]:
        async def work() -> list[Lease]:
            async with AdminClient(str(self.admin)) as client:
                return (await client.leases(include_ended=ended))[0]

        return asyncio.run(work())

    def end(self, lease: Lease) -> None:
        """End a lease as an administrator."""

        async def work() -> None:
            async with AdminClient(str(self.admin)) as client:
                await client.release(lease.id, "ended by hand")

        asyncio.run(work())

    def devices(self) -> list[Device]:
        async def work() -> list[Device]:
            async with AdminClient(str(self.admin)) as client:
                return await client.devices()

        return asyncio.run(work())


@contextlib.contextmanager
def sharing(cluster: Cluster, home: Path) -> Iterator[Sharing]:
    """A `Sharing` that leaves no process behind."""
    world = Sharing(cluster, home)
    try:
        yield world
    finally:
        world.close()
