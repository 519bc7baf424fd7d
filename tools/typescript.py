"""``python -m tools.typescript``: write the front end's interfaces from `gpukernel.jupyter.kernel_status`.

``make labextension`` runs it.  The result, ``labextension/src/kernel_status.ts``, is committed, and a test compares it with its
source.  A JSON field keeps its Python name; an interface has its class's name behind an I, as JupyterLab's own have.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from gpukernel.jupyter.kernel_status import (
    EVENT_FIELDS,
    DeviceStatus,
    KernelStatus,
    LeaseStatus,
    OtherLease,
    ServerStatus,
)

__all__ = ["TARGET", "interface", "text", "typescript_type"]

TARGET = Path(__file__).parents[1] / "labextension" / "src" / "kernel_status.ts"
RECORDS = (DeviceStatus, LeaseStatus, KernelStatus, OtherLease, ServerStatus)
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def typescript_type(kind: Any) -> str:
    """Return the TypeScript type of JSON that a field of type `kind` becomes.

    Raises
    ------
    TypeError
        A field of this type has no such JSON.
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind):
        return f"I{kind.__name__}"  # type: ignore[union-attr]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(f"'{value}'" for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(typescript_type(one) for one in arguments)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return f"{typescript_type(arguments[0])}[]"
    raise TypeError(f"{kind} has no type in TypeScript")


def _described(record: type) -> tuple[str, dict[str, str]]:
    """Return the head of a record's docstring and the text of each of its attributes, on one line."""
    head, _, attributes = inspect.cleandoc(record.__doc__ or "").partition("\nAttributes\n----------\n")
    found: dict[str, str] = {}
    for names, words in re.findall(r"^(\w[\w, ]*)\n((?: +.*\n?)+)", attributes, re.MULTILINE):
        found[names.split(",")[0]] = " ".join(words.split())
    return " ".join(head.split()), found


def interface(record: type) -> str:
    """Return the interface of one dataclass; a base class is extended, not repeated."""
    head, described = _described(record)
    bases = [f"I{base.__name__}" for base in record.__bases__ if is_dataclass(base)]
    lines = [f"/** {_quoted(head)} */"]
    lines.append(f"export interface I{record.__name__}{' extends ' + ', '.join(bases) if bases else ''} {{")
    hints = typing.get_type_hints(record)
    for name in inspect.get_annotations(record):
        if name in described:
            lines.append(f"  /** {_quoted(described[name])} */")
        lines.append(f"  {name}: {typescript_type(hints[name])};")
    return "\n".join([*lines, "}"])


def _quoted(words: str) -> str:
    return words.replace("``", "`").replace("*/", "* /")


def text() -> str:
    """Return the whole file."""
    change = " | ".join(f"'{name}'" for name in EVENT_FIELDS)
    return "\n\n".join(
        [
            "// Written by tools/typescript.py from gpukernel/jupyter/kernel_status.py: change that, and run `make labextension`.",
            *(interface(record) for record in RECORDS),
            "/** The body of an event that the slice of a kernel, or its place in the queue, has changed. */\n"
            f"export type IKernelChange = Pick<IKernelStatus, {change}>;\n",
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
