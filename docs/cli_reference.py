"""MkDocs hook: writes the reference of every ``gpukernel`` command under the page ``cli.md``, from the command itself."""

from __future__ import annotations

from typing import Any

import typer.main
from typer.cli import get_docs_for_click


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_path != "cli.md":
        return markdown
    from gpukernel.cli import app

    command = typer.main.get_command(app)
    with typer.Context(command) as context:
        reference = get_docs_for_click(obj=command, ctx=context, name="gpukernel", title="Reference")
    return markdown + "\n" + reference.replace("\n# ", "\n## ")
