"""Generator of the rest of direct mode's ``libcuda.so.1``: every name that its sources do not define goes to the real driver.

``pass_through.py NEWEST OUTPUT_DIRECTORY MORE_NAMES SOURCE…`` writes

* ``stubs.cpp``: for each name of ``cuda.h``, and of `MORE_NAMES` (headers that the build does not have), that no source
  defines, a function of one instruction: a jump through a table, whatever the arguments are;
* ``intercepted.inc``: the functions that the sources define, each ``GPUKERNEL_INTERCEPTED(symbol)``;
* ``revisions.inc``: every version of those that the headers know, for `cuGetProcAddress`:
  ``GPUKERNEL_REVISION(base, version, per_thread, symbol, ours)``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cuda_h import Headers

_DEFINED = re.compile(r'^extern "C" CUresult (cu\w+)\(', re.MULTILINE)


def stubs(names: list[str]) -> str:
    """Return the C++ text of one jump for each of `names`, and of the table."""
    out = [
        "// Generated from cuda.h by codegen/pass_through.py.",
        '#include "real.h"',
        "namespace gpukernel::direct {",
        "const char* const passed_on[] = {",
        *(f'    "{name}",' for name in names),
        "    nullptr};",
        "}  // namespace gpukernel::direct",
        "using gpukernel::direct::no_driver;",
        'extern "C" {',
        f"void* gpukernel_direct_table[{len(names)}] = {{",
        *("    reinterpret_cast<void*>(&no_driver)," for _ in names),
        "};",
        "}",
        'asm(R"(',
        ".text",
        ".hidden gpukernel_direct_table",
    ]
    for number, name in enumerate(names):
        out += [
            f".globl {name}",
            f".type {name}, @function",
            ".p2align 4",
            f"{name}:",
            "    endbr64",
            f"    jmp *gpukernel_direct_table+{8 * number}(%rip)",
            f".size {name}, .-{name}",
        ]
    return "\n".join([*out, ')");', ""])


def main() -> None:
    """Write the files whose text has changed."""
    include, output, more, *sources = map(Path, sys.argv[1:])
    headers = Headers(include)
    defined = {name for source in sources for name in _DEFINED.findall(source.read_text())}
    if unknown := sorted(defined - headers.prototypes.keys()):
        raise SystemExit(f"cuda.h declares no {', '.join(unknown)}")
    extra = [line for line in more.read_text().split("\n") if line and not line.startswith("#")]
    passed_on = sorted({*headers.prototypes, *extra} - defined)
    bases = {headers.prototypes[name].base for name in defined}
    revisions = [
        f'GPUKERNEL_REVISION("{e.base}", {e.version}, {str(e.per_thread).lower()}, "{e.symbol}", '
        + (f"reinterpret_cast<void*>(&{e.symbol})" if e.symbol in defined else "nullptr")
        + ")"
        for e in headers.entries
        if e.base in bases
    ]
    texts = {
        "stubs.cpp": stubs(passed_on),
        "intercepted.inc": "".join(f"GPUKERNEL_INTERCEPTED({name})\n" for name in sorted(defined)),
        "revisions.inc": "\n".join([*revisions, ""]),
    }
    for name, text in texts.items():
        path = output / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
