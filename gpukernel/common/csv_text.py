"""CSV that a spreadsheet shows as what it is: no text in it becomes a formula, whatever people and courses are called."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

__all__ = ["csv_text", "guarded"]

# A spreadsheet takes a cell that begins so for a formula, the wide signs of East Asian keyboards included; and one whose language
# separates columns by semicolons begins a cell behind each, whatever stands in quotes.
_BEGINS_FORMULA = re.compile(r"(?:^|(?<=[;,\t\r\n]))(?=\s*[=+\-@＝＋－＠|])|^(?=[\t\r\n])")


def guarded(text: str) -> str:
    """Return a text with an apostrophe before everything that a spreadsheet would take for the beginning of a formula."""
    return _BEGINS_FORMULA.sub("'", text)


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]], end: str = "\n") -> str:
    """Return a table as CSV; texts are `guarded`, numbers stay numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=end)
    for row in (header, *rows):
        writer.writerow([guarded(cell) if isinstance(cell, str) else cell for cell in row])
    return file.getvalue()
