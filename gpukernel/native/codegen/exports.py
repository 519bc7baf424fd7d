"""Generator of the rest of a ``libcuda.so.1``: everything that the newest ``cuda.h`` declares and the library's own sources do not define.

``exports.py INCLUDE NEWEST OUTPUT SOURCE…`` reads which functions the sources, compiled with the headers in `INCLUDE`,
define, and writes one C++ file, to be compiled with the headers in `NEWEST`, with

* forwards: an older symbol with the same parameters as a defined one calls that one; so does a per-thread-stream one,
  with the thread's default stream for none;
* refusals: every other name answers ``CUDA_ERROR_NOT_SUPPORTED`` after ``gpukernel::unsupported("name")``; so does what
  ``cudaGL.h``, ``cudaEGL.h`` and ``cudaVDPAU.h`` declare, of which no parameter is looked at;
* ``gpukernel::proc_address``, the table behind ``cuGetProcAddress``: newest version first;
* ``gpukernel::error_texts``, the names of the error codes, and ``gpukernel::device_attributes``.

The file is only rewritten when it changes, so that nothing is compiled again in vain.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

from cuda_h import Headers, Prototype

_DEFINED = re.compile(r"^CUresult CUDAAPI (cu\w+)\(", re.MULTILINE)
_EXACT = re.compile(r'^extern "C" CUresult (cu\w+)\(', re.MULTILINE)
_ERROR = re.compile(r"^\s*(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)", re.MULTILINE)
# Where the driver API documents an error that says it better.
_REFUSED_WITH = {
    "cuGLGetDevices": "CUDA_ERROR_NO_DEVICE",  # no CUDA device belongs to the OpenGL context
    "cuGLGetDevices_v2": "CUDA_ERROR_NO_DEVICE",
}

_RENAME = re.compile(r"^\s*#define\s+(cu\w+)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu\w+)\)?\s*$", re.MULTILINE)


def defined_symbols(sources: list[Path], include: Path) -> set[str]:
    """Return the symbols that `sources` define, after the renaming that including ``cuda.h`` does to them."""
    renamed = dict(_RENAME.findall((include / "cuda.h").read_text()))
    names = {name for source in sources for name in _DEFINED.findall(source.read_text())}
    exact = {name for source in sources for name in _EXACT.findall(source.read_text())}
    return {renamed.get(name, name) for name in names} | exact


def forward_target(missing: Prototype, defined: dict[str, Prototype]) -> Prototype | None:
    """Return the defined function that can replace `missing`: the same name but for its suffixes, and the same parameters."""
    for candidate in defined.values():
        if candidate.base == missing.base and [p.type for p in candidate.parameters] == [
            p.type for p in missing.parameters
        ]:
            return candidate
    return None


def error_strings(include: Path) -> Callable[[str, int], str]:
    """Return a function that gives an error's description by name and code.

    It is that of CUDA's own runtime library next to `include`, which programs show or compare with; without the library
    it is made from the name.
    """
    library = max((include.parent / "lib").glob("libcudart.so.*"), default=None)
    try:
        describe = ctypes.CDLL(str(library)).cudaGetErrorString if library else None
    except OSError:
        describe = None

    def error_string(name: str, code: int) -> str:
        own = name.removeprefix("CUDA_").removeprefix("ERROR_").lower().replace("_", " ")
        if code == 0:
            return "no error"
        if describe is None:
            return own
        describe.restype = ctypes.c_char_p
        text = describe(code).decode()
        return own if text == "unrecognized error code" else text

    return error_string


def forwarded(missing: Prototype, target: Prototype) -> str:
    """Return the call of `target` that implements `missing`; a name in ``_ptsz`` uses the thread's own default stream."""
    if not missing.name.endswith("_ptsz"):
        return f"{target.name}({target.arguments})"
    per_thread = ("CUstream", "const CUlaunchConfig*")
    return f"{target.name}({', '.join(f'gpukernel::per_thread({p.name})' if p.type in per_thread else p.name for p in target.parameters)})"


def complete(include: Path, newest: Path, sources: list[Path]) -> str:
    """Return the C++ text described above."""
    headers = Headers(newest)
    names = defined_symbols(sources, include)
    if unknown := sorted(names - headers.prototypes.keys()):
        raise SystemExit(f"cuda.h declares no {', '.join(unknown)}")
    defined = {name: headers.prototypes[name] for name in names}
    out = [
        "// Generated from cuda.h and cudaTypedefs.h by codegen/exports.py.",
        "#define __CUDA_API_VERSION_INTERNAL",
        '#include "libcuda/entry_points.h"',
        "",
        'extern "C" {',
    ]
    for prototype in headers.prototypes.values():
        if prototype.name in defined:
            continue
        target = forward_target(prototype, defined)
        body = forwarded(prototype, target) if target else f'gpukernel::unsupported("{prototype.name}")'
        declaration = (
            ", ".join(f"{p.type} {p.name}" for p in target.parameters) if target else prototype.declaration
        )
        out.append(f"CUresult CUDAAPI {prototype.name}({declaration or 'void'}) {{ return {body}; }}")
    for name in headers.graphics:
        error = _REFUSED_WITH.get(name, "CUDA_ERROR_NOT_SUPPORTED")
        out.append(f'CUresult CUDAAPI {name}() {{ return gpukernel::unsupported("{name}"), {error}; }}')
    out += [
        "}",
        "",
        "namespace gpukernel {",
        "const ProcAddress proc_address[] = {",
    ]
    for entry in headers.entries:
        out.append(
            f'    {{"{entry.base}", "{entry.symbol}", {entry.version}, {str(entry.per_thread).lower()}, '
            f"reinterpret_cast<void*>(&{entry.symbol})}},"
        )
    out += ["    {nullptr, nullptr, 0, false, nullptr},", "};", "", "const ErrorText error_texts[] = {"]
    error_string = error_strings(include)
    for name, code in dict.fromkeys(_ERROR.findall((newest / "cuda.h").read_text())):
        out.append(f'    {{{name}, "{name}", "{error_string(name, int(code))}"}},')
    out += ["    {CUDA_SUCCESS, nullptr, nullptr},", "};", ""]
    out += ["const int device_attributes = CU_DEVICE_ATTRIBUTE_MAX;", "}  // namespace gpukernel", ""]
    return "\n".join(out)


def main() -> None:
    """Write the file if its text has changed."""
    include, newest, output, *sources = map(Path, sys.argv[1:])
    text = complete(include, newest, sources)
    if not output.exists() or output.read_text() != text:
        output.write_text(text)


if __name__ == "__main__":
    main()
