"""MkDocs hook: draws the pool's tables into the page ``architecture/schema.md``, from the schema itself.

Tables that refer to each other stand side by side, the one that is referred to on the left; the others fill the columns.
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

MARK = "<!-- schema -->"
COLUMNS, WIDTH, GAP, ROW, HEAD = 3, 228, 48, 16, 26

_STYLE = """
.schema { width: 100%; min-width: 640px; max-width: 780px; font-family: var(--md-code-font, ui-monospace), monospace; font-size: 11px }
.schema text { fill: var(--md-default-fg-color, #222) } .schema .type { fill: var(--md-default-fg-color--light, #666) }
.schema .name { font-weight: 700; font-size: 13px } .schema .check { font-style: italic; fill: var(--md-default-fg-color--light, #666) }
.schema rect { fill: var(--md-default-bg-color, #fff); stroke: #00796b } .schema .head { fill: #00796b22 }
.schema path { fill: none; stroke: #e65100; stroke-width: 1.4 } .schema .key { font-weight: 700 } .schema circle { fill: #e65100 }
"""

_TYPES = {"BIGINT": "big int", "INTEGER": "int", "VARCHAR": "text", "FLOAT": "float", "BOOLEAN": "bool"}


@dataclass
class Box:
    """One table in the picture; `x` and `y` are its upper left corner."""

    table: sa.Table
    x: int = 0
    y: int = 0

    @property
    def checks(self) -> list[str]:
        """The names of its conditions, which the database itself keeps."""
        found = [c.name for c in self.table.constraints if isinstance(c, sa.CheckConstraint)]
        return sorted(str(name) for name in found)

    @property
    def height(self) -> int:
        """Its height in the picture."""
        return HEAD + ROW * (len(self.table.columns) + len(self.checks)) + 8

    def row(self, column: str) -> int:
        """The middle of a column's line."""
        return self.y + HEAD + ROW * list(self.table.columns.keys()).index(column) + ROW // 2 + 2


def _depth(table: sa.Table) -> int:
    """Return the number of references from a table to one that refers to none."""
    return max((1 + _depth(key.column.table) for key in table.foreign_keys), default=0)


def _families(tables: Iterable[sa.Table]) -> list[list[sa.Table]]:
    """Tables in groups that references connect, the group with the longest chain of references first."""
    groups: list[set[sa.Table]] = []
    for table in tables:
        linked = {table} | {key.column.table for key in table.foreign_keys}
        for group in [group for group in groups if group & linked]:
            groups.remove(group)
            linked |= group
        groups.append(linked)
    families = [sorted(group, key=lambda t: (_depth(t), -len(t.columns), t.name)) for group in groups]
    return sorted(families, key=lambda family: (-_depth(family[-1]), -sum(len(t.columns) for t in family)))


def layout(metadata: sa.MetaData) -> dict[str, Box]:
    """Give every table its place."""
    bottoms = [8] * COLUMNS
    boxes: dict[str, Box] = {}

    def put(table: sa.Table, column: int) -> None:
        box = boxes[table.name] = Box(table, column * (WIDTH + GAP) + 4, bottoms[column])
        bottoms[column] += box.height + 20

    for family in _families(metadata.sorted_tables):
        if len(family) == 1:
            put(family[0], bottoms.index(min(bottoms)))
            continue
        layers = max(_depth(table) for table in family) + 1
        first = min(range(COLUMNS - layers + 1), key=lambda c: max(bottoms[c : c + layers]))
        for column in range(first, first + layers):  # they begin at one height
            bottoms[column] = max(bottoms[first : first + layers])
        for table in family:
            put(table, first + _depth(table))
    return boxes


def _drawn(box: Box) -> list[str]:
    table, x, y = box.table, box.x, box.y
    out = [
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{box.height}" rx="5"/>',
        f'<rect class="head" x="{x}" y="{y}" width="{WIDTH}" height="{HEAD - 4}" rx="5"/>',
        f'<text class="name" x="{x + 9}" y="{y + 16}">{table.name}</text>',
    ]
    for column in table.columns:
        line = box.row(column.name) + 4
        kind = _TYPES.get(str(column.type), str(column.type).lower()) + ("?" if column.nullable else "")
        mark = ' class="key"' if column.primary_key else ""
        out.append(f'<text{mark} x="{x + 9}" y="{line}">{column.name}</text>')
        out.append(f'<text class="type" x="{x + WIDTH - 9}" y="{line}" text-anchor="end">{kind}</text>')
    for number, check in enumerate(box.checks):
        line = y + HEAD + ROW * (len(table.columns) + number) + ROW // 2 + 6
        out.append(f'<text class="check" x="{x + 9}" y="{line}">✓ {html.escape(check)}</text>')
    return out


def _references(boxes: dict[str, Box]) -> list[str]:
    out, bends = [], 0
    for box in boxes.values():
        for key in sorted(box.table.foreign_keys, key=lambda key: key.parent.name):
            target = boxes[key.column.table.name]
            begin, end = box.row(key.parent.name), target.row(key.column.name)
            bend = target.x + WIDTH + 10 + 9 * (bends % 4)
            bends += 1
            out.append(f'<path d="M{box.x} {begin} H{bend} V{end} H{target.x + WIDTH}"/>')
            out.append(f'<circle cx="{target.x + WIDTH}" cy="{end}" r="3"/>')
    return out


def drawing(metadata: sa.MetaData) -> str:
    """The picture of the tables as SVG, without an empty line, as raw HTML in Markdown must be."""
    boxes = layout(metadata)
    width = COLUMNS * WIDTH + (COLUMNS - 1) * GAP + 8
    height = max(box.y + box.height for box in boxes.values()) + 8
    lines = [
        f'<svg class="schema" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="The tables of the pool\'s database">',
        f"<style>{' '.join(_STYLE.split())}</style>",
        *_references(boxes),
        *(line for box in boxes.values() for line in _drawn(box)),
        "</svg>",
    ]
    return "\n".join(lines)


def descriptions(schema: Any) -> dict[str, str]:
    """The comment above each table in the source of the schema."""
    found = re.findall(r'^((?:# .*\n)+)\w+ = Table\(\s*"(\w+)"', inspect.getsource(schema), re.MULTILINE)
    return {
        name: " ".join(comment.replace("# ", " ").split()) for comment, name in found if "---" not in comment
    }


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the picture, and what the source says of each table, in the place of the mark."""
    if MARK not in markdown:
        return markdown
    from gpukernel.pool.store import schema

    said = descriptions(schema)
    rows = "\n".join(f"| **{name}** | {said[name]} |" for name in sorted(said))
    tables = f"| table | what it holds |\n| --- | --- |\n{rows}"
    return markdown.replace(MARK, f'<div class="wide">\n{drawing(schema.metadata)}\n</div>\n\n{tables}')
