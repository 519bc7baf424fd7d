"""The commands that stay in the foreground: pool, agent, and both in one process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpukernel.agent import inventory
from gpukernel.agent.agent import Agent
from gpukernel.agent.confinement import ConfinementImpossible
from gpukernel.agent.data_path import TlsUnavailable, tls_wanted
from gpukernel.cli.terminal.output import FAILED, USAGE, Problem, complain, failure, seconds
from gpukernel.client.tokens import TokenRenewal, TokensClient
from gpukernel.common import logs
from gpukernel.common.address import are_network_addresses, resolve_address, resolve_state
from gpukernel.common.connection import Connection, connection_to, read_connection_file
from gpukernel.common.data_tls import DataTls
from gpukernel.common.errors import PoolError
from gpukernel.common.machine import machine_identity, raise_descriptor_limit
from gpukernel.common.telemetry.tracing import start_tracing
from gpukernel.pool.auth.listeners import Listener
from gpukernel.pool.rpc.garbage import collect_by_the_clock
from gpukernel.pool.rpc.server import prepare_state, serve

__all__ = ["Notice", "agent", "notice_of", "pool", "up", "watchdog_or_default"]

Notice = Callable[[asyncio.Event], Awaitable[tuple[float, str]]]
"""A function that returns how many seconds an agent that is told to stop has left for those who hold its slices, and the reason it stops.

It gets the event that is set when the agent is told again.
"""

READY_SECONDS = 30.0
STOP_SECONDS = 10.0
SHARED_WATCHDOG_SECONDS = 1800.0
MIB = 2**20
LEAST_GRACE, MOST_GRACE = 5.0, 86_400.0


def _say(line: str) -> None:
    print(line, flush=True)


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except PoolError as error:
        raise failure(error) from None
    except ConfinementImpossible as error:
        raise Problem(str(error)) from None
    except PermissionError as error:
        raise Problem(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


def _trace(service: str) -> None:
    try:
        start_tracing(service)
    except PoolError as error:
        raise failure(error) from None


def _devices(simulate: str) -> inventory.Inventory:
    try:
        return inventory.simulated(simulate) if simulate else inventory.real()
    except inventory.NoDevices as error:
        raise Problem(str(error), USAGE if simulate else FAILED) from None


def _check_direct(direct: bool) -> None:
    """Refuse direct mode where no program could prove that it runs on this machine."""
    if direct and not machine_identity():
        raise Problem(
            "--direct needs this machine's identity, and /etc/machine-id is missing or empty; "
            "systemd-machine-id-setup writes one."
        )


async def _until_told_to_stop(*alongside: asyncio.Task[None], within: float = 0.0) -> None:
    """Wait until this process is told to stop, or a task ends.

    Parameters
    ----------
    within
        Seconds after which the process ends though it has not stopped; 0: it takes its time.
    """
    collecting = asyncio.create_task(collect_by_the_clock())
    try:
        await _told(_told_to_stop(within), *alongside)
    finally:
        collecting.cancel()


def _told_to_stop(within: float = 0.0) -> asyncio.Event:
    """Return an event that is set whenever this process is told to stop; `within` as in `_until_told_to_stop`."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        complain(f"not stopped within {within:.0f} s; it ends now. Nothing is lost.")
        os._exit(0)

    def hear(*_: object) -> None:  # also while the loop stands in a call of a database that does not answer
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(told.set)
        if within:
            ending = threading.Timer(within, end)
            ending.daemon = True
            ending.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hear)
    return told


