"""``gpukernel man``: manual pages, made from the commands themselves.

There is a page for the whole, ``gpukernel(1)``, and one for each command, ``gpukernel-run(1)`` and so on.  They are roff as man(7)
describes it, in ASCII and the escapes of groff_char(7), so that every ``man`` shows them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gpukernel import __version__
from gpukernel.cli.terminal.charset import is_terminal, write_data
from gpukernel.cli.terminal.output import NOT_THERE, STATUSES, USAGE, Problem

__all__ = ["man", "pages"]

ENVIRONMENT = {
    "GPUKERNEL_POOL": "The pool's address, or a connection file, where --pool names none.",
    "GPUKERNEL_POOL_TOKEN_FILE": "A file with the token for a pool over TCP, where no connection file has it.",
    "GPUKERNEL_STATE": "The state directory, where --state names none.",
    "NO_COLOR": "Where it is not empty, nothing is coloured.",
    "LC_ALL, LC_CTYPE, LANG": "In the C locale everything for people is written in ASCII.",
    "COLUMNS": "The width of tables at a terminal, in place of the terminal's own.",
}

_ESCAPED = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "“": r"\(lq",
    "”": r"\(rq",
    "’": r"\(cq",
    "×": r"\(mu",
    "…": "...",
    "–": r"\(en",
    "→": r"\(->",
}
_EXAMPLES = re.compile(r"\x08\nExamples?:\n((?:[ ]+.*\n?)+)")


def man(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The command that it is about.")
    ] = None,
    install: Annotated[
        bool,
        typer.Option("--install", help="Write every page to share/man of this Python environment."),
    ] = False,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every page to DIR/man1 instead.")
    ] = None,
) -> None:
    """Show the manual page of a command, or install them all for “man gpukernel”.

    \b
    Examples:
      gpukernel man
      gpukernel man pool init
      gpukernel man --install && man gpukernel-run
    """
    found = dict(pages(context.find_root().command))
    if install or directory:
        if command or (install and directory):
            raise Problem("Give one of COMMAND, --install and --directory.", USAGE)
        print(f"{len(found)} pages are in {_write(found, directory or Path(sys.prefix, 'share', 'man'))}.")
        return
    name = "-".join(["gpukernel", *(command or [])])
    if name not in found:
        raise Problem(
            f"There is no command “{' '.join(command or [])[:60]}”; see “gpukernel man”.", NOT_THERE
        )
    _show(name, found[name])


def _write(found: dict[str, str], directory: Path) -> Path:
    folder = directory / "man1"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (folder / f"{name}.1").write_text(text, encoding="ascii")
    except OSError as error:
        raise Problem(f"The pages cannot be written to {folder}: {error.strerror}.") from None
    return folder


def _show(name: str, text: str) -> None:
    viewer = shutil.which("man")
    if not is_terminal() or viewer is None:
        write_data(text)
        return
    with tempfile.TemporaryDirectory(prefix="gpukernel-man-") as folder:
        path = Path(folder, f"{name}.1")
        path.write_text(text, encoding="ascii")
        subprocess.run([viewer, str(path)], check=False)


def pages(command: Any, name: str = "gpukernel", parent: Any = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the roff of a command's page, and of those of the commands below it."""
    context = typer.Context(command, info_name=name.rpartition("-")[2] if parent else name, parent=parent)
    below = {n: one for n, one in getattr(command, "commands", {}).items() if not one.hidden}
    yield name, _page(command, name, context, below)
    for word, one in below.items():
        yield from pages(one, f"{name}-{word}", context)


