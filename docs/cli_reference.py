"""MkDocs hook: writes the reference of every ``gpukernel`` command under the page ``cli.md``, from the command itself."""

from __future__ import annotations

import re
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

# A help text's examples: a paragraph that \b keeps from being wrapped.
_EXAMPLES = re.compile(r"\x08\nExamples?:\n((?:[ ]+.*\n?)+)")


def _as_code(match: re.Match[str]) -> str:
    lines = "\n".join(f"$ {line.strip()}" for line in match[1].rstrip().splitlines())
    return f"```console\n{lines}\n```\n"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_path != "cli.md":
        return markdown
    from gpukernel.cli import app

    command = typer.main.get_command(app)
    with typer.Context(command) as context:
        reference = get_docs_for_click(obj=command, ctx=context, name="gpukernel", title="Reference")
    reference = re.sub(r"^(#+) ", r"#\1 ", reference, flags=re.MULTILINE)
    return markdown + "\n" + _EXAMPLES.sub(_as_code, reference)
