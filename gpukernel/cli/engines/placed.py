"""``gpukernel lease``: the leases of engines, for their prologs and epilogs.

Every command may be repeated: the key names one use, whoever was killed in between.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gpukernel.cli.options import Course, Json, Pool, State
from gpukernel.cli.terminal import completion
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen
from gpukernel.cli.terminal.output import NOT_NOW, USAGE, Problem, complain, failure, seconds
from gpukernel.cli.terminal.usage import Group

if TYPE_CHECKING:
    from gpukernel.client.engines import EngineClient
    from gpukernel.common.model import Lease, PlacedOn

__all__ = ["app", "placements"]

T = TypeVar("T")

app = typer.Typer(
    help="Acquire and release slices that an engine (Kubernetes, Slurm) has placed, by its keys.",
    no_args_is_help=True,
    cls=Group,
)

Key = Annotated[
    str,
    typer.Option(
        "--key", metavar="KEY", help="The engine's own name for one use, such as slurm-$SLURM_JOB_ID."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="kubernetes or slurm; an engine's own token says it already.",
        autocompletion=completion.engines,
    ),
]
LeaseFile = Annotated[
    Path | None,
    typer.Option(
        "--lease-file",
        metavar="FILE",
        help="Where programs find the slice (GPUKERNEL_LEASE_FILE): mode 0600, and of the person's account where root writes it.",
    ),
]

AGAIN_SECONDS = 0.5
"""Seconds between two attempts to reach a pool or a server that is away."""

_PLACED = re.compile(r"(?P<uuid>[^\s=]+)=(?P<number>\d+(\.\d+)?)(?P<unit>B|KiB|MiB|GiB)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def placements(texts: list[str]) -> list[PlacedOn]:
    """Return the placements of ``--placed-on``, such as ``GPU-5e2f…=655MiB``; a `Problem` where one is not understood."""
    from gpukernel.common.model import PlacedOn

    found = []
    for text in texts:
        match = _PLACED.fullmatch(text)
        if match is None:
            raise Problem(
                f"“{text[:60]}” is no placement; write UUID=SIZE with a unit, such as GPU-5e2f…=655MiB or GPU-5e2f…=4GiB.",
                USAGE,
            )
        found.append(PlacedOn(match["uuid"], int(float(match["number"]) * _UNITS[match["unit"]])))
    return found


def _ask(
    pool: str | None,
    state: Path | None,
    engine: str,
    patience: float,
    call: Callable[[EngineClient, float], Awaitable[T]],
) -> T:
    """Ask the pool one thing as `EngineClient` can, given the seconds that are left; its error becomes a `Problem`.

    A pool that does not answer, and a device whose server is away or just back, are asked again within `patience` seconds: a pool that is
    started again is no reason for a prolog to fail.
    """
    from gpukernel.client.engines import EngineClient
    from gpukernel.common.address import resolve_address
    from gpukernel.common.errors import PoolError, PoolUnreachable, Refused

    async def ask() -> T:
        end = time.monotonic() + patience
        while True:
            try:
                async with EngineClient(resolve_address(pool, state)) as client:
                    client.engine = engine
                    return await call(client, max(end - time.monotonic(), 0.0))
            except (PoolUnreachable, Refused) as error:
                lasting = isinstance(error, Refused) and error.code != "unavailable"
                if lasting or time.monotonic() + AGAIN_SECONDS > end:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    try:
        return asyncio.run(ask())
    except PoolError as error:
        raise failure(error) from None


@app.command()
def acquire(
    placed_on: Annotated[
        list[str],
        typer.Option(
            "--placed-on",
            metavar="UUID=SIZE",
            help="A device and how much of its memory, such as GPU-5e2f…=655MiB; may be repeated.",
        ),
    ],
    key: Key,
    for_: Annotated[str, typer.Option("--for", metavar="PERSON", help="The person for whom it is.")],
    course: Course = "",
    description: Annotated[
        str, typer.Option(metavar="TEXT", help="What it is for, as tables show it; else the key.")
    ] = "",
    at_most: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="End it after this time in any case, such as 2h; 0: when it is released."
        ),
    ] = "0",
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long the pool, the device's server and its workers may take; at most 10m.",
        ),
    ] = "60s",
    lease_file: LeaseFile = None,
    engine: Engine = "",
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Acquire a slice on exactly the devices that an engine has chosen; asking again with the key gives the same.

    The device must be one that the engine decides over (“gpukernel server delegate”).  Nothing waits for room: where there is none the
    exit status is 6.

    \b
    Examples:
      gpukernel lease acquire --placed-on GPU-5e2f…=655MiB --key slurm-123 --for anna --json
      gpukernel lease acquire --placed-on GPU-5e2f…=4GiB --key slurm-123 --for anna --lease-file /run/gpukernel-jobs/123
    """
    from gpukernel.cli.engines.job_files import check_folder, write_for
    from gpukernel.cli.terminal.formats import print_data
    from gpukernel.common.model import Holder

    asked, patience, longest = placements(placed_on), seconds(wait), seconds(at_most)
    if lease_file is not None:
        check_folder(lease_file)
    holder = Holder(for_, course=course, description=description or key)
    lease = _ask(
        pool, state, engine, patience, lambda c, left: c.acquire_placed(asked, key, holder, left, longest)
    )
    if lease.state != "live":
        raise Problem(
            f"Lease {lease.id[:8]} of key {key} has not started within {wait}; ask again with the key, or release it.",
            NOT_NOW,
        )
    if lease_file is not None:
        write_for(for_, lease_file, lease)
    if json:
        print_data([lease])
    else:
        sizes = " + ".join(
            f"{piece.memory_bytes // 2**20} MiB of {piece.device_id}" for piece in lease.slices
        )
        print(lease.id)
        complain(f"{for_} has {sizes}, until “gpukernel lease release --key {key}”.")