def _page(command: Any, name: str, context: Any, below: dict[str, Any]) -> str:
    help_text = (command.help or "").strip()
    examples = _EXAMPLES.search(help_text + "\n")
    text = _EXAMPLES.sub("", help_text + "\n").strip()
    first = text.partition("\n\n")[0]
    lines = [
        f'.TH "{_roff(name.upper())}" 1 "" "gpukernel {_roff(__version__)}" "gpukernel"',
        ".nh",
        ".SH NAME",
        rf"{_roff(name)} \- {_roff(_summary(first))}",
        ".SH SYNOPSIS",
        rf".B {_roff(context.command_path)}",
        _roff(" ".join(_usage(command))),
        ".SH DESCRIPTION",
        *_paragraphs(text),
    ]
    arguments = [p for p in command.params if p.param_type_name == "argument" and p.help]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    if arguments:
        lines += [
            ".SH ARGUMENTS",
            *(line for one in arguments for line in _entry(_argument(one), _help(one))),
        ]
    if options:
        lines += [".SH OPTIONS", *(line for one in options for line in _entry(_option(one), _help(one)))]
    if below:
        lines.append(".SH COMMANDS")
        for word, one in below.items():
            lines += _entry(
                rf"\fB{_roff(name)}\-{_roff(word)}\fR(1)", _summary(one.help or one.short_help or "")
            )
    if examples:
        shown = (line.strip() for line in examples[1].rstrip().splitlines())
        lines += [".SH EXAMPLES", ".nf", *(_roff(line) for line in shown), ".fi"]
    if parentless := name == "gpukernel":
        lines.append(".SH ENVIRONMENT")
        for variable, meaning in ENVIRONMENT.items():
            lines += _entry(rf"\fB{_roff(variable)}\fR", meaning)
    lines.append(".SH EXIT STATUS")
    for status, meaning in STATUSES.items():
        lines += _entry(rf"\fB{status}\fR", meaning)
    if not parentless:
        lines += [".SH SEE ALSO", r"\fBgpukernel\fR(1)"]
    return "\n".join(line for line in lines if line) + "\n"


def _roff(text: str) -> str:
    """Return text as roff shows it; no line of it is taken for a request."""
    escaped = "".join(_ESCAPED.get(c, c) for c in text)
    escaped = "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in escaped)
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _summary(text: str) -> str:
    first = " ".join(text.partition("\n\n")[0].split()).partition(".  ")[0].rstrip(".")
    return f"{first[:1].lower()}{first[1:]}"


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        yield _roff(" ".join(paragraph.replace("\b", "").split()))


def _entry(head: str, text: str) -> list[str]:
    return [".TP", head, _roff(" ".join(text.split()))]


def _metavar(parameter: Any) -> str:
    choices = getattr(getattr(parameter, "type", None), "choices", None)
    if choices is None:
        choices = getattr(getattr(parameter, "type_descriptor", None), "choices", None)
    if parameter.metavar:
        return str(parameter.metavar)
    return "|".join(str(getattr(one, "value", one)) for one in choices) if choices else "VALUE"


def _argument(parameter: Any) -> str:
    return rf"\fI{_roff(parameter.metavar or parameter.name.upper())}\fR"


def _option(parameter: Any) -> str:
    names = ", ".join(rf"\fB{_roff(one)}\fR" for one in (*parameter.opts, *parameter.secondary_opts))
    return names if parameter.is_flag or parameter.count else rf"{names} \fI{_roff(_metavar(parameter))}\fR"


def _help(parameter: Any) -> str:
    text = parameter.help or ""
    if parameter.envvar:
        text += f" Else the environment variable {parameter.envvar}."
    default = parameter.default
    shown = not (default is None or callable(default) or isinstance(default, bool) or default == "")
    return f"{text} [default: {getattr(default, 'value', default)}]" if shown else text


def _usage(command: Any) -> Iterator[str]:
    if any(p.param_type_name == "option" for p in command.params):
        yield "[OPTIONS]"
    for one in command.params:
        if one.param_type_name == "argument":
            name = one.metavar or one.name.upper()
            name += "…" if one.nargs == -1 and not name.endswith("…") else ""
            yield name if one.required else f"[{name}]"
    if getattr(command, "commands", None):
        yield "COMMAND ..."
