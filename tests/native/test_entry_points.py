"""cuGetProcAddress, as programs built with any CUDA from 11.8 to 13 ask it: what comes back has the ABI they expect.

What a program expects is what ``cudaTypedefs.h`` of its CUDA says.  ``entry_points.txt`` has these facts for every
function whose parameters, or whose place, changed with time: its name, the CUDA version that brought this form, and
the types of its parameters, aliases resolved.  For all others the header of the installed wheel is asked.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from gpukernel import native

CODEGEN = Path(__file__).parents[2] / "gpukernel" / "native" / "codegen"
FACTS = Path(__file__).with_name("entry_points.txt")

VERSIONS = (11080, *range(12000, 12100, 10), 13000)
DRIVER = 12090  # what the driver calls itself: newer forms it cannot have
PER_THREAD = 2
_TYPEDEF = re.compile(r"typedef CUresult \(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(?:_(ptds|ptsz))?\)\(([^;]*)\);")

Key = tuple[str, bool]  # a name, and whether stream 0 is the calling thread's own
Forms = dict[Key, dict[int, tuple[str, ...]]]


class _Symbol(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


class _Headers:
    """The installed ``cuda.h`` and ``cudaTypedefs.h``, read as the build reads them."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("nvidia.cuda_runtime")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        sys.path.insert(0, str(CODEGEN))
        try:
            import cuda_h
        finally:
            sys.path.remove(str(CODEGEN))
        self._parameter = cuda_h._parameter
        self.headers = cuda_h.Headers(Path(spec.submodule_search_locations[0], "include"))
        internal = self.headers._preprocessed("-D__CUDA_API_VERSION_INTERNAL")
        text = re.sub(r"\s+", " ", internal)
        self._aliases = {
            name: re.sub(r"^(struct|enum) ", "", what.strip())
            for what, name in re.findall(r"typedef ([\w ]+?\*?) (\w+);", text)
        }

    def resolved(self, type_: str) -> str:
        """`type_` without aliases and with the plain types in one spelling."""

        def plain(match: re.Match[str]) -> str:
            word, seen = match[0], set[str]()
            while word in self._aliases and word not in seen:
                seen.add(word)
                word = self._aliases[word]
            return word

        text = re.sub(r"\b[A-Za-z_]\w*\b", plain, type_)
        text = re.sub(r"\bunsigned\b(?! (int|long|char|short))", "unsigned int", text)
        text = re.sub(r"\blong unsigned int\b|\bunsigned long int\b", "unsigned long", text)
        return re.sub(r" ?\*", "*", text).replace("long long unsigned int", "unsigned long long")

    def of_symbol(self, name: str) -> tuple[str, ...]:
        """The parameters of an exported function."""
        return tuple(self.resolved(p.type) for p in self.headers.prototypes[name].parameters)

    def typedefs(self, include: Path) -> Forms:
        """Every form of every function that ``cudaTypedefs.h`` in `include` knows."""
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (include / "cudaTypedefs.h").read_text(), flags=re.DOTALL)
        found: Forms = {}
        for base, version, stream, arguments in _TYPEDEF.findall(text):
            pieces = [] if arguments.strip() in ("", "void") else arguments.split(",")
            types = tuple(self.resolved(self._parameter(p, i).type) for i, p in enumerate(pieces))
            found.setdefault((base, bool(stream)), {})[int(version)] = types
        return found


@cache
def _headers() -> _Headers:
    return _Headers()


def facts() -> Forms:
    """The committed table."""
    found: Forms = {}
    for line in FACTS.read_text().splitlines():
        if line and not line.startswith("#"):
            base, version, stream, types = line.split(" ", 3)
            form = tuple(each for each in types.split(", ") if each != "-")
            found.setdefault((base, stream == "thread"), {})[int(version)] = form
    return found


def _expected() -> Forms:
    installed = _headers().typedefs(_headers().headers.include)
    return {**installed, **facts()}


@pytest.mark.parametrize("library", ["shim", "simgpu"])
def test_every_function_has_the_parameters_of_the_cuda_version_that_is_asked_for(library: str) -> None:
    path = native.simgpu_library() if library == "simgpu" else native.shim_dir() / "libcuda.so.1"
    cuda = ctypes.CDLL(str(path))
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Symbol)]
    wrong: list[str] = []
    asked = 0
    for (base, per_thread), forms in sorted(_expected().items()):
        for version in VERSIONS:
            known = [each for each in forms if each <= min(version, DRIVER)]
            found, status, symbol = ctypes.c_void_p(), ctypes.c_int(-1), _Symbol()
            result = cuda.cuGetProcAddress_v2(
                base.encode(),
                ctypes.byref(found),
                version,
                ctypes.c_uint64(PER_THREAD if per_thread else 0),
                ctypes.byref(status),
            )
            assert result == 0
            asked += 1
            if not known:
                if found.value:
                    wrong.append(f"{base} {version}: found, though it came later")
                continue
            if not found.value:
                wrong.append(f"{base} {version}: not found")
                continue
            assert dladdr(found, ctypes.byref(symbol))
            name = symbol.name.decode()
            want, have = forms[max(known)], _headers().of_symbol(name)
            if have != want or name.endswith(("_ptds", "_ptsz")) != per_thread:
                wrong.append(f"{base} {version}: {name}{have} where {want} was expected")
    assert not wrong, "\n".join(wrong)
    assert asked > 6000


def test_the_table_agrees_with_the_installed_header() -> None:
    installed = _headers().typedefs(_headers().headers.include)
    for key, forms in facts().items():
        for version, types in forms.items():
            if version in installed.get(key, {}):
                assert installed[key][version] == types, (key, version)


def test_the_oldest_way_to_ask_finds_the_same_functions() -> None:
    cuda = ctypes.CDLL(str(native.simgpu_library()))
    for name in (b"cuMemAlloc", b"cuGraphExecUpdate", b"cuCtxCreate", b"cuGetProcAddress"):
        for version in VERSIONS:
            old, new = ctypes.c_void_p(), ctypes.c_void_p()
            assert cuda.cuGetProcAddress(name, ctypes.byref(old), version, ctypes.c_uint64(0)) == 0
            assert cuda.cuGetProcAddress_v2(name, ctypes.byref(new), version, ctypes.c_uint64(0), None) == 0
            assert old.value == new.value
    nothing = ctypes.c_void_p()
    assert cuda.cuGetProcAddress(b"cuNoSuchThing", ctypes.byref(nothing), 12000, ctypes.c_uint64(0)) == 500
