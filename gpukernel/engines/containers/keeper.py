"""The keeper of one container's lease: it acquires, writes the lease file, renews, and releases when the container's first process ends.

It runs outside of the container, as whoever runs the container runtime, and knows the pool by ``GPUKERNEL_POOL`` as other clients do.
Killed, it renews no more, and the lease ends by itself within its time to live; killed containers are seen through a descriptor of
their first process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpukernel import native
from gpukernel.client.pool import PoolClient
from gpukernel.common.account import own_name
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.engines.containers.bundle import (
    LEASE_FILE,
    Bundle,
    BundleError,
    open_lease_folder,
    read_bundle,
)
from gpukernel.engines.containers.image import complaint, needed_version
from gpukernel.remoting.lease_file import write_lease_file

__all__ = ["keep"]

OVER = "the container ended"
WAIT_VARIABLE, SOCKETS_VARIABLE = "GPUKERNEL_CONTAINER_WAIT", "GPUKERNEL_CONTAINER_SOCKETS"
"""Seconds for which a container's start waits in the queue, and the folders of sockets that containers see, with ``:`` between."""
_TCP = ("tcp:", "tls:")


def _reachable(lease: Lease, folders: list[Path]) -> Lease:
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


class _LeaseFile:
    """The lease file in a container, for its program's account only."""

    def __init__(self, bundle: Bundle, folders: list[Path]) -> None:
        self._bundle, self._folders = bundle, folders
        self._folder = open_lease_folder(bundle)

    def write(self, lease: Lease) -> None:
        """Replace it in one step.

        Raises
        ------
        BundleError
            No device of `lease` can be reached.
        """
        folder = Path(f"/proc/self/fd/{self._folder}")
        draft = folder / "draft"
        write_lease_file(draft, _reachable(lease, self._folders))
        os.chown(draft, self._bundle.user, self._bundle.group)
        draft.rename(folder / LEASE_FILE.name)


async def _ended(process: int) -> None:
    """Return when the process of the descriptor has ended."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(process)


async def keep(
    bundle: Bundle, request: SliceRequest, process: int, say: Callable[[str], None], address: str
) -> None:
    """Hold a slice for a container until its first process has ended.

    Parameters
    ----------
    process
        A descriptor of that process (``pidfd_open(2)``).
    say
        Called once, with ``here`` when the lease file is there, or with the sentence why not.
    """
    if trouble := complaint(bundle, needed_version([native.shim_dir() / "libcuda.so.1"])):
        say(trouble)
        return
    folders = [Path(one) for one in os.environ.get(SOCKETS_VARIABLE, "").split(":") if one]
    wait = float(os.environ.get(WAIT_VARIABLE, "30"))
    holder = Holder(own_name(), platform.node(), "", f"container {bundle.container[:12]}")
    async with PoolClient(address) as client:
        ended = asyncio.create_task(_ended(process))
        key = f"container-{platform.node()}-{bundle.container}"
        acquired = asyncio.create_task(client.acquire_now(key, request, holder, wait))
        await asyncio.wait({ended, acquired}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not acquired.done():
            acquired.cancel()
            await asyncio.wait({acquired})
            return
        lease = await acquired
        reason = OVER
        try:
            file = _LeaseFile(bundle, folders)
            file.write(lease)

            def over(why: str) -> None:
                with contextlib.suppress(OSError, BundleError):  # the container may be gone
                    file.write(replace(lease, state="ended", end_reason=why))

            async with client.keep_alive(lease, over):
                say("here")
                await ended
        except (BundleError, OSError) as error:
            reason = "its lease file could not be written"
            raise BundleError(str(error)) from None
        finally:
            with contextlib.suppress(PoolError):  # it ends by itself when nobody renews it
                await client.release(lease.id, reason)


def main(words: list[str]) -> None:
    """Keep the slice of the container whose state is on standard input: ``MODEL SHARE PIPE PROCESS``, the last two descriptors."""
    model, share, pipe, process = words[0], float(words[1]), int(words[2]), int(words[3])
    said = False

    def say(word: str) -> None:
        nonlocal said
        if not said:
            said = True
            os.write(pipe, word.encode())
            os.close(pipe)

    try:
        bundle = read_bundle(json.load(sys.stdin))
        sys.stdin.close()
        asyncio.run(
            keep(bundle, SliceRequest(share, model=model), int(process), say, resolve_address(None, None))
        )
    except (PoolError, BundleError, native.NativePartMissing) as error:
        say(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
