"""The kernel provisioner ``gpu-slice``: a local kernel whose CUDA calls go to a slice that the pool leased.

What calls what, and when (as observed with jupyter_client 8.10):

* start: `pre_launch` → `launch_kernel`; restart: … → `cleanup(restart=True)` → `pre_launch` → …; end: `cleanup(restart=False)`.
* No `cleanup` follows when `pre_launch` or `launch_kernel` raises, so both give back what they took.
* A kernel that dies by itself is noticed by `gpukernel.jupyter.keeper`; a server that dies, by the pool.
"""

from __future__ import annotations

import getpass
import os
import platform
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Enum, Float, Int, Unicode

from gpukernel.jupyter.keeper import SliceUnavailable, keeper
from gpukernel.jupyter.plainly import show_plainly
from gpukernel.jupyter.ports import ReservedPorts

if TYPE_CHECKING:
    from gpukernel.pool.model import Lease

__all__ = ["GPUSliceProvisioner"]


_QUIET_WARNING = "ignore:cuda.bindings.nvjitlink is not available:RuntimeWarning"


class GPUSliceProvisioner(LocalProvisioner):
    """Start a kernel on this machine with a slice of a pool's GPU.

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
    wait_seconds = Float(
        20.0, help="How long a start waits in the queue of a full pool before it is refused, in seconds."
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
    course = Unicode("", help="Course that the slice is for, shown in the pool's tables.").tag(config=True)

    _lease: Lease | None = None
    _address = ""
    _lease_file: Path | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._ports = ReservedPorts()

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Acquire the slice (a restart gets the one it had) and put the shim into the kernel's environment.

        Raises
        ------
        SliceUnavailable
            One sentence: the pool refused, cannot be reached, or had nothing free within `wait_seconds`.
        """
        try:
            await self._acquire()
        except SliceUnavailable:
            show_plainly(self.log)
            raise
        try:
            if self.parent is not None and self._ports.assign(self.parent):
                self.ports_cached = True  # so that the base class leaves them alone
            kwargs = await super().pre_launch(**kwargs)
            kwargs["env"] = self._environment(kwargs["env"])
        except BaseException:
            await self._release("the kernel could not be prepared")
            raise
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start ipykernel itself, without a wrapper: it watches its direct parent and ends with it."""
        try:
            connection = await super().launch_kernel(cmd, **kwargs)
            assert self._lease is not None
            assert self.process is not None
            await keeper().watch(self._address, self.kernel_id, self._lease.id, self.process.pid)
        except BaseException:
            await self._release("the kernel could not be started")
            raise
        return connection

    async def send_signal(self, signum: int) -> None:
        """Pass a signal on; an interrupt also ends GPU work that would keep the cell waiting for ever."""
        await super().send_signal(signum)
        if signum == signal.SIGINT and self._lease is not None:
            await keeper().interrupt(self._address, self._lease.id)

    async def cleanup(self, restart: bool = False) -> None:
        """Give the slice back, unless the kernel is about to be started again."""
        if not restart:
            await self._release("the kernel was shut down")
        await super().cleanup(restart)

    async def _acquire(self) -> None:
        from gpukernel.pool.client import resolve_address
        from gpukernel.pool.errors import PoolError
        from gpukernel.pool.machine import machine_identity
        from gpukernel.pool.model import Holder, SliceRequest

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
            mode=self.mode,
            machine="" if self.mode == "remote" else machine_identity(),
            user=os.getuid(),
        )
        holder = Holder(
            person=os.environ.get("JUPYTERHUB_USER") or getpass.getuser(),
            server=os.environ.get("JUPYTERHUB_SERVER_NAME") or platform.node(),
            course=self.course,
            description=f"kernel {self.kernel_id[:8]}",
        )
        try:
            self._address = resolve_address(self.pool or None, None)
        except PoolError as error:
            raise SliceUnavailable(str(error)) from None
        self._lease = await keeper().acquire(
            self._address, self.kernel_id, request, holder, self.wait_seconds
        )

    def _environment(self, base: dict[str, str]) -> dict[str, str]:
        from gpukernel.remoting.direct import DriverNotFound
        from gpukernel.remoting.environment import program_environment

        assert self._lease is not None
        assert self.parent is not None
        runtime = Path(self.parent.connection_file).resolve().parent
        self._lease_file = runtime / f"gpukernel-{self.kernel_id}.lease"
        try:
            environment = program_environment(self._lease_file, self._lease, base)
        except DriverNotFound as error:
            raise SliceUnavailable(str(error)) from None
        # A slice's environment comes without nvJitLink on purpose (docs/simulated-gpu.md): no red text about it in cells.
        warnings = [base.get("PYTHONWARNINGS", ""), _QUIET_WARNING]
        return environment | {"PYTHONWARNINGS": ",".join(filter(None, warnings))}

    async def _release(self, reason: str) -> None:
        self._ports.close()
        lease, self._lease = self._lease, None
        if self._lease_file is not None:
            self._lease_file.unlink(missing_ok=True)
        if lease is not None:
            await keeper().release(self._address, self.kernel_id, lease.id, reason)
