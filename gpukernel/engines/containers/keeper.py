"""The keeper of one container's lease: it acquires, writes the lease file, renews, and releases when the container's first process ends.

It runs outside of the container, as whoever runs the container runtime, and knows the pool by ``GPUKERNEL_POOL`` as other clients do.
The hook (``gpukernel/native/oci_hook``) starts it.  It asks for the slice at once, or when a program of the container first uses CUDA and
asks on the socket there (`gpukernel.engines.containers.asking`).  Killed, it renews no more, and the lease ends by itself within its
time to live; killed containers are seen through a descriptor of their first process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import platform
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpukernel.client.pool import PoolClient
from gpukernel.common.account import own_name
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.engines.containers.asking import Asking
from gpukernel.engines.containers.bundle import (
    LEASE_FILE,
    LEASE_FOLDER,
    Bundle,
    BundleError,
    read_bundle,
)
from gpukernel.remoting.lease_file import lease_text, no_lease_text

__all__ = ["Keeper", "reachable"]

T = TypeVar("T")

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
START = "start"
OVER = "the container ended"
WAIT_VARIABLE, SOCKETS_VARIABLE = "GPUKERNEL_CONTAINER_WAIT", "GPUKERNEL_CONTAINER_SOCKETS"
"""Seconds for which a container's start waits in the queue, and the folders of sockets that containers see, with ``:`` between."""
KERNEL, SOCKET = "container", str(LEASE_FOLDER / "socket")
"""The container's name in the lease file, and the socket where its programs ask."""
_TCP = ("tcp:", "tls:")


def reachable(lease: Lease, folders: list[Path]) -> Lease:
    """Return `lease` with the endpoints that a container can reach.

    Raises
    ------
    BundleError
        A device has none.
    """

    def seen(endpoint: str) -> bool:
        return endpoint.startswith(_TCP) or any(
            Path(endpoint.removeprefix("unix:")).parent == folder for folder in folders
        )

    slices = tuple(
        replace(one, endpoints=tuple(endpoint for endpoint in one.endpoints if seen(endpoint)))
        for one in lease.slices
    )
    if without := [one.device_id for one in slices if not one.endpoints]:
        raise BundleError(
            f"The worker on {without[0]} has no socket that containers see: write the CDI file again with “gpukernel cdi --sockets DIR”, "
            "DIR being the folder “containers” of the agent's state directory, or let the agent serve TCP with --tcp-host."
        )
    return replace(lease, slices=slices)


@contextlib.contextmanager
def _as_owner(folder: int) -> Iterator[None]:
    """Be the owner of a folder, by its descriptor, within the context."""
    about, group, user = os.fstat(folder), os.getegid(), os.geteuid()
    os.setegid(about.st_gid)
    try:
        os.seteuid(about.st_uid)
        try:
            yield
        finally:
            os.seteuid(user)
    finally:
        os.setegid(group)


def _make_inside(folder: int, make: Callable[[], T]) -> T:
    """Return what `make` makes in a container's folder, by its descriptor.

    A file system that was mounted in a user namespace takes no new file, or name, of an account that is none there, as root outside is
    none: then it is made as the folder's owner.
    """
    try:
        return make()
    except OSError as error:
        if error.errno != errno.EOVERFLOW:
            raise
    with _as_owner(folder):
        return make()


class _LeaseFile:
    """The lease file in a container, for its program's account only; `asks`: programs may ask for a slice.

    Root of the container may do there what it likes meanwhile.  So files are made and renamed by names in the folder's descriptor, with no
    name that is there already, and changed by their own descriptors: no link leads this process elsewhere.
    """

    def __init__(self, bundle: Bundle, folder: int, asks: bool) -> None:
        self._bundle, self._folder, self._asks = bundle, folder, asks
        self._sockets = [Path(one) for one in os.environ.get(SOCKETS_VARIABLE, "").split(":") if one]

    def _put(self, text: str, mode: int) -> None:
        draft = f".{secrets.token_hex(16)}"
        made = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = _make_inside(self._folder, lambda: os.open(draft, made, 0o600, dir_fd=self._folder))
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchown(descriptor, self._bundle.user, self._bundle.group)
                os.fchmod(descriptor, mode)
            folders = {"src_dir_fd": self._folder, "dst_dir_fd": self._folder}
            _make_inside(self._folder, lambda: os.rename(draft, LEASE_FILE.name, **folders))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=self._folder)
            raise

    def write(self, lease: Lease) -> None:
        """Replace it in one step.

        Raises
        ------
        BundleError
            No device of `lease` can be reached.
        """
        who = (KERNEL, SOCKET) if self._asks else ("", "")
        self._put(lease_text(reachable(lease, self._sockets), *who), 0o600)

    def write_over(self, lease: Lease, why: str) -> None:
        """Say that `lease` is over; does nothing where the container is gone."""
        with contextlib.suppress(OSError, BundleError):
            if self._asks:
                # Whoever may ask reads where; there is no secret in it.
                self._put(no_lease_text(why, KERNEL, SOCKET), 0o644)
            else:
                self.write(replace(lease, state="ended", end_reason=why))


