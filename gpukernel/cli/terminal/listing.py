"""Listings: one line a row, as wide as the terminal at most.

A listing that is too wide for the terminal first loses the columns that matter least, then long texts are cut.  In a pipe or a file
it has every column in full, on one line a row, two spaces at least between cells, and ``-`` for a cell that is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gpukernel.cli.terminal.charset import is_ascii, spelled
from gpukernel.common.logs import one_line

__all__ = ["Column", "Listing"]

Row = TypeVar("Row")

GAP = 2


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a listing.

    Attributes
    ----------
    title
        Its head.
    cell
        The text of a row in it.
    drop
        Columns with a higher number go first where the terminal is too narrow; one of 0 stays.
    least
        To how many cells its texts may be cut; 0: they stay whole.
    right
        Whether it is aligned right.
    wide
        Whether it is shown only where everything is asked for.
    once
        Whether it is left empty in rows of the same thing as the row above; at a terminal only.
    """

    title: str
    cell: Callable[[Row], str]
    drop: int = 0
    least: int = 0
    right: bool = False
    wide: bool = False
    once: bool = False


@dataclass(frozen=True)
class Listing(Generic[Row]):
    """A table of rows.

    Attributes
    ----------
    columns
        From left to right.
    rows
        From top to bottom.
    name
        The name of the thing that a row is about, as other commands take it.
    dim
        Whether a row is shown faintly: a device that is away, for example.
    """

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    name: Callable[[Row], str]
    dim: Callable[[Row], bool] = lambda _: False

    def names(self) -> list[str]:
        """Return the names of the rows' things, each once."""
        return list(dict.fromkeys(self.name(row) for row in self.rows))

    def lines(self, width: int | None, *, wide: bool = False) -> list[str]:
        """Return the head and the rows as lines.

        Parameters
        ----------
        width
            Of the terminal in cells; None: for a pipe, without a bound.
        wide
            Every column in full, whatever the width.
        """
        columns = [column for column in self.columns if wide or not column.wide]
        cells = {id(column): self._cells(column, at_terminal=width is not None) for column in columns}
        if width is not None and not wide:
            columns = [c for c in columns if any(cells[id(c)])]
            columns = _fitting(columns, cells, width)
            sizes = _sizes(columns, cells, width)
        else:
            sizes = [_widest(c, cells[id(c)]) for c in columns]
        lines = [_line([c.title for c in columns], columns, sizes)]
        for number in range(len(self.rows)):
            texts = [cells[id(c)][number] for c in columns]
            lines.append(_line([t if width is not None else t or "-" for t in texts], columns, sizes))
        return lines

    def text(self, width: int | None, *, wide: bool = False) -> Text:
        """Return the lines with their styles, without a line's end behind the last."""
        head, *lines = self.lines(width, wide=wide)
        parts = [Text(head, "bold")]
        parts += [
            Text(line, "dim" if self.dim(row) else "") for line, row in zip(lines, self.rows, strict=True)
        ]
        return Text("\n", no_wrap=True, overflow="ignore" if wide or width is None else "crop").join(parts)

    def _cells(self, column: Column[Row], *, at_terminal: bool) -> list[str]:
        # Others' names and reasons cannot command the terminal.
        texts = [one_line(column.cell(row)) for row in self.rows]
        if is_ascii():  # before anything is measured
            texts = [spelled(text) for text in texts]
        if column.once and at_terminal:
            names = [self.name(row) for row in self.rows]
            same = [False, *(before == this for before, this in pairwise(names))]
            texts = ["" if repeated else text for text, repeated in zip(texts, same, strict=False)]
        return texts


Cells = dict[int, list[str]]


def _widest(column: Column[Row], texts: Sequence[str]) -> int:
    return max(cell_len(column.title), *(cell_len(text) for text in texts), 1)


def _least(column: Column[Row], texts: Sequence[str]) -> int:
    widest = _widest(column, texts)
    return min(widest, max(column.least, cell_len(column.title))) if column.least else widest


def _fitting(columns: Sequence[Column[Row]], cells: Cells, width: int) -> list[Column[Row]]:
    """Return the columns that are left when those that matter least are dropped until the others fit."""
    left = list(columns)
    while sum(_least(c, cells[id(c)]) for c in left) + GAP * (len(left) - 1) > width:
        droppable = [column for column in left if column.drop]
        if not droppable:
            break
        left.remove(max(droppable, key=lambda column: column.drop))
    return left


def _sizes(columns: Sequence[Column[Row]], cells: Cells, width: int) -> list[int]:
    """Return each column's width: its widest text, less what the longest of those that may be cut give up."""
    sizes = [_widest(c, cells[id(c)]) for c in columns]
    least = [_least(c, cells[id(c)]) for c in columns]
    over = sum(sizes) + GAP * (len(sizes) - 1) - width
    while over > 0:
        at = max(range(len(sizes)), key=lambda n: sizes[n] - least[n])
        if sizes[at] <= least[at]:
            break  # narrower than what cannot be cut; the terminal cuts the end of the line
        sizes[at] -= 1
        over -= 1
    return sizes


def _line(texts: Sequence[str], columns: Sequence[Column[Row]], sizes: Sequence[int]) -> str:
    cells = []
    for text, column, size in zip(texts, columns, sizes, strict=True):
        cut = _cut(text, size)
        space = " " * (size - cell_len(cut))
        cells.append(space + cut if column.right else cut + space)
    return (" " * GAP).join(cells).rstrip()


def _cut(text: str, size: int) -> str:
    if cell_len(text) <= size:
        return text
    sign = "~" if is_ascii() else "…"
    return set_cell_size(text, size - 1).rstrip() + sign
