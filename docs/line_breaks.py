"""MkDocs hook: lets long names in tables break after a slash, a dot or an underscore, so that a narrow page shows every column."""

from __future__ import annotations

import re
from typing import Any

LONG = 16
"""Characters that fit into a column of the narrowest page; shorter names stay whole."""
_PARTS = re.compile(r"([/._]+)(?=[^/._])")


def _breakable(code: re.Match[str]) -> str:
    return code[0] if len(code[1]) <= LONG else "<code>" + _PARTS.sub(r"\1<wbr>", code[1]) + "</code>"


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with possible line breaks in the names that stand in cells of tables."""
    return re.sub(
        r"<td\b.*?</td>",
        lambda cell: re.sub(r"<code>([^<]*)</code>", _breakable, cell[0]),
        html,
        flags=re.DOTALL,
    )
