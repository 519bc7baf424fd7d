"""The kernel provisioner ``gpu-slice``: a local kernel whose CUDA calls go to a slice that the pool leased.

What calls what, and when (as observed with jupyter_client 8.10):

* start: `pre_launch` → `launch_kernel`; restart: … → `cleanup(restart=True)` → `pre_launch` → …; end: `cleanup(restart=False)`.
* No `cleanup` follows when `pre_launch` or `launch_kernel` raises, so both give back what they took.
* A kernel that dies by itself is noticed by `gpukernel.jupyter.lease_manager`; a server that dies, by the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Enum, Float, Int, Unicode

from gpukernel.common.account import own_name
from gpukernel.jupyter.error_display import show_as_sentence
from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.kernelspecs import DIRECT_AT_START
from gpukernel.jupyter.lease_manager import lease_manager
from gpukernel.jupyter.ports import ReservedPorts

__all__ = ["GPUSliceProvisioner", "notebook_of"]


_MAGICS = "--InteractiveShellApp.extra_extensions=gpukernel"
_QUIET_WARNING = "ignore:cuda.bindings.nvjitlink is not available:RuntimeWarning"


LONGEST_NAME = 80


def notebook_of(environment: Mapping[str, str]) -> str:
    """Return the name of the notebook, console or script that a kernel is started for; empty where nobody says it.

    `jupyter_server` puts the session's path into ``JPY_SESSION_NAME``; that of a session without a name ends with a slash.  A program that
    executes one notebook, such as nbconvert, has it among its arguments; papermill has the one that it writes behind it.
    """
    path = environment.get("JPY_SESSION_NAME")
    if path is None and "jupyter_server.serverapp" not in sys.modules:
        named = [word for word in sys.argv[1:] if word.endswith(".ipynb")]
        if len(named) == 1 or "papermill" in sys.argv[0]:
            path = named[0] if named else None
    name = os.path.basename(path or "")
    return name[:LONGEST_NAME] if name.isprintable() else ""


_knows_gpukernel: dict[str, bool] = {sys.executable: True}


async def with_magics(command: list[str]) -> list[str]:
    """Return `command` with ``%load_ext gpukernel`` where it starts an ipykernel whose Python has the package."""
    if not any("ipykernel" in word for word in command[:4]):
        return command
    python = command[0]
    if python not in _knows_gpukernel:
        look = "import importlib.util as u, sys; sys.exit(u.find_spec('gpukernel') is None)"
        try:
            process = await asyncio.create_subprocess_exec(
                python, "-c", look, stderr=asyncio.subprocess.DEVNULL
            )
            _knows_gpukernel[python] = await process.wait() == 0
        except OSError:
            return command  # starting the kernel will say what is wrong
    return [*command, _MAGICS] if _knows_gpukernel[python] else command


class GPUSliceProvisioner(LocalProvisioner):
    """A provisioner that starts a kernel on this machine with a slice of a pool's GPU.

    The traits come from ``metadata.kernel_provisioner.config`` of the kernelspec.
    """

    share = Float(0.0, help="Part of one device's memory, above 0 and up to 1; or set `memory_mib`.").tag(
        config=True
    )
    memory_mib = Int(0, help="Size of the slice in MiB, in place of `share`.").tag(config=True)
    devices = Int(1, help="How many devices, each with a slice of that size.").tag(config=True)
    model = Unicode("", help="Part of the device model's name, for example V100; empty: any model.").tag(
        config=True
    )
    acquire = Enum(
        ["at_start", "on_first_use"],
        "at_start",
        help="When the slice is asked for: before the kernel starts, or when CUDA is first used; the latter in remote mode only.",
    ).tag(config=True)
    priority = Enum(
        ["interactive", "batch", "scavenger"],
        "interactive",
        help="The class of its requests: batch and scavenger are served after interactive ones.",
    ).tag(config=True)
    wait_seconds = Float(
        5.0,
        help="How long a start waits for its slice, in seconds; then the kernel starts, and its first CUDA call waits in the queue. "
        "In direct mode the start fails then, and in mode auto the queue is for a remote slice.",
    ).tag(config=True)
    pool = Unicode(
        "", help="Address of the pool; empty: GPUKERNEL_POOL, else the socket in the state directory."
    ).tag(config=True)
    mode = Enum(
        ["remote", "direct", "auto"],
        "remote",
        help="remote: a worker executes the kernel's CUDA calls; direct: the kernel uses a GPU of its own machine itself; "
        "auto: direct where that is possible.",
    ).tag(config=True)
    course = Unicode(
        "", help="Course that the slice is for; empty: GPUKERNEL_COURSE, which a JupyterHub sets."
    ).tag(config=True)

    _key = ""  # of the kernel's lease, while there is one
    _notebook = ""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._ports = ReservedPorts()

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Acquire the slice (a restart gets the one it had) and put the shim into the kernel's environment.

        Raises
        ------
        SliceUnavailable
            One sentence: the pool refused, or cannot be reached.
        """
        self._notebook = notebook_of(kwargs.get("env") or {})
        try:
            await self._ask_for_slice(self.mode)
        except SliceUnavailable:
            show_as_sentence(self.log)
            raise
        try:
            if self.parent is not None and self._ports.assign(self.parent):
                self.ports_cached = True  # so that the base class leaves them alone
            kwargs = await super().pre_launch(**kwargs)
            kwargs["env"] = await self._environment(kwargs["env"], kwargs["cmd"][0])
            kwargs["cmd"] = await with_magics(kwargs["cmd"])
        except BaseException:
            await self._release("the kernel could not be prepared")
            raise
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start ipykernel itself, without a wrapper: it watches its direct parent and ends with it."""
        try:
            connection = await super().launch_kernel(cmd, **kwargs)
            assert self.process is not None
            await lease_manager().watch(self._key, self.process.pid)
        except BaseException:
            await self._release("the kernel could not be started")
            raise
        return connection

    async def send_signal(self, signum: int) -> None:
        """Pass a signal on; an interrupt also leaves the queue, or ends GPU work that would keep the cell waiting for ever.

        A shutdown begins with an interrupt, and so does a restart, which keeps its place in the queue.
        """
        await super().send_signal(signum)
        if signum == signal.SIGINT and self._key:
            with contextlib.suppress(SliceUnavailable):
                ending = getattr(self.parent, "shutting_down", False)
                await lease_manager().interrupt(self._key, ending=ending)

    async def cleanup(self, restart: bool = False) -> None:
        """Give the slice back, unless the kernel is about to be started again."""
        if not restart:
            await self._release("the kernel was shut down")
        await super().cleanup(restart)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what another process needs to take this kernel over."""
        mode = await lease_manager().mode(self._key) if self._key else ""
        return {
            **await super().get_provisioner_info(),
            "gpukernel": mode,
            "gpukernel_notebook": self._notebook,
        }

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take a running kernel over; a request under its id gives the lease that it has."""
        await super().load_provisioner_info(provisioner_info)
        if provisioner_info.get("gpukernel"):
            self._notebook = provisioner_info.get("gpukernel_notebook", "")
            await self._ask_for_slice(provisioner_info["gpukernel"])
            await lease_manager().environment(
                self._key, dict(os.environ)
            )  # it has one: this is for its lease file
            await lease_manager().watch(self._key, int(provisioner_info["pid"]))

    async def _ask_for_slice(self, mode: str) -> None:
        from gpukernel.client.pool import resolve_address
        from gpukernel.common.errors import PoolError
        from gpukernel.common.machine import machine_identity
        from gpukernel.common.model import Holder, SliceRequest

        if self.acquire == "on_first_use":
            if mode == "direct":
                raise SliceUnavailable(DIRECT_AT_START)
            mode = "remote"  # what `auto` comes to, since the kernel starts without a slice
        size = self.memory_mib * 2**20
        if not size and not 0 < self.share <= 1:
            raise SliceUnavailable(
                f"The kernelspec asks for a share of {self.share:g}; a share lies above 0 and up to 1. "
                "Write it again with “gpukernel kernelspec install”."
            )
        request = SliceRequest(
            share=None if size else self.share,
            memory_bytes=size or None,
            devices=self.devices,
            model=self.model,
            mode=mode,
            machine="" if mode == "remote" else machine_identity(),
            user=os.getuid(),
            priority=self.priority,
        )
        holder = Holder(
            person=os.environ.get("JUPYTERHUB_USER") or own_name(),
            server=os.environ.get("JUPYTERHUB_SERVER_NAME") or platform.node(),
            course=self.course or os.environ.get("GPUKERNEL_COURSE", ""),
            description=self._notebook or f"kernel {self.kernel_id[:8]}",
        )
        try:
            address = resolve_address(self.pool or None, None)
        except PoolError as error:
            raise SliceUnavailable(str(error)) from None
        self._key = self.kernel_id
        try:
            await lease_manager().register(self._key, address, request, holder, self._lease_file())
            if self.acquire == "at_start":
                await lease_manager().acquire(self._key, self.wait_seconds)
        except BaseException:  # also where the start is cancelled
            await self._release("no slice could be had")
            raise

    def _lease_file(self) -> Path:
        """Return a path beside the connection file; a manager that has none yet will write it in the runtime directory."""
        from jupyter_core.paths import jupyter_runtime_dir

        named = self.parent.connection_file if self.parent is not None else ""
        place = Path(named).resolve().parent if named else Path(jupyter_runtime_dir())
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place / f"gpukernel-{self.kernel_id}.lease"

    async def _environment(self, base: dict[str, str], interpreter: str) -> dict[str, str]:
        from gpukernel.remoting.environment import QUIET_NUMBA, with_commands

        base = with_commands(base, interpreter)
        if self.memory_mib or self.share < 1:  # also where the slice comes later
            base.setdefault(QUIET_NUMBA, "0")
        environment = await lease_manager().environment(self._key, base)
        # A slice's environment comes without nvJitLink on purpose (docs/simulated-gpu.md): no red text about it in cells.
        warnings = [base.get("PYTHONWARNINGS", ""), _QUIET_WARNING]
        return environment | {"PYTHONWARNINGS": ",".join(filter(None, warnings))}

    async def _release(self, reason: str) -> None:
        self._ports.close()
        key, self._key = self._key, ""
        if key:
            await lease_manager().close_key(key, reason)
