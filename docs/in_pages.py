"""``python -m docs.in_pages``: write what is made from the code into the pages, so that they are whole where the repository is read.

A page has ``<!-- NAME -->`` and ``<!-- /NAME -->``, each on a line of its own, and between them what the hook of that page makes; MkDocs
makes it again for the site.  ``make docs`` runs this, and a test compares the pages with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

__all__ = ["main", "put", "whole_pages"]

FOLDER = Path(__file__).parent


def put(markdown: str, name: str, text: str) -> str:
    """Return `markdown` with `text` between the marks of `name`.

    Raises
    ------
    ValueError
        The page does not have both marks.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    pattern = re.compile(rf"^{re.escape(begin)}\n.*?^{re.escape(end)}$", re.MULTILINE | re.DOTALL)
    if not pattern.search(markdown):
        raise ValueError(f"a page has to have the lines {begin} and {end}.")
    return pattern.sub(lambda _: f"{begin}\n\n{text.strip()}\n\n{end}", markdown)


def whole_pages() -> Iterator[tuple[Path, str]]:
    """Return each of the pages and the text that it has to have."""
    from docs import cli_reference, framework_table, settings_reference

    for name, hook in (
        ("cli.md", cli_reference),
        ("frameworks.md", framework_table),
        ("settings.md", settings_reference),
    ):
        page = SimpleNamespace(file=SimpleNamespace(src_path=name))
        yield FOLDER / name, hook.on_page_markdown((FOLDER / name).read_text(), page=page)


def main() -> None:
    """Write the pages that are out of date, and name them."""
    for path, text in whole_pages():
        if path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(FOLDER.parent)} is written anew.")


if __name__ == "__main__":
    main()
