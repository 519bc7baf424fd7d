"""MkDocs hook: lists the decision records in the navigation and on their index page, so that a new one is one file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "decisions"
MARK = "<!-- decisions -->"


class Record(NamedTuple):
    """One decision record: its file, number, title and date."""

    file: str
    number: str
    title: str
    date: str


def records() -> Iterator[Record]:
    """Yield every record, in the order of their numbers.

    Raises
    ------
    ValueError
        Where a file does not begin as ``template.md`` does.
    """
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        head = re.match(r"# (\d{4})\. (.+)\n\n\*(\d{4}-\d\d-\d\d)(, .+)?\*\n", path.read_text())
        if head is None or not path.name.startswith(f"{head[1]}-"):
            raise ValueError(f"{path.name} does not begin as decisions/template.md does.")
        yield Record(path.name, head[1], head[2], head[3])


def _expanded(entry: Any) -> Any:
    """A navigation entry, in which ``decisions/index.md`` has become the list of all records."""
    if isinstance(entry, dict):
        return {name: _expanded(value) for name, value in entry.items()}
    if isinstance(entry, list):
        return [_expanded(one) for one in entry]
    if entry == "decisions/index.md":
        rows = [{f"{r.number} {r.title}".replace("`", ""): f"decisions/{r.file}"} for r in records()]
        return [{"All decisions": entry}, *rows]
    return entry


def on_config(config: Any, **_: Any) -> Any:
    """Expand the navigation."""
    config["nav"] = _expanded(config["nav"])
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in the index page's table."""
    if MARK not in markdown:
        return markdown
    rows = "\n".join(f"| [{r.number}]({r.file}) | [{r.title}]({r.file}) | {r.date} |" for r in records())
    return markdown.replace(MARK, f"| | decision | date |\n| --- | --- | --- |\n{rows}")
