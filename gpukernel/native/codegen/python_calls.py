"""The custom calls as data for Python: ``python_calls.py OUTPUT`` writes ``calls.json`` from ``calls.txt`` and ``protocol.h``.

It holds magic and version of the protocol, and each custom call's number with the fields of its answer.  Fields are
``[NAME, TYPE]``; the element of a list ``TYPE[]`` may be one of the records.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from calls import MessageField, read_table

PROTOCOL = Path(__file__).parent.with_name("wire") / "protocol.h"


def _constant(name: str) -> int:
    """Return the number that ``protocol.h`` gives `name`."""
    found = re.search(rf"^constexpr \w+ {name} = (\w+);", PROTOCOL.read_text(), re.M)
    if found is None:
        raise SystemExit(f"protocol.h has no constant {name}.")
    return int(found[1], 0)


def _fields(fields: tuple[MessageField, ...]) -> list[list[str]]:
    return [[field.name, field.type + ("[]" if field.repeated else "")] for field in fields]


def main() -> None:
    """Write the file, where it would be another one than before."""
    table = read_table()
    content = {
        "magic": _constant("MAGIC"),
        "version": _constant("VERSION"),
        "records": {name: _fields(fields) for name, fields in table.records.items()},
        "calls": {
            call.name: {"number": call.number, "answer": _fields(call.answer)} for call in table.custom
        },
    }
    path, text = Path(sys.argv[1]), json.dumps(content, indent=1) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    main()
