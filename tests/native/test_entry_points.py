"""cuGetProcAddress, as programs built with any CUDA from 11.8 to 13 ask it: what comes back has the ABI they expect.

What a program expects is what ``cudaTypedefs.h`` of its CUDA says.  ``entry_points.txt`` has these facts for every
function whose parameters, or whose place, changed with time: its name, the CUDA version that brought this form, and
the types of its parameters, aliases resolved.  For all others the headers that the build copied are asked, as far as
this is a checkout that was built.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from gpukernel import native

CODEGEN = Path(__file__).parents[2] / "gpukernel" / "native" / "codegen"
FACTS = Path(__file__).with_name("entry_points.txt")

VERSIONS = (11080, *range(12000, 12100, 10), *range(13000, 13060, 10))
NEWEST = VERSIONS[-1]  # what the library knows
PER_THREAD = 2
BUILT = sorted(CODEGEN.parents[2].glob("build/*/cuda/newest/cuda.h"), key=lambda path: path.stat().st_mtime)
INCLUDE = BUILT[-1].parent if BUILT else Path()
pytestmark = pytest.mark.skipif(not BUILT, reason="no build of this checkout has copied CUDA's headers")
_TYPEDEF = re.compile(r"typedef CUresult ?\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(?:_(ptds|ptsz))?\)\(([^;]*)\);")

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
        sys.path.insert(0, str(CODEGEN))
        try:
            import cuda_h
        finally:
            sys.path.remove(str(CODEGEN))
        self._parameter = cuda_h._parameter
        self.headers = cuda_h.Headers(INCLUDE)
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
        text = re.sub(r" ?\*", "*", text).replace("long long unsigned int", "unsigned long long")
        return text if "*" in text else text.removeprefix("const ")  # of a copy: not the caller's

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
            known = [each for each in forms if each <= version]
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


LIBRARIES = pytest.mark.parametrize("library", ["shim", "simgpu"])


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(
        str(native.simgpu_library() if name == "simgpu" else native.shim_dir() / "libcuda.so.1")
    )


def _asked(cuda: ctypes.CDLL, name: str, version: int, flags: int = 0) -> tuple[int, int | None, int]:
    """The result, the address and the status of one question."""
    found, status = ctypes.c_void_p(1), ctypes.c_int(-1)
    result = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    return result, found.value, status.value


def _address(cuda: ctypes.CDLL, symbol: str) -> int | None:
    return ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value


# Forms that cuda.h declares and no #define of it selects, with the CUDA version that brought each: cudaTypedefs.h dates
# them, so that cuGetProcAddress answers with them where a program asks for that version.
NOT_SELECTED = {
    "cuCtxGetDevice": 13000,
    "cuCtxSynchronize": 13000,
    "cuGraphAddNode": 13040,
    "cuGraphNodeSetParams": 13040,
    "cuLaunchHostFunc": 13010,
    "cuMulticastBindAddr": 13010,
    "cuMulticastBindMem": 13010,
    "cuStreamGetCtx": 12050,
}


@LIBRARIES
@pytest.mark.parametrize("per_thread", [False, True], ids=["legacy", "per-thread"])
def test_the_newest_version_is_the_symbol_that_the_header_selects(library: str, per_thread: bool) -> None:
    cuda = _library(library)
    headers = _headers().headers
    stream = ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",) if per_thread else ()
    bases = sorted({prototype.base for prototype in headers.prototypes.values()} - {"cuGetProcAddress"})
    marked = "".join(f'"{base}" {base}\n' for base in bases)
    selected = re.findall(r'^"(cu\w+)" (cu\w+)$', headers._preprocessed(*stream, text=marked), re.MULTILINE)
    assert len(selected) == len(bases) > 400
    wrong = []
    for base, symbol in selected:
        before = NOT_SELECTED.get(base, NEWEST + 10) - 10
        result, address, status = _asked(cuda, base, before, PER_THREAD if per_thread else 0)
        if (result, address, status) != (0, _address(cuda, symbol), 0):
            wrong.append((base, symbol, result, address, status))
        if base in NOT_SELECTED:
            newer = [name for name in headers.prototypes if name.startswith(f"{base}_v")]
            newer = [name for name in newer if name.endswith("_ptsz") == symbol.endswith("_ptsz")]
            if _asked(cuda, base, NEWEST, PER_THREAD if per_thread else 0)[1] != _address(cuda, max(newer)):
                wrong.append((base, newer))
    assert wrong == []


@LIBRARIES
def test_every_name_of_the_headers_is_exported(library: str) -> None:
    cuda = _library(library)
    headers = _headers().headers
    names = {*headers.prototypes, *headers.graphics}
    assert [name for name in sorted(names) if not hasattr(cuda, name)] == []
    assert {
        "cuCtxSynchronize_v2",
        "cuGLGetDevices_v2",
        "cuEGLStreamProducerConnect",
        "cuVDPAUGetDevice",
    } <= names
    assert len(names) > 700


@LIBRARIES
def test_names_as_they_are_exported_are_found_as_well(library: str) -> None:
    cuda = _library(library)
    for name, version in (
        ("cuStreamGetCtx_v2", 12050),
        ("cuMemAlloc_v2", 3020),
        ("cuCtxSynchronize_v2", 13000),
    ):
        assert _asked(cuda, name, version) == (0, _address(cuda, name), 0)
        assert _asked(cuda, name, version - 10)[1:] == (None, 2)
    assert _asked(cuda, "cuStreamGetCtx_v2", NEWEST, PER_THREAD)[1] == _address(
        cuda, "cuStreamGetCtx_v2_ptsz"
    )
    assert _asked(cuda, "cuMemAlloc_v", NEWEST)[1:] == (None, 1)


@LIBRARIES
def test_what_is_not_found_is_null_and_what_is_too_new_is_an_error(library: str) -> None:
    cuda = _library(library)
    assert _asked(cuda, "cuNoSuchThing", NEWEST) == (0, None, 1)
    assert _asked(cuda, "cuMemAlloc", NEWEST + 10)[:2] == (1, None)
    nothing = ctypes.c_void_p(1)
    assert (
        cuda.cuGetProcAddress_v2(b"cuNoSuchThing", ctypes.byref(nothing), 12000, ctypes.c_uint64(0), None)
        == 0
    )
    assert nothing.value is None


@LIBRARIES
def test_what_belongs_to_graphics_refuses(library: str) -> None:
    code = """import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1]); count = ctypes.c_uint(); room = (ctypes.c_int * 4)(); resource = ctypes.c_void_p()
print(cuda.cuGLGetDevices_v2(ctypes.byref(count), room, 4, 1), cuda.cuGraphicsGLRegisterBuffer(ctypes.byref(resource), 1, 0),
      cuda.cuGraphicsEGLRegisterImage(ctypes.byref(resource), None, 0), cuda.cuVDPAUGetDevice(room, 0, None),
      cuda.cuGLInit(), cuda.cuGLInit())"""
    path = _library(library)._name
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        env={**os.environ, "GPUKERNEL_LOG": "debug"},
        check=True,
    )
    assert done.stdout.split() == ["100", "801", "801", "801", "801", "801"]
    assert done.stderr.count("cuGLInit is not supported") == 1
