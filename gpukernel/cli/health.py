"""``health``: every part checked, with advice where one does not work."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpukernel import native
from gpukernel.cli.terminal.charset import make_console
from gpukernel.cli.terminal.formats import Format, print_data, print_names
from gpukernel.cli.terminal.output import FAILED
from gpukernel.client.admin import AdminClient
from gpukernel.client.tokens import TokenLine
from gpukernel.common.address import resolve_address
from gpukernel.common.connection import certificate_days_left, days_left
from gpukernel.common.errors import NotAllowed, PoolError
from gpukernel.common.model import Device, Lease, Rung, Waiting

__all__ = ["Finding", "health"]

SOON_DAYS = 30.0
SLOW_SECONDS = 1.0


@dataclass(frozen=True)
class Finding:
    """One part: whether it works, what was seen, and what to do where it does not."""

    part: str
    fine: bool
    seen: str
    advice: str = ""
    rungs: tuple[Rung, ...] = ()


def health(pool: str | None, state: Path | None, form: Format) -> None:
    """Print what every part is like; the exit status is 1 where something is wrong."""
    findings = [*_installation(), *_pool(pool, state)]
    if form in (Format.JSON, Format.YAML):
        print_data(findings, form)
    elif form is Format.NAME:
        print_names(finding.part for finding in findings)
    else:
        console = make_console()
        for finding in findings:
            mark = "[green]ok[/]  " if finding.fine else "[red]not[/] "
            console.print(f"{mark} {finding.part}: ", end="")
            console.print(finding.seen, markup=False)
            if finding.advice:
                console.print(f"       {finding.advice}", markup=False)
    if not all(finding.fine for finding in findings):
        sys.exit(FAILED)


def _installation() -> Iterable[Finding]:
    for part, find in (
        ("shim", native.shim_dir),
        ("worker", native.worker_executable),
        ("simulated GPU", native.simgpu_library),
    ):
        try:
            yield Finding(part, True, str(find()))
        except native.NativePartMissing as error:
            yield Finding(part, False, "missing", str(error))


def _pool(pool: str | None, state: Path | None) -> Iterable[Finding]:
    address = resolve_address(pool, state)
    begin = time.monotonic()
    took = 0.0

    confinement: dict[str, tuple[Rung, ...]] = {}

    async def ask() -> tuple[list[Device], list[Lease], list[Waiting], list[Finding]]:
        nonlocal address, took
        async with AdminClient(address) as client:
            address = client.address
            found = await client.devices(), *await client.leases()
            took = time.monotonic() - begin
            with contextlib.suppress(PoolError):  # it is for administrators, and pools of 0.2 do not know it
                confinement.update(await client.confinement())
            checks = (_certificates(client), _tokens(client))
            return *found, [finding for check in checks for finding in [one async for one in check]]

    try:
        devices, leases, waiting, certificates = asyncio.run(ask())
    except PoolError as error:
        yield Finding("pool", False, address, str(error))
        return
    advice = "The pool's machine or its database is overloaded." if took > SLOW_SECONDS else ""
    yield Finding("pool", not advice, f"{address} answers in {took * 1000:.0f} ms", advice)
    yield from certificates
    if not devices:
        yield Finding(
            "devices", False, "none", "Start “gpukernel agent --pool ADDRESS” on a machine with GPUs."
        )
    for server in dict.fromkeys(device.server for device in devices):
        yield from _server(server, [device for device in devices if device.server == server])
        if rungs := confinement.get(server):
            yield _confinement(server, rungs)
    stuck = [lease for lease in leases if lease.state == "ending" and time.time() - lease.ended > 60]
    if stuck:
        yield Finding(
            "leases",
            False,
            f"{len(stuck)} have been ending for over a minute",
            "Their GPU servers are away, so nobody knows that their workers are dead; start those agents again.",
        )
    held = "1 lease" if len(leases) == 1 else f"{len(leases)} leases"
    yield Finding("queue", True, f"{held}, {len(waiting)} wait")


async def _certificates(client: AdminClient) -> AsyncIterator[Finding]:
    """Yield findings on the pool's certificate, one's own, and for administrators those of everybody that end within `SOON_DAYS`."""
    renew = "Its administrator makes a new one with “gpukernel pool init --renew”; nothing is interrupted."
    another = "A new connection file (“gpukernel token create --file”) works beside the old one until that token is revoked."
    for part, days, advice in (
        ("certificate", await days_left(client.connection), renew),
        ("client certificate", certificate_days_left(client.connection), another),
    ):
        if days is not None:
            soon = days < SOON_DAYS
            yield Finding(part, not soon, f"good for {days:.0f} days", advice if soon else "")
    with contextlib.suppress(NotAllowed):
        now = time.time()
        ending = [
            f"{token.name} ({token.id}) {(token.certificate_expires - now) / 86400:.0f} days"
            for token in await client.tokens()
            if 0 < token.certificate_expires < now + SOON_DAYS * 86400
            if not token.revoked and not 0 < token.expires < now
        ]
        if ending:
            yield Finding("client certificates", False, f"good for: {', '.join(ending)}", another)


async def _tokens(client: AdminClient) -> AsyncIterator[Finding]:
    """Yield findings on one's own token, and for administrators on those of everybody that end soon."""
    now = time.time()

    def days(token: TokenLine) -> str:
        return f"{max(token.expires - now, 0) / 86400:.0f} days"

    with contextlib.suppress(PoolError):  # an older pool knows no such call
        own = await client.own_token()
        if own is not None and own.expires:
            soon = own.ends_soon(now)
            advice = "Renew it with “gpukernel token renew”, or ask the pool's administrator." if soon else ""
            yield Finding("token", not soon, f"{own.id} is valid for {days(own)}", advice)
    with contextlib.suppress(NotAllowed):
        ending = [
            f"{token.name} ({token.id}) {days(token)}"
            for token in await client.tokens()
            if token.ends_soon(now) and token.expires > now and not token.server
        ]
        if ending:
            renew = "Renew one with “gpukernel token renew ID”; a GPU server or JupyterHub that runs renews its own."
            yield Finding("tokens", False, f"valid for: {', '.join(ending)}", renew)


