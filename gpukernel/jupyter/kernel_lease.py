"""The lease of one kernel, from the request and the place in the queue to the release.

States
------
::

    none ──request──▶ waiting ──granted──▶ live ──over──▶ ended ──request──▶ waiting
      ▲                  │                  │
      └── cancel, release ┴──────────────────┘            waiting ──refused, failed──▶ ended

Guarantees
----------
* A kernel has at most one lease and at most one place in the queue: another request changes neither.
* A kernel in direct mode keeps its slice for as long as it lives: what it runs on is decided when it starts.
* The lease file says at every moment what the shim needs to know: that there is a slice, or whom to ask for one and why not.
* A request ends, whatever goes wrong: what fails unexpectedly is logged, gives back what it had, and may be asked for again.
* A pool that goes away keeps nobody from waiting: the place is asked for again, under the same key, when it is back.
* A lease lives for as long as this process does (`gpukernel.client.keepalive`); where it ends, `KernelLease.sentence` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.kernel_status import KernelState, KernelStatus
from gpukernel.jupyter.slice_size import larger_share, queue_words, request_from, request_words
from gpukernel.jupyter.trouble.process import keep_the_past
from gpukernel.remoting.ceiling import CeilingError, ceiling_here
from gpukernel.remoting.worker_query import WorkerSilent, touch

if TYPE_CHECKING:
    from gpukernel.client.hub import HubClient
    from gpukernel.client.keepalive import KeepaliveStream
    from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
    from gpukernel.jupyter.trouble.next_step import Trouble

__all__ = ["KernelLease", "LeaseServices"]

log = logging.getLogger(__name__)

RELEASE_SECONDS = 10.0
CHECK_SECONDS = 2.0
AGAIN_SECONDS = 1.0
AWAY = "the pool does not answer; asking again"
QUEUE_AGAIN = "run the cell again to queue again"
RESTART_AGAIN = "restart the kernel to queue again"
FAILED = "The request for a slice failed in this Jupyter server, whose log says why; ask for it again."


class LeaseServices(Protocol):
    """The part of the lease manager that a kernel's lease uses."""

    async def client(self, address: str) -> HubClient:
        """Return the client of the pool at `address`."""

    def runs(self, key: str) -> bool:
        """Return whether the kernel of `key` has started, so that it can wait for a pool that is away."""

    def libraries(self, key: str) -> Set[str]:
        """Return what the kernel of `key` has loaded (`gpukernel.jupyter.trouble.process`)."""

    def changed(self, lease: KernelLease) -> None:
        """Take note that `lease` is different."""


