"""MkDocs hook: writes the reference of every ``gpukernel`` command into the page ``cli.md``, from the command itself."""

from __future__ import annotations

import re
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

from docs.in_pages import put

# A help text's examples: a paragraph that \b keeps from being wrapped.
_EXAMPLES = re.compile(r"\x08\nExamples?:\n((?:[ ]+.*\n?)+)")
_TITLE = re.compile(r"^#+ `(gpukernel[^`]*)`$|^#+ Reference$")
_ENTRY = re.compile(r"^\* `([\w-]+)`: ")
# The kinds of Python, which say nothing beside an argument's name.
_KIND = re.compile(r"^(\* `[^`]*?) <(?:str|path|list\[str\])>`: ")


def _as_code(match: re.Match[str]) -> str:
    lines = "\n".join(f"$ {line.strip()}" for line in match[1].rstrip().splitlines())
    return f"```console\n{lines}\n```\n"


def _whole(reference: str, command: Any) -> list[str]:
    """Return the reference's lines with the whole first sentence of each command in the lists of commands, which typer cuts, and a link."""
    lines: list[str] = []
    at, name, lists = command, "gpukernel", False
    for line in reference.splitlines():
        if title := _TITLE.match(line):
            name, at, lists = title[1] or "gpukernel", command, False
            for word in name.split()[1:]:
                at = at.commands[word]
        lists = line == "**Commands**:" or (lists and not line.startswith("**"))
        entry = _ENTRY.match(line)
        if lists and entry:
            said = " ".join((at.commands[entry[1]].help or "").partition("\n\n")[0].split())
            link = f"{name} {entry[1]}".replace(" ", "-")
            lines.append(f"* [`{entry[1]}`](#{link}): {said}")
        else:
            lines.append(_KIND.sub(r"\1`: ", line).rstrip())
    return lines


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in the reference."""
    if page.file.src_path != "cli.md":
        return markdown
    from gpukernel.cli import app

    command = typer.main.get_command(app)
    with typer.Context(command) as context:
        reference = get_docs_for_click(obj=command, ctx=context, name="gpukernel", title="Reference")
    reference = _EXAMPLES.sub(_as_code, re.sub(r"^(#+) ", r"#\1 ", reference, flags=re.MULTILINE))
    return put(markdown, "reference", "\n".join(_whole(reference, command)))
