"""``gpukernel server``, ``drain`` and ``undrain``: GPU servers listed, taken out, put back, given up for lost, and admitted anew."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gpukernel.cli.options import Server
from gpukernel.cli.quota import Json, Pool, State, ask_admin
from gpukernel.cli.tables import ask_pool
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen, present, print_data
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import USAGE, Problem, seconds
from gpukernel.cli.terminal.usage import Group
from gpukernel.common.model import GpuServer

__all__ = ["app", "drain", "undrain"]

app = typer.Typer(
    help="List GPU servers, give lost ones up, admit them anew.", no_args_is_help=True, cls=Group
)


@app.command("list")
def list_(
    pool: Pool = None, state: State = None, form: FormatOption = Format.TABLE, json: Json = False
) -> None:
    """Show the GPU servers, who speaks for them, and when they were last heard of.

    \b
    Examples:
      gpukernel server list
      gpukernel server list --json
    """
    found = ask_admin(pool, state, lambda c: c.gpu_servers())
    listing = Listing(
        [
            Column("Server", lambda one: one.name),
            Column("State", lambda one: one.state),
            Column("Heard of", lambda one: f"{one.silent_seconds:.0f} s ago", drop=1, right=True),
            Column("Leases", lambda one: str(one.leases), drop=2, right=True),
            Column("Memory is free", _free, drop=3),
            Column("Enrolled with", lambda one: one.credential, drop=4, least=12),
            Column("Machine", lambda one: one.machine[:8], drop=5),
        ],
        found,
        lambda one: one.name,
    )
    present(found, listing, chosen(form, json), "The pool has no GPU server.")


def _free(one: GpuServer) -> str:
    if one.state != "away" or not one.leases:
        return ""
    return "when it is forgotten" if one.fenced_seconds < 0 else f"in {one.fenced_seconds:.0f} s"


@app.command()
def forget(
    server: Server,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Give a GPU server up that does not answer and never will: its leases end, and its memory counts as free.

    Without this its memory is free by itself once no worker can live there any more (“gpukernel server list” says when).  If its agent
    comes back all the same, it is told to stop its workers before it gets new leases.

    \b
    Examples:
      gpukernel server forget gpu2
      gpukernel server forget gpu2 --yes --json
    """
    if not yes:
        if not sys.stdin.isatty():
            raise Problem("Say --yes where nobody can be asked.", USAGE)
        print(f"Programs that still run on {server} would share its memory with others.")
        if not typer.confirm(f"Is {server} switched off, or its agent and workers dead?"):
            raise Problem("Nothing was changed.")
    leases = ask_admin(pool, state, lambda c: c.forget_server(server))
    if json:
        print_data([{"server": server, "leases": leases}])
    else:
        print(f"{server} is forgotten; {leases} leases held memory there.")


@app.command()
def reset(
    server: Server,
    pool: Pool = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Let the next agent of this name enrol: another token, another machine, or a new installation.

    The first agent of a name binds it to its credential and its machine; others are refused from then on.

    \b
    Examples:
      gpukernel server reset gpu2
      gpukernel server reset gpu2 --json
    """
    ask_admin(pool, state, lambda c: c.reset_server(server))
    if json:
        print_data([{"server": server}])
    else:
        print(f"The next agent that says that it is {server} enrols.")


LOOK_SECONDS = 1.0


def drain(server: str, deadline: str, wait: bool, pool: str | None, state: Path | None) -> None:
    """Let a server have no new leases; with `wait` return when none is left."""
    span = seconds(deadline)
    left = ask_admin(pool, state, lambda c: c.drain(server, span))
    end = f", for {deadline} at most" if span and left else ""
    print(f"{server} gets no new leases; {left} are left{end}.")
    while wait and left:
        time.sleep(LOOK_SECONDS)
        devices = ask_pool(pool, state, lambda client: client.devices())
        left = sum(device.leases for device in devices if device.server == server)
    if wait:
        print(f"{server} is empty.")


def undrain(server: str, pool: str | None, state: Path | None) -> None:
    """Let a server have leases again."""
    ask_admin(pool, state, lambda c: c.undrain(server))
    print(f"{server} gets leases again.")