class KernelLease:
    """The state machine of one kernel's lease; everything here happens in the lease manager's loop.

    Attributes
    ----------
    state
        ``none``, ``waiting``, ``live`` or ``ended`` (refused, or over; `sentence` says why).
    queued
        The place in the queue while waiting; None before the pool has told it.
    driver
        The real ``libcuda.so.1`` where the kernel started in direct mode.
    starts
        How often its kernel was started.
    askers
        How many CUDA calls wait for the slice now.
    dismissed
        Whether the kernel's process is about to end, so that its calls do not wait any longer; its place in the queue stays.
    needs_restart
        Whether the kernel's process has used CUDA in a way that keeps it from using another slice.
    trouble
        What became of its latest work on the GPU, as it told itself.
    """

    def __init__(self, services: LeaseServices, key: str, address: str, socket: str) -> None:
        self._services = services
        self.key = key
        self.address = address
        self.socket = socket
        self.request: SliceRequest | None = None
        self.holder: Holder | None = None
        self.file: Path | None = None
        self.state: KernelState = "none"
        self.sentence = ""
        self.lease: Lease | None = None
        self._keepalive: KeepaliveStream | None = None
        self.driver: Path | None = None
        self.queued: Queued | None = None
        self.starts = 0
        self.askers = 0
        self.dismissed = False
        self.needs_restart = False
        self.trouble: Trouble = ""
        self._larger = 0.0  # the next size, where `trouble` is memory
        self._had_slice = False  # since the kernel's process started
        self._releasing = asyncio.Lock()
        self._resizing = asyncio.Lock()
        self._change = asyncio.Event()
        self._queueing: asyncio.Task[None] | None = None
        self._interrupting: asyncio.Task[None] | None = None

    # --- what a person may do in the notebook or the side panel ---

    async def command(self, name: str, size: dict[str, Any]) -> None:
        """Carry out ``acquire``, ``release``, ``resize``, ``cancel`` or ``keep``; `size` names another size, where it is not empty.

        Raises
        ------
        SliceUnavailable
            It cannot be done.
        """
        if name == "acquire":
            if size and self.state in ("none", "ended"):
                self.request = request_from(size, self.request)
            await self.check()
            self.ask()
        elif name == "release":
            if self.lease is not None and self.lease.mode == "direct":
                raise SliceUnavailable(
                    "This kernel uses its GPU itself (direct mode) and would end with its slice; shut the kernel down instead."
                )
            await self.release("released in its notebook")
        elif name == "cancel":
            self._leave("the request was cancelled")
        elif name == "keep":
            await self._keep()
        elif name == "resize":
            await self._resize(request_from(size, self.request))
        else:
            raise ValueError(name)

    async def interrupt(self, *, ending: bool = False) -> None:
        """Stop what the cell does: GPU work ends, and a call that waits leaves the queue; where the process is `ending` its place stays."""
        if ending:
            self.dismissed = True
            self._tell()
        if self.state == "waiting" and self.askers and not ending:
            self._leave("the cell was interrupted, so this kernel left the queue")
        elif self.state == "live" and self.lease is not None:
            # Nobody waits for the answer: a kernel's shutdown begins with an interrupt, and the pool may be slow.
            self._interrupting = asyncio.create_task(self._end_work(self.lease))

    def begin(self) -> None:
        """Take note that the kernel is about to be started: its process knows nothing of what was before."""
        self.starts += 1
        self.dismissed, self.needs_restart, self.trouble = False, False, ""
        self._had_slice = self.lease is not None

    async def report(self, trouble: Trouble) -> None:
        """Take note of what became of the latest work of this process, on a slice of this size; a fault stays until the kernel is started again."""
        lease, before = self.lease, (self.request, self.starts)
        if trouble == "memory" and not self.trouble and lease and self.request:
            pool = await self._services.client(self.address)
            self._larger = await larger_share(pool, lease, self.request.model)
        if self.lease and before == (self.request, self.starts) and self.trouble not in (trouble, "fault"):
            self.trouble = trouble
            self._tell()

    # --- request, cancel, release, resize ---

    def ask(self) -> None:
        """Ask the pool for a slice, unless there is one or it is being asked for."""
        if self.state in ("none", "ended"):
            self._forget_lease()
            self.queued = None
            self._queueing = asyncio.create_task(self._queue())
            self._turn("waiting", "")

    def ask_for_remote(self) -> None:
        """Keep the place in the queue, but for a slice that a worker serves: the kernel will start without one."""
        assert self.request is not None
        self.request, self.queued = replace(self.request, mode="remote", machine=""), None
        self._queueing = asyncio.create_task(self._queue())  # the pool ends the call of the one before

    def cancel(self, sentence: str) -> None:
        """Give up the place in the queue, where there is one."""
        if self.state == "waiting":
            self._stop_queueing()
            self._turn("none", sentence)

    def _leave(self, reason: str) -> None:
        self._look_at_process()
        self.cancel(f"{reason}; {RESTART_AGAIN if self.needs_restart else QUEUE_AGAIN}")

    def _look_at_process(self) -> None:
        """Find out whether the kernel's process can use another slice, where it has none now."""
        libraries = self._services.libraries(self.key)
        self.needs_restart |= keep_the_past(libraries, had_slice=self._had_slice, waited=self.askers > 0)

    async def _keep(self) -> None:
        """Use the slice for a moment, so that it is not idle."""
        if (lease := self.lease) is None:
            raise SliceUnavailable("This kernel holds no slice.")
        if lease.mode == "direct":
            raise SliceUnavailable("In direct mode only the kernel uses its GPU: run a cell that does.")
        try:
            for one in lease.slices:
                await asyncio.to_thread(touch, one.endpoints, lease.secret)
        except WorkerSilent as error:
            raise SliceUnavailable(f"The slice could not be kept: {error}.") from None

    async def release(self, reason: str) -> None:
        """Give up the place or the lease; where the pool cannot be reached, end the keepalive and leave the lease to its expiry."""
        self._stop_queueing()
        lease = self.lease
        self._forget_lease()
        self._turn("none", reason)
        if lease is not None:
            await self._give_back(lease, reason)

    async def _give_back(self, lease: Lease, reason: str) -> None:
        from gpukernel.common.errors import PoolError

        async with self._releasing:
            with contextlib.suppress(PoolError, TimeoutError):
                client = await self._services.client(self.address)
                await asyncio.wait_for(client.release(lease.id, reason), RELEASE_SECONDS)

    async def _resize(self, request: SliceRequest) -> None:
        from gpukernel.common.errors import PoolError

        async with self._resizing:  # one after another, so that the answer to the last one is what is known
            if (lease := self.lease) is None:
                raise SliceUnavailable(
                    "This kernel holds no slice that could be resized; see “%gpu acquire”."
                )
            try:
                client = await self._services.client(self.address)
                changed = await client.resize(lease.id, request)
            except PoolError as error:
                raise SliceUnavailable(str(error)) from None
            if not self._holds(lease):
                raise SliceUnavailable("The slice was given back meanwhile.")
            self.request, self.lease = request, self._with_secret(changed)
            self.trouble = "" if self.trouble == "memory" else self.trouble
            self._turn("live", "")

    # --- waiting for something to happen ---

    def change(self) -> asyncio.Event:
        """Return what is set at the next change: who takes it before looking misses none."""
        return self._change

    async def settled(self, seconds: float) -> bool:
        """Return whether the slice came, or was refused, within `seconds`; a kernel that is about to end waits no longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.state == "waiting" and not self.dismissed:
                    await self.change().wait()
        return self.state != "waiting"

    async def answered(self, seconds: float | None = None) -> None:
        """Wait until the pool has told a place in the queue, or more, but no longer than `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.state == "waiting" and self.queued is None:
                    await self.change().wait()

    async def check(self) -> None:
        """Ask the pool whether the lease lives still: its end may not have come here yet."""
        from gpukernel.common.errors import LeaseEnded, PoolError

        if (lease := self.lease) is None:
            return
        try:
            client = await self._services.client(self.address)
            async with asyncio.timeout(CHECK_SECONDS):
                renewed = await client.renew(lease.id)
            if self.lease is lease:  # else something newer came meanwhile, for example another size
                self.lease = self._with_secret(renewed)
        except LeaseEnded as error:
            if self._holds(lease):
                self._over(str(error))
        except (PoolError, TimeoutError):
            pass

    # --- what it looks like ---

    def place_words(self) -> str:
        """Return the place in the queue as one line."""
        return queue_words(self.request, self.queued)

    def status(self) -> KernelStatus:
        """Return its status, with the use that the pool told last."""
        request, lease, place = self.request, self.lease, self.queued
        status = KernelStatus(
            kernel_id=self.key,
            state=self.state,
            what=request_words(request),
            words=self.place_words() if self.state == "waiting" else "",
            sentence=place.quota if place else self.sentence,
            position=place.position if place else 0,
            estimate_seconds=place.estimate_seconds if place else -1.0,
            share=request.share if request else None,
            model=request.model if request else "",
            trouble=self.trouble,
            needs_restart=self.needs_restart,
            larger_share=self._larger if self.trouble == "memory" else 0.0,
        )
        return status if lease is None else status.with_lease(lease)

    # --- the kernel's environment and its lease file ---

    async def environment(self, base: dict[str, str]) -> dict[str, str]:
        """Return `base`, changed for a kernel that starts now: on a slice in direct mode, or under the shim.

        Raises
        ------
        SliceUnavailable
            The kernel cannot use a slice in direct mode here.
        """
        from gpukernel.remoting.direct_environment import DriverNotFound
        from gpukernel.remoting.environment import lease_environment, shim_environment

        assert self.file is not None
        if self.lease is None:
            environment, self.driver = shim_environment(self.file, base), None
        else:
            try:  # in a thread, since it may ask the loader for the driver
                environment, self.driver = await asyncio.to_thread(
                    lease_environment, self.file, self.lease, base
                )
            except DriverNotFound as error:
                raise SliceUnavailable(str(error)) from None
            except OSError as error:
                raise SliceUnavailable(f"The slice cannot be reached from here: {error}.") from None
        self.write()
        return environment

    def write(self) -> None:
        """Bring the lease file up to date."""
        from gpukernel.remoting.lease_file import write_lease_file, write_no_lease_file

        if self.file is None:
            return
        try:
            if self.lease is not None:
                write_lease_file(self.file, self.lease, self.key, self.socket, self.driver)
            else:
                write_no_lease_file(self.file, self.sentence, self.key, self.socket)
        except FileNotFoundError:
            pass  # the directory went away with its server
        except OSError as error:
            log.error("the lease file of kernel %s cannot be written: %s", self.key, error.strerror)

    def forget(self) -> None:
        """Remove the lease file of a kernel that is over."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
            self.file = None  # later changes are written nowhere

    # --- inside ---

    async def _queue(self) -> None:
        """Ask for a slice, and turn to what the answer says, unless the place was given up or a later request took over."""
        task, granted = asyncio.current_task(), None
        try:
            async with self._releasing:
                pass  # a release never overtakes the acquire that follows it
            answer = await self._answer()
            if self._queueing is not task:
                return
            self._queueing = self.queued = None
            if isinstance(answer, str):
                self._turn("ended", answer)
            else:
                granted = answer
                self._granted(granted)
        except asyncio.CancelledError:
            if self._queueing is task:  # the call was ended, and nobody had given up the place
                self._queueing = self.queued = None
                self._turn("ended", FAILED)
            raise
        except Exception:
            log.exception("kernel %s: the request for a slice failed", self.key)
            if self._queueing is task or granted is not None:
                self._queueing = self.queued = None
                self._forget_lease()
                try:
                    self._turn("ended", FAILED)
                finally:
                    if granted is not None:
                        await self._give_back(granted, "its Jupyter server failed")

    async def _answer(self) -> Lease | str:
        """Return what the pool grants, or why it grants nothing; the answer to a request that is not the last one means nothing."""
        from gpukernel.common.errors import PoolError, PoolUnreachable
        from gpukernel.common.model import Lease, Queued

        assert self.request is not None and self.holder is not None  # noqa: PT018
        task = asyncio.current_task()
        while True:
            try:
                client = await self._services.client(self.address)
                if self._queueing is not task:
                    return ""  # asking again now would take the place of the later request
                self._keepalive = client.keepalive
                events = client.acquire(self.key, self.request, self.holder, -1, within=ceiling_here())
                async with contextlib.aclosing(events):
                    async for event in events:
                        if self._queueing is not task or isinstance(event, Lease):
                            return event if isinstance(event, Lease) else ""
                        self.queued = event
                        self._tell()
                return f"The pool at {self.address} ended the call without an answer."
            except PoolUnreachable as error:
                # A kernel that is only starting is told so, unless the pool had answered already.
                if self._queueing is not task or not (self._services.runs(self.key) or self.queued):
                    return str(error)
                self.queued = Queued(0, -1.0, AWAY)
                self._tell()
                await asyncio.sleep(AGAIN_SECONDS)
            except (PoolError, CeilingError) as error:
                return str(error)

    def _granted(self, lease: Lease) -> None:
        if self.request is not None and self.request.mode == "auto":  # a process is in one mode
            self.request = replace(self.request, mode=lease.mode)
        self.lease = lease

        def over(reason: str) -> None:
            if self._holds(lease):
                self._over(reason)

        assert self._keepalive is not None
        self._keepalive.keep(lease.id, self._changed_at_pool, over)
        self._turn("live", "")

    def _holds(self, lease: Lease) -> bool:
        return self.lease is not None and self.lease.id == lease.id

    def _with_secret(self, lease: Lease) -> Lease:
        assert self.lease is not None
        return replace(lease, secret=self.lease.secret)

    def _changed_at_pool(self, lease: Lease) -> None:
        """Take over a lease that the pool tells is different: its size, its end, or what its holder should know."""
        if self._holds(lease):
            self.lease = self._with_secret(lease)
            self._tell()

    def _over(self, reason: str) -> None:
        self._forget_lease()
        self._turn("ended", reason or "the lease is over")

    def _forget_lease(self) -> None:
        lease, self.lease, self.trouble = self.lease, None, ""
        if lease is not None and self._keepalive is not None:
            self._keepalive.let_go(lease.id)

    def _stop_queueing(self) -> None:
        self.queued = None
        queueing, self._queueing = self._queueing, None
        if queueing is not None:
            queueing.cancel()

    async def _end_work(self, lease: Lease) -> None:
        from gpukernel.common.errors import PoolError

        with contextlib.suppress(PoolError):
            await (await self._services.client(self.address)).interrupt(lease.id)

    def _turn(self, state: KernelState, sentence: str) -> None:
        self.state, self.sentence = state, sentence
        if state == "live":
            self._had_slice = True
        elif state != "waiting":
            self._look_at_process()
        try:
            self.write()
        finally:
            self._tell()

    def _tell(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
        self._services.changed(self)