def _confinement(server: str, rungs: tuple[Rung, ...]) -> Finding:
    used = [rung.name for rung in rungs if rung.used and rung.name != "host-memory"]
    memory = next((f"; host memory: {rung.detail}" for rung in rungs if rung.name == "host-memory"), "")
    missing = [f"{rung.name} ({rung.detail})" for rung in rungs if not rung.used]
    seen = (f"workers are confined by {', '.join(used)}" if used else "workers are not confined") + memory
    if not used:
        return Finding(
            f"confinement {server}", False, seen, "Start its agent with --confinement auto, not off.", rungs
        )
    return Finding(
        f"confinement {server}", True, seen, f"Not in use: {'; '.join(missing)}." if missing else "", rungs
    )


def _server(server: str, devices: list[Device]) -> Iterable[Finding]:
    works = sum(device.available for device in devices)
    troubles = {device.condition for device in devices if not device.available}
    if troubles == {"away"}:
        yield Finding(
            f"server {server}",
            False,
            "away",
            f"Start “gpukernel agent” on {server} again, or look at its log.",
        )
        return
    if troubles == {"drained"}:
        left = sum(device.leases for device in devices)
        yield Finding(f"server {server}", True, f"drained; {left} leases left")
        return
    others = Counter(device.decided_by for device in devices if device.decided_by != "pool")
    given = "".join(f"; {name} decides over {count}" for name, count in sorted(others.items()))
    yield Finding(f"server {server}", True, f"{works} of {len(devices)} devices in placement{given}")
    for device in devices:
        if not device.works:
            yield Finding(
                f"device {device.id}",
                False,
                device.condition,
                f"Look at the device on {server}; it gets leases again when its agent finds it sound.",
            )