class Keeper:
    """The holder of a container's lease.

    Parameters
    ----------
    client
        Of the pool.
    folder
        A descriptor of the folder for the lease file, in the container.
    wait_seconds
        How long a request waits in the queue; negative: for ever.
    asks
        Programs of the container ask for the slice, as often as they want.
    """

    def __init__(
        self,
        client: PoolClient,
        bundle: Bundle,
        folder: int,
        request: SliceRequest,
        wait_seconds: float,
        *,
        asks: bool,
    ) -> None:
        self._client, self._request, self._wait = client, request, wait_seconds
        self._container = bundle.container
        self._file = _LeaseFile(bundle, folder, asks)
        self._holding = asyncio.Lock()
        self._kept = contextlib.AsyncExitStack()
        self._held: Lease | None = None
        self._times, self._last = 0, -AGAIN_SECONDS

    async def acquire(self, waiting: Callable[[Queued], Awaitable[None]]) -> None:
        """Hold the slice and have its lease file written; changes nothing where it is held already.

        Parameters
        ----------
        waiting
            Called with each place in the queue.

        Raises
        ------
        PoolError
            As `PoolClient.acquire` does.
        BundleError
            Its lease file could not be written; the slice has been given back.
        """
        async with self._holding:
            if self._held is not None:
                return
            # A program that asks and goes away in a loop costs the account's other containers nothing of what it may ask.
            await asyncio.sleep(max(0.0, self._last + AGAIN_SECONDS - time.monotonic()))
            self._times, self._last = self._times + 1, time.monotonic()
            key = f"container-{platform.node()}-{self._container}-{os.getpid()}-{self._times}"
            holder = Holder(own_name(), platform.node(), "", f"container {self._container[:12]}")
            async with contextlib.aclosing(
                self._client.acquire(key, self._request, holder, self._wait)
            ) as events:
                async for event in events:
                    if isinstance(event, Queued):
                        await waiting(event)
                        continue
                    await self._keep(event)
                    return
            raise PoolError("The pool ended the call without an answer.")

    async def _keep(self, lease: Lease) -> None:
        try:
            self._file.write(lease)
        except (BundleError, OSError) as error:
            await self._client.release(lease.id, "its lease file could not be written")
            raise BundleError(str(error)) from None

        def over(why: str) -> None:
            self._held = None
            self._file.write_over(lease, why)

        await self._kept.aclose()
        self._held = lease
        await self._kept.enter_async_context(self._client.keep_alive(lease, over))

    async def release(self) -> None:
        """Give the slice back, where there is one; a pool that does not answer ends it by itself when nobody renews it."""
        lease, self._held = self._held, None
        await self._kept.aclose()
        if lease is not None:
            with contextlib.suppress(PoolError):
                await self._client.release(lease.id, OVER)


async def _ended(process: int) -> None:
    """Return when the process of the descriptor has ended."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(process)


async def _nothing(place: Queued) -> None:
    pass


async def _keep_at_once(keeper: Keeper, process: int, say: Callable[[str], None]) -> None:
    """Acquire, say ``here``, and give the slice back when the container has ended."""
    ended = asyncio.create_task(_ended(process))
    acquired = asyncio.create_task(keeper.acquire(_nothing))
    try:
        await asyncio.wait({ended, acquired}, return_when=asyncio.FIRST_COMPLETED)
        if acquired.done():
            await acquired
            say("here")
            await ended
    finally:
        acquired.cancel()
        await asyncio.wait({acquired})
        await keeper.release()


async def _keep_on_first_use(keeper: Keeper, process: int, listening: socket.socket) -> None:
    """Answer the container's programs until it has ended, and give the slice back."""
    serving = asyncio.create_task(Asking(keeper.acquire).serve(listening))
    ended = asyncio.create_task(_ended(process))
    try:
        await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        await keeper.release()
    await ended


class _Given(NamedTuple):
    """Descriptors from the hook: the container's first process, the folder for its lease file, and the pipe that is told the
    outcome, or the socket on which programs ask.
    """

    process: int
    folder: int
    other: int


async def _main(
    way: str, request: SliceRequest, bundle: Bundle, given: _Given, say: Callable[[str], None]
) -> None:
    async with PoolClient(resolve_address(None, None)) as client:
        wait = float(os.environ.get(WAIT_VARIABLE, "30")) if way == START else -1
        keeper = Keeper(client, bundle, given.folder, request, wait, asks=way != START)
        if way == START:
            await _keep_at_once(keeper, given.process, say)
        else:
            await _keep_on_first_use(keeper, given.process, socket.socket(fileno=given.other))


def main(words: list[str]) -> None:
    """Keep the slice of the container whose state is on standard input: ``start|first-use MODEL SHARE``, and three descriptors."""
    way, model, share = words[0], words[1], float(words[2])
    given = _Given(*map(int, words[3:]))
    logging.basicConfig(format=f"%(asctime)s {os.getpid()} %(message)s")
    said = way != START

    def say(word: str) -> None:
        nonlocal said
        if said:
            log.error("%s", word)
        else:
            said = True
            os.write(given.other, word.encode())
            os.close(given.other)

    try:
        bundle = read_bundle(json.load(sys.stdin))
        asyncio.run(_main(way, SliceRequest(share, model=model), bundle, given, say))
    except (PoolError, BundleError) as error:
        say(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
