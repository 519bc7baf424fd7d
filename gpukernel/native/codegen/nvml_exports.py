"""Generator of the functions that a ``libnvidia-ml.so.1`` must have besides those written by hand.

``nvml_exports.py NVML_H OUTPUT SOURCE…`` finds what the sources define and generates, for every other name of
``nvml.h``, a function that returns ``NVML_ERROR_NOT_SUPPORTED``.  Tools conclude from the names that exist how
new the library is and which layout its structures have, so all names of one header must be there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_DECLARED = re.compile(r"^nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(", re.MULTILINE)
_DEFINED = re.compile(r"^nvmlReturn_t (nvml\w+)\(", re.MULTILINE)


def complete(header: str, sources: list[str]) -> str:
    """Return the generated C++ text."""
    defined = {name for source in sources for name in _DEFINED.findall(source)}
    missing = [name for name in dict.fromkeys(_DECLARED.findall(header)) if name not in defined]
    # Without nvml.h and its prototypes: arguments that nobody reads need no names, and no types.
    lines = ["// Generated from nvml.h by codegen/nvml_exports.py.", 'extern "C" {']
    lines += [f"int {name}() {{ return 3; }}  // NVML_ERROR_NOT_SUPPORTED" for name in missing]
    return "\n".join([*lines, "}", ""])


def main() -> None:
    """Write the file if its text has changed."""
    header, output, *sources = map(Path, sys.argv[1:])
    text = complete(header.read_text(), [source.read_text() for source in sources])
    if not output.exists() or output.read_text() != text:
        output.write_text(text)


if __name__ == "__main__":
    main()
