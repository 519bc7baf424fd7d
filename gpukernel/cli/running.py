"""``gpukernel run``: a slice for as long as a program runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from gpukernel.cli.kernels.counting import CountedRun, check_target
from gpukernel.cli.resize import wanted_slice
from gpukernel.cli.terminal.output import NOT_THERE, Problem, complain, estimate, failure, seconds
from gpukernel.client.pool import PoolClient
from gpukernel.common.account import own_name
from gpukernel.common.address import resolve_address
from gpukernel.common.errors import PoolError
from gpukernel.common.machine import machine_identity
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.common.telemetry.tracing import start_tracing
from gpukernel.remoting.ceiling import CeilingError, ceiling_here
from gpukernel.remoting.direct_environment import DriverNotFound
from gpukernel.remoting.environment import program_environment, with_commands

__all__ = ["acquire", "run", "run_program"]

OVER = "the program ended"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run(
    command: list[str],
    devices: int,
    share: float | None,
    memory_mib: int | None,
    model: str,
    filter: str,
    course: str,
    wait: str,
    at_most: str,
    direct: bool,
    pool: str | None,
    state: Path | None,
    profile: bool = False,
    profile_to: Path | None = None,
    priority: str = "interactive",
) -> None:
    """Acquire a slice, run a program, release the slice; ends this process with the program's status.

    With `profile`, or a file to write it to, what the program's kernels do on simulated devices is counted and shown.
    """
    counted = check_target(profile, profile_to, direct)

    def watched(lease: Lease) -> contextlib.AbstractAsyncContextManager[None]:
        if not counted:
            return contextlib.nullcontext()
        return CountedRun(lease, profile_to, f"Kernels of {shlex.join(command)[:200]}")

    request = wanted_slice(share, memory_mib, devices, model, filter, priority)
    if direct:
        request = replace(request, mode="direct", machine=machine_identity(), user=os.getuid())
    patience, longest = seconds(wait), seconds(at_most)
    holder = Holder(own_name(), platform.node(), course, shlex.join(command)[:80])
    if not _is_there(command[0]):  # nobody waits in the queue for a slice to find that out
        raise Problem(f"the program “{command[0]}” was not found.", NOT_FOUND)
    try:
        start_tracing("gpukernel-run")
        address = resolve_address(pool, state)
        status = asyncio.run(_run(command, request, holder, patience, longest, address, watched))
    except PoolError as error:
        raise failure(error) from None
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def _is_there(program: str) -> bool:
    """Return whether there is a file of that name where a program on a slice would look for it."""
    if os.sep in program:
        return os.path.exists(program)
    path = with_commands(os.environ).get("PATH", "")
    return not path or shutil.which(program, os.F_OK, path) is not None


async def _run(
    command: list[str],
    request: SliceRequest,
    holder: Holder,
    wait: float,
    longest: float,
    address: str,
    watched: Callable[[Lease], contextlib.AbstractAsyncContextManager[None]],
) -> int:
    async with PoolClient(address) as client:
        lease = await acquire(client, request, holder, wait, longest)
        try:
            with tempfile.TemporaryDirectory(prefix="gpukernel-run-") as folder:
                try:
                    environment = program_environment(Path(folder, "lease"), lease, os.environ)
                except (DriverNotFound, OSError) as error:
                    raise Problem(str(error)) from None
                async with client.keep_alive(lease, notified=complain), watched(lease):
                    return await run_program(command, environment, lambda: client.interrupt(lease.id))
        finally:
            try:
                over = await client.release(lease.id, OVER)
                if over.end_reason != OVER:
                    # A program that has not called CUDA since then, or was ended with its slice, could not say it.
                    complain(f"the slice was taken back: {over.end_reason}.")
            except PoolError as error:
                complain(f"{error} The slice goes back by itself when its time is over.")


async def acquire(
    client: PoolClient,
    request: SliceRequest,
    holder: Holder,
    wait: float,
    longest: float,
    ttl: float = 0.0,
) -> Lease:
    """Acquire a live lease of `request`; while it waits, the place in the queue is one line on standard error.

    Raises
    ------
    PoolError
        As `PoolClient.acquire` does.
    """
    shown = False
    terminal = sys.stderr.isatty()
    key = f"run-{uuid.uuid4()}"
    try:
        within = ceiling_here()
    except CeilingError as error:
        raise Problem(str(error), NOT_THERE) from None
    async for event in client.acquire(key, request, holder, wait, ttl, longest, within=within):
        if isinstance(event, Queued):
            shown = True
            line = f"gpukernel: waiting: {event.reason}{estimate(event.estimate_seconds)}"
            print(
                f"\r\x1b[K{line}" if terminal else line,
                end="" if terminal else "\n",
                file=sys.stderr,
                flush=True,
            )
        else:
            if shown:
                end = "\r\x1b[K" if terminal else ""
                print(f"{end}gpukernel: the slice is there.", file=sys.stderr, flush=True)
            return event
    raise PoolError("The pool ended the call without an answer.")


async def run_program(
    command: list[str], environment: dict[str, str], end_work: Callable[[], Awaitable[None]]
) -> int:
    """Run `command` to its end, pass signals on, and return its status as a shell has it; an interrupt also calls `end_work`."""
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
    except FileNotFoundError:
        complain(f"the program “{command[0]}” was not found.")
        return NOT_FOUND
    except OSError as error:
        complain(f"the program “{command[0]}” cannot be run: {error.strerror}.")
        return NOT_EXECUTABLE
    loop = asyncio.get_running_loop()
    for number in _PASSED_ON:
        loop.add_signal_handler(number, process.send_signal, number)
    # A terminal sends Ctrl-C to the whole group, the program included; elsewhere it comes to us alone.
    ending: list[asyncio.Task[None]] = []

    def interrupt() -> None:
        if not sys.stdin.isatty() and process.returncode is None:
            process.send_signal(signal.SIGINT)
        ending.append(asyncio.ensure_future(_quietly(end_work())))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    status = await process.wait()
    return 128 - status if status < 0 else status


async def _quietly(work: Awaitable[None]) -> None:
    with contextlib.suppress(PoolError):
        await work
