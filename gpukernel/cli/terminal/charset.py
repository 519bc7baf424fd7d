"""The character set and the width of standard output.

Guarantees
----------
* In a C locale, and on a stream that cannot encode them, the signs that our sentences and tables use are spelled in ASCII (``"``,
  ``x``, ``#``), and no command fails because of a character.
* What is written for programs (`write_data`) is UTF-8 everywhere: nothing in it is spelled anew.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys

from rich.console import Console

__all__ = [
    "is_ascii",
    "is_terminal",
    "make_console",
    "prepare_streams",
    "spelled",
    "terminal_width",
    "write_data",
]

_SPELLED = {
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("–—─━╸╺", "-"),
    **dict.fromkeys("│┃", "|"),
    "…": "...",
    "×": "x",
    "·": "*",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "█": "#",
    "░": ".",
}
_HANDLER = "gpukernel.spelled"


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Return what stands in for characters that a stream cannot encode; `codecs.register_error` says how it is called."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return spelled(error.object[error.start : error.end]), error.end


def spelled(text: str) -> str:
    """Return `text` in ASCII: signs as near ones, other characters by their number."""
    return "".join(
        _SPELLED.get(c) or c.encode("ascii", "backslashreplace").decode() if not c.isascii() else c
        for c in text
    )


def _is_c_locale() -> bool:
    """Return whether the user chose the C locale; Python itself would write UTF-8 there."""
    if os.environ.get("PYTHONUTF8") == "1" or os.environ.get("PYTHONIOENCODING"):
        return False
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if value := os.environ.get(name):
            return value in ("C", "POSIX")
    return False


def prepare_streams() -> None:
    """Make standard output and error write every text, whatever their character set."""
    codecs.register_error(_HANDLER, _spell)
    ascii_only = _is_c_locale()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a stream of somebody else's may have none
        if reconfigure is not None:
            reconfigure(encoding="ascii" if ascii_only else stream.encoding, errors=_HANDLER)


def is_ascii() -> bool:
    """Return whether standard output takes ASCII only, as far as its encoding says."""
    return not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def is_terminal() -> bool:
    """Return whether a person looks at standard output."""
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """Return how many cells a line has on the terminal; None where output goes to a file or another program."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def make_console() -> Console:
    """Return a console as wide as the terminal; elsewhere no line is broken."""
    return Console(width=terminal_width() or 100_000, highlight=False)


def write_data(text: str) -> None:
    """Write text for programs to standard output, in UTF-8."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8":
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    buffer.write(text.encode())
    buffer.flush()
