"""MkDocs hook: replaces ``<!-- files: FOLDER … -->`` by a table of the folder's files and the first sentence of each file's head."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

_MARK = re.compile(r"^<!-- files: (.+?) -->$", re.MULTILINE)
_SUFFIXES = (".py", ".h", ".cpp", ".txt", ".proto")
LONG = 140
_LEFT_OUT = {"__init__.py", "__main__.py", "CMakeLists.txt"}


def _head(path: Path) -> str:
    """The comment or docstring with which a file begins, as one line."""
    text = path.read_text()
    if path.suffix == ".py":
        return " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    comment = re.match(r"(?:[ \t]*(?://|#)[^\n]*\n)+", text)
    lines = re.sub(r"^[ \t]*(?://|#) ?", "", comment[0], flags=re.MULTILINE) if comment else ""
    return " ".join(lines.partition("\n\n")[0].split())


def first_sentence(words: str) -> str:
    """The first sentence, or of a long one what stands before its first colon or semicolon."""
    sentence = re.split(r"\.(?=\s|$)", words, maxsplit=1)[0]
    return sentence if len(sentence) <= LONG else re.split(r"[:;](?=\s)", sentence, maxsplit=1)[0]


def described(folder: Path) -> dict[str, str]:
    """Each file of a folder by name; ``a.h`` and ``a.cpp`` are one row, ``a.{h,cpp}``, described by whichever says something."""
    stems: dict[str, list[Path]] = {}
    for path in sorted(
        folder.iterdir(), key=lambda p: (p.stem, _SUFFIXES.index(p.suffix) if p.suffix in _SUFFIXES else 9)
    ):
        if path.suffix in _SUFFIXES and path.name not in _LEFT_OUT and "_pb2" not in path.name:
            stems.setdefault(path.stem if path.suffix in (".h", ".cpp") else path.name, []).append(path)
    rows = {}
    for stem, paths in stems.items():
        heads = [head for path in paths if (head := _head(path))]
        name = paths[0].name if len(paths) == 1 else f"{stem}.{{h,cpp}}"
        rows[name] = first_sentence(heads[0]) if heads else ""
    return rows


def _code(words: str) -> str:
    words = re.sub(r"``?([^`]+)``?", r"`\1`", words)
    return words.replace("|", "\\|").replace("<", "&lt;")


def table(folders: str) -> Iterator[str]:
    """The table for a mark's folders, named from the root of the repository."""
    yield "| file | subject |\n| --- | --- |"
    several = len(folders.split()) > 1
    for name in folders.split():
        for file, words in described(ROOT / name).items():
            shown = f"{name.removeprefix('gpukernel/').removeprefix('native/')}/{file}" if several else file
            yield f"| `{shown}` | {_code(words)} |"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in every mark of a page."""
    return _MARK.sub(lambda mark: "\n".join(table(mark[1])), markdown)