async def _told(told: asyncio.Event, *alongside: asyncio.Task[None]) -> bool:
    """Return whether `told` was set before one of the tasks ended; raise what ended that."""
    waiting = asyncio.create_task(told.wait())
    done, _ = await asyncio.wait([waiting, *alongside], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    for task in done - {waiting}:
        task.result()
    return waiting in done


async def _until_left(server: Agent, running: asyncio.Task[None], notice: Notice) -> str:
    """Wait until told to stop, then until nobody is left on the server or its time is over; return the reason.

    Told again, it asks `notice` again.
    """
    told = _told_to_stop()
    await _told(told, running)
    while True:
        told.clear()
        left, reason = await notice(told)
        if left <= 0:
            return reason
        complain(f"{server.name} gets no new leases, and ends in {left:.0f} s: {reason}.")
        leaving = asyncio.create_task(server.leave(left, reason))
        try:
            if not await _told(told, running, leaving):
                return reason
        finally:
            leaving.cancel()


def notice_of(given: float) -> Notice | None:
    """Return the notice of an agent that gives its holders `given` seconds when it is told to stop, and none when it is told again.

    None where they are given no time.

    Raises
    ------
    Problem
        When that is no time, or more than a day.
    """
    if not 0 <= given <= MOST_GRACE:
        raise Problem("--notice is a time from 0 to 1d, such as 5m.", USAGE)
    told = 0

    async def notice(_: asyncio.Event) -> tuple[float, str]:
        nonlocal told
        told += 1
        return given if told == 1 else 0.0, "the GPU server was stopped by its administrator"

    return notice if given else None


def watchdog_or_default(seconds: float | None, found: inventory.Inventory, *, shared: bool) -> float:
    """Return the watchdog's time: as given, else the default of shared real devices, else 0 for none.

    On a simulated device a kernel without end is paused when its turn ends, and takes nothing from others.
    """
    if seconds is not None:
        return seconds
    return SHARED_WATCHDOG_SECONDS if shared and not found.simulated else 0.0


def _grace(text: str) -> float:
    span = seconds(text)
    if not LEAST_GRACE <= span <= MOST_GRACE:
        raise Problem(f"A grace of {text} is not possible; it is 5s to 1d.", USAGE)
    return span


def _accounts(text: str) -> tuple[int, int]:
    """Return the first of a range of accounts, and how many there are."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 2**32 - 2):
        raise Problem(
            f"“{text}” is no range of accounts; write FIRST-LAST, for example 1900000000-1900000999.",
            USAGE,
        )
    return int(first), int(last) - int(first) + 1


def _summary(found: inventory.Inventory) -> str:
    names = [device.name for device in found.devices]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _tls(tcp_host: str, setting: DataTls) -> bool:
    try:
        return tls_wanted(tcp_host, setting)
    except TlsUnavailable as error:
        raise Problem(str(error)) from None


def up(
    simulate: str,
    state: Path | None,
    tcp_host: str,
    data_tls: DataTls,
    name: str,
    watchdog: float | None,
    host_memory_mib: int,
    confinement: str,
    worker_accounts: str,
    direct: bool,
    everybody: bool,
    hub_api: str,
    log_level: logs.Level,
    log_format: logs.Form,
) -> None:
    """Run pool and agent in one process; the agent speaks to the pool over its socket like any other."""
    logs.configure(log_level, log_format)
    _trace("gpukernel")
    tls = _tls(tcp_host, data_tls)
    _check_direct(direct)
    found = _devices(simulate)
    directory = resolve_state(state)

    async def work() -> None:
        async with serve(directory, everybody=everybody, hub_api=hub_api) as running:
            server = Agent(
                Connection(running.address),
                name or platform.node(),
                found,
                directory,
                tcp_host=tcp_host,
                tls=tls,
                watchdog_seconds=watchdog_or_default(watchdog, found, shared=everybody),
                host_memory=host_memory_mib * MIB,
                confinement=confinement,
                accounts=_accounts(worker_accounts),
                direct=direct,
            )
            task = asyncio.create_task(server.run())
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await running.agents.attached.wait()
                _say(f"The pool is ready at {running.address} with {_summary(found)}. Stop it with Ctrl-C.")
                await _until_told_to_stop(task)
            finally:
                await server.stop("the pool was stopped by its administrator")
                await asyncio.sleep(0.1)  # lets the pool note that the workers have ended
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    _run(work())


def pool(
    listeners: Sequence[Listener],
    everybody: bool,
    metrics: str,
    certificate: Path | None,
    key: Path | None,
    hub_api: str,
    token_seconds: float,
    grace: str,
    calls_per_second: float,
    calls_at_once: float,
    state: Path | None,
    log_level: logs.Level,
    log_format: logs.Form,
) -> None:
    """Run the pool alone."""
    logs.configure(log_level, log_format)
    _trace("gpukernel-pool")
    directory = resolve_state(state)
    valid_seconds = _grace(grace)

    async def work() -> None:
        async with serve(
            directory,
            everybody=everybody,
            metrics=metrics,
            certificate=certificate,
            key=key,
            also_listen=listeners,
            hub_api=hub_api,
            token_seconds=token_seconds,
            valid_seconds=valid_seconds,
            calls_per_second=calls_per_second,
            calls_at_once=calls_at_once,
        ) as running:
            if running.warning:
                complain(running.warning)
            asking = [one.address for one in listeners if one.require_certificates]
            tokens = ""
            if asking:
                where = "" if len(asking) == len(listeners) else f" at {', '.join(asking)}"
                tokens = (
                    f" Who comes over TCP{where} shows a client certificate: gpukernel token create --file."
                )
            elif listeners:
                tokens = (
                    f" Tokens: {directory}/pool.token for JupyterHub, {directory}/agent.token for GPU servers; "
                    "for people: gpukernel token create."
                )
            _say(f"The pool is ready at {running.address}.{tokens} Stop it with Ctrl-C.")
            await _until_told_to_stop(within=STOP_SECONDS)

    _run(work())


def agent(
    address: str | None,
    token_file: Path | None,
    simulate: str,
    state: Path | None,
    tcp_host: str,
    data_tls: DataTls,
    name: str,
    watchdog: float | None,
    host_memory_mib: int,
    confinement: str,
    worker_accounts: str,
    direct: bool,
    log_level: logs.Level,
    log_format: logs.Form,
    notice: Notice | None = None,
    choose: Callable[[inventory.Inventory], inventory.Inventory] = lambda found: found,
) -> None:
    """Run the agent alone; it offers those of the devices that `choose` returns."""
    logs.configure(log_level, log_format)
    _trace("gpukernel-agent")
    raise_descriptor_limit()
    tls = _tls(tcp_host, data_tls)
    _check_direct(direct)
    found = choose(_devices(simulate))
    directory = prepare_state(resolve_state(state))
    try:
        named = read_connection_file(token_file) if token_file else Connection("")
        resolved = resolve_address(address, None if address else state)
        connection = connection_to(resolved, named)
    except PoolError as error:
        raise failure(error) from None

    async def work() -> None:
        server = Agent(
            connection,
            name or platform.node(),
            found,
            directory,
            tcp_host=tcp_host,
            tls=tls,
            watchdog_seconds=watchdog_or_default(watchdog, found, shared=True),
            host_memory=host_memory_mib * MIB,
            confinement=confinement,
            accounts=_accounts(worker_accounts),
            direct=direct,
        )
        task = asyncio.create_task(server.run())
        attached = asyncio.create_task(server.attached.wait())

        def renewed(changed: Connection) -> None:
            nonlocal connection
            connection = connection.each(lambda way: replace(way, certificate=changed.certificate))
            server.use(connection)

        in_file = not (resolved.startswith("unix:") or are_network_addresses(resolved))
        renewal = TokenRenewal(
            lambda: TokensClient(",".join(connection.addresses), connection),
            Path(resolved) if in_file else token_file,
            renewed,
        )
        renewing = asyncio.create_task(renewal.run())
        stopped = "the GPU server was stopped by its administrator"
        try:
            await asyncio.wait([attached, task], return_when=asyncio.FIRST_COMPLETED)
            if attached.done():
                _say(
                    f"The agent is ready: {server.name} offers {_summary(found)} to {connection.names}. Stop it with Ctrl-C."
                )
            if notice is None:
                await _until_told_to_stop(task)
            else:
                stopped = await _until_left(server, task, notice)
        finally:
            await server.stop(stopped)
            await asyncio.sleep(0.1)  # lets the pool note that the workers have ended
            attached.cancel()
            renewing.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    _run(work())
