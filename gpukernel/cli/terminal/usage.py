"""Mistakes on the command line, each with one sentence and one exit status.

Guarantees
----------
* One kind of mistake ends every command with the same status (`STATUSES`).  ``run`` and ``client`` pass on their program's.
* A word that is not understood is named, with the nearest that would be.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from gpukernel.cli.terminal.charset import prepare_streams
from gpukernel.cli.terminal.output import Problem, complain, status_of
from gpukernel.common.errors import PoolError

__all__ = ["PANELS", "AllCommands", "Group", "nearest", "run"]

INTERRUPTED = 130
USAGE = 2
_WRONG = re.compile(r"Invalid value for ((?:'[^']*'(?: / )?)+): (?:Value error, )?")
_TOO_MANY = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.+)\)")


PANELS = {
    "Begin": ("demo", "up", "kernelspec"),
    "Use a slice": ("run", "request", "client", "release", "resize", "smi"),
    "Look at the pool": ("ps", "leases", "top", "list-gpus", "why", "report", "health"),
    "Teach": ("quota", "reserve"),
    "Administer": ("pool", "agent", "server", "drain", "undrain", "token"),
    "Other engines": ("slurm", "kubernetes", "cdi", "lease"),
    "Read": ("man",),
}
"""The commands by what they are for, in the order in which a newcomer meets them."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names what was perhaps meant by `word`; nothing where nothing resembles it."""
    close = difflib.get_close_matches(word, list(known), n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(f'“{one}”' for one in close)}?" if close else "."


class Group(TyperGroup):
    """A group of commands that names the nearest one for a word that is none."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click's ``Group.resolve_command``."""
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            known = [name for name, command in self.commands.items() if not command.hidden]
            raise Problem(
                f"There is no command “{ctx.command_path} {args[0][:40]}”{nearest(args[0], known)} "
                f"{_see(ctx.command_path)}",
                USAGE,
            )
        return super().resolve_command(ctx, args)


class AllCommands(Group):
    """The group of all commands; its help shows them by `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """See click's ``Group.list_commands``."""
        order = [name for names in PANELS.values() for name in names]
        return sorted(super().list_commands(ctx), key=order.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click's ``Group.get_command``."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return command


def _see(command: str) -> str:
    return f"See “{command} --help”."


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield from (
                name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")
            )


def _no_such_option(name: str, context: Any) -> str:
    command = context.command
    path = context.command_path
    inside = getattr(command, "commands", {})
    if any(name in _options(one) for one in inside.values()):
        return f"The option {name} stands behind the command, as in “{path} COMMAND {name} …”."
    return f"“{path}” has no option {name[:40]}{nearest(name, _options(command))} {_see(path)}"


def _no_number(error: Any) -> str:
    """Return that a value is no number, with the value, which Typer since 0.2x leaves out; empty where something else is wrong."""
    found: list[Any] = getattr(error.__cause__, "errors", list)()
    wanted = {"int_parsing": "a whole number", "float_parsing": "a number"}.get(
        found[0]["type"] if found else ""
    )
    parameter = getattr(error, "param", None)
    if wanted is None or parameter is None:
        return ""
    names = (
        " / ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.human_readable_name
    )
    return f"{names} wants {wanted}, not “{str(found[0]['input'])[:40]}”."


def _sentence(error: Any) -> str:
    """Return what is wrong with a command line, from click's exception."""
    context = getattr(error, "ctx", None)
    if (name := getattr(error, "option_name", None)) and hasattr(error, "possibilities") and context:
        return _no_such_option(name, context)
    if (wrong := _no_number(error)) and context:
        return f"{wrong} {_see(context.command_path)}"
    said = " ".join(error.format_message().split())
    if context and (more := _TOO_MANY.match(said)):
        return f"“{context.command_path}” does not know what “{more[1][:40]}” is for. {_see(context.command_path)}"
    said = _WRONG.sub(lambda place: place[1].replace("'", "") + ": ", said)
    said = said if said.endswith((".", "?", "!")) else f"{said}."
    return f"{said} {_see(context.command_path)}" if context else said


def run(app: typer.Typer) -> None:
    """Run the command line and end the process with its status."""
    prepare_streams()
    try:
        status = app(prog_name="gpukernel", standalone_mode=False)
    except Problem as problem:
        complain(str(problem))
        status = problem.status
    except PoolError as error:  # before anything was asked: an account without a home, for example
        complain(str(error))
        status = status_of(error)
    except typer.Abort:
        complain("It was interrupted; nothing was changed.")
        status = INTERRUPTED
    except Exception as error:
        # Typer carries click's exceptions in a package of its own since 0.2x, and neither names them in public.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ != "NoArgsIsHelpError":
            complain(_sentence(error))
        elif help_text := error.format_message():  # Typer prints it itself, click leaves it to us
            print(help_text, file=sys.stderr)
        status = getattr(error, "exit_code", USAGE)
    sys.exit(status if isinstance(status, int) else 0)