@app.command()
def release(
    key: Key,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why, as its programs are told; else that it was released.")
    ] = "",
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long the pool and the workers, which stop, may take; at most 10m."
        ),
    ] = "60s",
    lease_file: Annotated[
        Path | None,
        typer.Option("--lease-file", metavar="FILE", help="Remove this file too, if it is there."),
    ] = None,
    engine: Engine = "",
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Release the slice of a key, and return when its memory is free.

    A key that has none is no mistake: it was released already, or never acquired.

    \b
    Examples:
      gpukernel lease release --key slurm-123
      gpukernel lease release --key slurm-123 --reason "job 123 is over" --lease-file /run/gpukernel-jobs/123
    """
    from gpukernel.cli.engines.job_files import remove
    from gpukernel.cli.terminal.formats import print_data

    patience = seconds(wait)
    lease = _ask(pool, state, engine, patience, lambda c, left: c.release_placed(key, reason, left))
    if lease_file is not None:
        remove(lease_file)
    if lease is not None and lease.state != "ended":
        raise Problem(
            f"Lease {lease.id[:8]} of key {key} ends, but its workers have not stopped within {wait}; its memory is not free yet.",
            NOT_NOW,
        )
    if json:
        print_data([] if lease is None else [lease])
    else:
        print(
            f"No lease of key {key} is left."
            if lease is None
            else f"Lease {lease.id[:8]} of key {key} is released."
        )


@app.command("list")
def list_(
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Of this key only.")] = "",
    engine: Engine = "",
    pool: Pool = None,
    state: State = None,
    form: FormatOption = Format.TABLE,
    json: Json = False,
) -> None:
    """Show what an engine has placed and is not over.

    \b
    Examples:
      gpukernel lease list --engine slurm
      gpukernel lease list --key slurm-123 --json
    """
    from gpukernel.cli.tables import held_slices, lease_listing
    from gpukernel.cli.terminal.formats import present

    found: list[Lease] = _ask(pool, state, engine, 0.0, lambda c, _: c.placed(key))
    present(found, lease_listing(held_slices(found)), chosen(form, json), "The engine has placed nothing.")
