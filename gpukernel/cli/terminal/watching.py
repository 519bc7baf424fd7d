"""``-w``: the same picture again and again, until Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from typer.core import TyperCommand

from gpukernel.cli.terminal.charset import is_terminal, make_console
from gpukernel.cli.terminal.output import Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["OFTEN_ENOUGH", "Watch", "WatchCommand", "keep_showing"]

OFTEN_ENOUGH = 2.0
"""Seconds between two pictures where nobody says how many."""

SHORTEST = 0.1

Watch = Annotated[
    float | None,
    typer.Option(
        "-w",
        "--watch",
        metavar="[SECONDS]",
        help=f"Show it again that often, until Ctrl-C; every {OFTEN_ENOUGH:g} s where it is not said.",
    ),
]


class WatchCommand(TyperCommand):
    """A command whose ``-w`` may stand without its seconds."""

    def parse_args(self, ctx: Any, args: Sequence[str]) -> list[str]:
        """See click's ``Command.parse_args``; `OFTEN_ENOUGH` is put where seconds are missing."""
        complete: list[str] = []
        for word, following in zip_longest(args, args[1:], fillvalue=""):
            complete.append(word)
            if word in ("-w", "--watch") and not _is_number(following):
                complete.append(f"{OFTEN_ENOUGH:g}")
        return super().parse_args(ctx, complete)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def keep_showing(picture: Callable[[], RenderableType], every: float, times: int = 0) -> None:
    """Show `picture` every `every` seconds, `times` times; 0: until Ctrl-C.

    At a terminal it is drawn over itself; elsewhere one picture follows another.
    """
    if not every >= SHORTEST:
        raise Problem(f"Every {every:g} s is too often; the shortest is {SHORTEST} s.", 2)
    console = make_console()
    if times == 1:
        console.print(picture())
        return
    shown = 0
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        live = None
        if is_terminal():  # nobody else writes: standard output stays what `charset` knows
            live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            stack.enter_context(live)
        while True:
            if live is not None:
                live.update(picture(), refresh=True)
            else:
                console.print(picture())
            shown += 1
            if shown == times:
                return
            time.sleep(every)
