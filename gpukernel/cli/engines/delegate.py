"""``gpukernel server delegate``: who decides over a device, the pool or an engine."""

from __future__ import annotations

from typing import Annotated

import typer

from gpukernel.cli.options import Json, Pool, State
from gpukernel.cli.terminal import completion
from gpukernel.cli.terminal.output import USAGE, Problem

__all__ = ["delegate"]


def delegate(
    device: Annotated[
        str,
        typer.Argument(
            metavar="DEVICE",
            help="gpu1/0, or its UUID or the beginning of it.",
            autocompletion=completion.devices,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHO",
            help="kubernetes or slurm, or pool to take it back.",
            show_default=False,
            autocompletion=completion.deciders,
        ),
    ],
    when_free: Annotated[
        bool,
        typer.Option(
            "--when-free",
            help="Where leases are on it: let it get no more, and give it away when they are over.",
        ),
    ] = False,
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Let an engine decide over a device, or the pool again: exactly one of them chooses it for leases.

    A device in use is refused without --when-free.  Giving it to whom it belongs takes back a --when-free that still waits.

    \b
    Examples:
      gpukernel server delegate gpu1/0 --to slurm
      gpukernel server delegate gpu1/0 --to pool --when-free
    """
    from gpukernel.cli.quota import ask_admin
    from gpukernel.cli.terminal.formats import print_data

    if not device:
        raise Problem("Name the device, as “gpukernel list-gpus” shows it.", USAGE)
    given = ask_admin(pool, state, lambda client: client.delegate(device, to, when_free=when_free))
    if json:
        print_data([given])
    elif given.next_decider:
        left = "its lease is" if given.leases == 1 else f"its {given.leases} leases are"
        print(
            f"{given.device} gets no new leases; {_by(given.next_decider)} decides over it once {left} over."
        )
    else:
        print(f"{_by(given.decided_by).capitalize()} decides over {given.device} ({given.uuid}).")


def _by(decider: str) -> str:
    return "the pool" if decider == "pool" else decider
