"""The public headers ``cuda.h``, ``cudaGL.h``, ``cudaEGL.h``, ``cudaVDPAU.h`` and their typedefs as data.

The compiler's preprocessor reads them: with and without per-thread default streams and the internal view of
old versions, so that every name that a real ``libcuda.so.1`` exports from ``cuda.h`` is found (``cuMemAlloc``,
``cuMemAlloc_v2``, ``cuMemcpyHtoD_v2_ptds`` …).  ``cudaTypedefs.h`` says in which CUDA version each version of a
function appeared: ``PFN_cuMemAlloc_v3020`` is the form of CUDA 3.2.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Entry", "Headers", "Parameter", "Prototype"]

_PROTOTYPE = re.compile(r"CUresult\s+(cu\w+)\s*\(([^;{}]*)\)\s*;")
_TYPEDEF = re.compile(r"typedef CUresult ?\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(?:_(ptds|ptsz))?\)")
_SUFFIX = re.compile(r"^(?P<base>cu\w+?)(?:_v(?P<revision>\d+))?(?:_(?P<stream>ptds|ptsz))?$")

# Beside cuda.h; what they include of OpenGL and EGL is no part of CUDA, and only names types of parameters.
GRAPHICS = ("cudaGL", "cudaEGL", "cudaVDPAU")
# Since CUDA 11.4 cuGetProcAddress means another function by a name than its prototype's: NVIDIA's bindings for Python
# ask for it in this way, and cuda.h of CUDA 12 renames it so.
_RENAMED = {("cuGraphInstantiate", 11040): "cuGraphInstantiateWithFlags"}
_FOREIGN = re.compile(r'#include\s+["<](?:GL|EGL)/[^\n]*')


@dataclass(frozen=True)
class Parameter:
    """One parameter; `type` is in C, with arrays decayed to pointers."""

    type: str
    name: str


@dataclass(frozen=True)
class Prototype:
    """One exported function."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def base(self) -> str:
        """Return the name without version and stream suffix: ``cuMemAlloc``."""
        return str(_parts(self.name)["base"])

    @property
    def revision(self) -> int:
        """Return the version: 1 for ``cuMemAlloc``, 2 for ``cuMemAlloc_v2``."""
        return int(_parts(self.name)["revision"] or 1)

    @property
    def per_thread(self) -> bool:
        """Return whether stream 0 means the calling thread's own stream."""
        return bool(_parts(self.name)["stream"])

    @property
    def declaration(self) -> str:
        """Return the parameter list in C."""
        return ", ".join(f"{p.type} {p.name}" for p in self.parameters) or "void"

    @property
    def arguments(self) -> str:
        """Return the parameters' names, as the arguments of a call."""
        return ", ".join(p.name for p in self.parameters)


@dataclass(frozen=True)
class Entry:
    """One answer of `cuGetProcAddress`: `symbol`, for `base` from CUDA `version` (12010 is 12.1) on."""

    base: str
    version: int
    per_thread: bool
    symbol: str


def _parts(name: str) -> dict[str, str | None]:
    match = _SUFFIX.match(name)
    assert match is not None
    return match.groupdict()


def _parameter(text: str, index: int) -> Parameter:
    text = " ".join(text.replace("*", " * ").split())
    array = re.search(r"\[\d*\]$", text)
    if array:
        text = text[: array.start()].strip()
    match = re.match(r"^(.*?[\s*])(\w+)$", text)
    keywords = {"int", "char", "unsigned", "long", "void", "size_t"}
    if match and match[2] not in keywords and match[1].strip() != "const":
        type_, name = match[1].strip(), match[2]
    else:
        type_, name = text, f"argument{index}"
    return Parameter(type_.replace(" *", "*") + ("*" if array else ""), name)


class Headers:
    """The functions of the headers in `include`, read with the compiler `compiler`."""

    def __init__(self, include: Path, compiler: str = "c++") -> None:
        self.include = include
        self.compiler = compiler

    def _preprocessed(self, *definitions: str, text: str = "") -> str:
        command = [self.compiler, "-E", "-P", "-x", "c++", f"-I{self.include}", *definitions]
        return subprocess.run(
            [*command, "-include", str(Path(__file__).parent / "cuda_driver.h"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    @cached_property
    def prototypes(self) -> dict[str, Prototype]:
        """The exported functions by symbol."""
        return self._declared("")

    @cached_property
    def graphics(self) -> dict[str, Prototype]:
        """The functions of the headers for OpenGL, EGL and VDPAU by symbol; only their names are meant to be used."""
        found: dict[str, Prototype] = {}
        for header in GRAPHICS:
            text = _FOREIGN.sub("", (self.include / f"{header}.h").read_text())
            found |= self._declared(text)
        return {name: found[name] for name in sorted(found.keys() - self.prototypes.keys())}

    def _declared(self, text: str) -> dict[str, Prototype]:
        found: dict[str, Prototype] = {}
        per_thread, internal = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "-D__CUDA_API_VERSION_INTERNAL"
        for definitions in ((), (per_thread,), (internal,), (internal, per_thread)):
            for name, arguments in _PROTOTYPE.findall(self._preprocessed(*definitions, text=text)):
                pieces = [] if arguments.strip() in ("", "void") else arguments.split(",")
                parameters = tuple(_parameter(piece, index) for index, piece in enumerate(pieces))
                found.setdefault(name, Prototype(name, parameters))
        return dict(sorted(found.items()))

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The table of `cuGetProcAddress`, newest version of a name first."""
        versions: dict[tuple[str, bool], set[int]] = {}
        for header in ("cuda", "cudaProfiler", *GRAPHICS):
            typedefs = (self.include / f"{header}Typedefs.h").read_text()
            for base, version, stream in _TYPEDEF.findall(typedefs):
                versions.setdefault((base, bool(stream)), set()).add(int(version))
        symbols: dict[tuple[str, bool], dict[int, str]] = {}
        for prototype in (self.prototypes | self.graphics).values():
            symbols.setdefault((prototype.base, prototype.per_thread), {})[prototype.revision] = (
                prototype.name
            )
        table: list[Entry] = []
        for (base, per_thread), revisions in symbols.items():
            ordered = [revisions[revision] for revision in sorted(revisions)]
            known = sorted(versions.get((base, per_thread), {2000}))
            known = known[-len(ordered) :]
            ordered = ordered[-len(known) :]
            table += [Entry(base, v, per_thread, s) for v, s in zip(known, ordered, strict=True)]
        table += [Entry(base, version, False, symbol) for (base, version), symbol in _RENAMED.items()]
        return tuple(sorted(table, key=lambda e: (e.base, e.per_thread, -e.version)))
