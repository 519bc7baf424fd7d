"""Generator of the rest of a ``libcudart.so``: everything that the library's own sources do not define.

``runtime_api.py RUNTIME DRIVER FORWARDS MAJOR OUTPUT SOURCE…`` reads the runtime's public headers in `RUNTIME`, the driver's newest in
`DRIVER` and the table `FORWARDS`, and writes to the folder `OUTPUT`

* ``driver_calls.h``: one `Entry` for each function of the driver API that the sources or the table name;
* ``exports.cpp``: the table's forwards; for each name in ``_ptsz`` or ``_ptds`` the call of the function without that suffix on the
  thread's own default stream; and for each name that is left one that answers ``cudaErrorNotSupported``;
* ``errors.cpp``: the errors of the header with their names and sentences;
* ``versions.map``: the names under the version of NVIDIA's library, ``libcudart.so.12`` for example;
* ``functions.txt``: every exported name, and how it is answered.

A file is only rewritten when it changes, so that nothing is compiled again in vain.
"""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_PROTOTYPE = re.compile(r"extern\s+([\w \*]+?[\s\*])(cuda\w+)\s*\(([^;{}]*?)\)\s*;")
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_DEFINED = re.compile(r"^API [\w \*]+?[\s\*](_*cuda\w+)\(", re.MULTILINE)
_LABELLED = re.compile(r'__asm__\("(cuda\w+)"\)')
_RENAME = re.compile(r"^\s*#\s*define\s+(cuda\w+)\s+(cuda\w+_v\d)\s*$", re.MULTILINE)
_CALLED = re.compile(r"\bdriver::(cu[A-Z]\w*)")
_TYPEDEF = re.compile(r"typedef CUresult ?\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)\)\(([^;]*)\);")
_ERROR = re.compile(r"\b(cuda(?:Success|Error\w+))\s*=\s*(\d+)")
NEW = 12090
"""The newest version of the driver that functions are asked of while an older form will do."""


@dataclass(frozen=True)
class Signature:
    """A function of the runtime: what it returns, its name, and its parameters as (type, name)."""

    result: str
    name: str
    parameters: tuple[tuple[str, str], ...]

    @property
    def declaration(self) -> str:
        """Return the parameter list in C."""
        return ", ".join(f"{kind} {name}" for kind, name in self.parameters) or "void"


def _parameter(text: str, index: int) -> tuple[str, str]:
    match = re.match(r"^(.*[\s\*&])(\w+)$", " ".join(text.split()))
    assert match is not None, text
    return match[1].strip(), match[2]


def prototypes(include: Path, own: Path) -> dict[str, Signature]:
    """Return the functions that the header declares, with and without per-thread default streams, by symbol."""
    found: dict[str, Signature] = {}
    for definitions in ([], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"], ["-D__CUDA_API_VERSION_INTERNAL"]):
        command = ["c++", "-E", "-P", "-x", "c", f"-I{include}", f"-I{own}", *definitions]
        text = subprocess.run(
            [*command, "-include", "cuda_runtime_api.h", "-"],
            input="",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for result, name, arguments in _PROTOTYPE.findall(_ATTRIBUTE.sub("", text)):
            pieces = [] if arguments.strip() in ("", "void") else arguments.split(",")
            parameters = tuple(_parameter(piece, index) for index, piece in enumerate(pieces))
            found.setdefault(name, Signature(result.strip(), name, parameters))
    return found


def library_names(library: Path) -> set[str]:
    """Return the functions that NVIDIA's `library` exports."""
    data = library.read_bytes()
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, _ = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    names: set[str] = set()
    for _, kind, _, _, at, length, link, *_ in sections:
        if kind != 11:  # SHT_DYNSYM
            continue
        for symbol in range(at, at + length, 24):
            name, info, _, section = struct.unpack_from("<IBBH", data, symbol)
            start = sections[link][4] + name
            text = data[start : data.index(b"\0", start)].decode()
            if section and info & 15 == 2 and "cuda" in text:  # STT_FUNC
                names.add(text)
    return names


class Driver:
    """The forms of each driver function, as ``cudaTypedefs.h`` dates them: version → number of parameters."""

    def __init__(self, include: Path) -> None:
        self.forms: dict[str, dict[int, int]] = {}
        for header in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"):
            for name, version, parameters in _TYPEDEF.findall((include / header).read_text()):
                count = 0 if parameters.strip() == "void" else parameters.count(",") + 1
                self.forms.setdefault(name, {})[int(version)] = count

    def version(self, name: str, parameters: int | None = None) -> int:
        """Return the version of `name` to ask for: the newest that has that many parameters, of CUDA 12 if there is one."""
        if name not in self.forms:
            raise SystemExit(f"cudaTypedefs.h knows no {name}")
        fitting = [v for v, count in self.forms[name].items() if parameters in (None, count)]
        if not fitting:
            raise SystemExit(f"no form of {name} has {parameters} parameters")
        return max((v for v in fitting if v <= NEW), default=min(fitting))


def split(name: str, driver: Driver) -> tuple[str, int | None]:
    """Return the function and the version that `name` asks for: ``cuMemAdvise_v8000`` is that of CUDA 8."""
    match = re.fullmatch(r"(cu\w+?)_v(\d{4,5})", name)
    return (match[1], int(match[2])) if match else (name, None)


def forwards(path: Path, major: int) -> dict[str, tuple[str, bool]]:
    """Return the table: the runtime's function → the driver's, and whether it needs a context."""
    table: dict[str, tuple[str, bool]] = {}
    for line in path.read_text().splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *rest = words
        majors = [int(word[2:]) for word in rest if word.startswith("cu1")]
        if majors and major not in majors:
            continue
        targets = [word for word in rest if word not in ("free",) and not word.startswith("cu1")]
        table[name] = (targets[0] if targets else "cu" + name.removeprefix("cuda"), "free" not in rest)
    return table


def error_table(include: Path) -> str:
    """Return C++ with the errors of ``driver_types.h``; the sentences are those of NVIDIA's library beside it."""
    library = next(include.glob("libcudart.so.*"), None)
    describe = None
    if library is not None:
        try:
            describe = ctypes.CDLL(str(library)).cudaGetErrorString
            describe.restype = ctypes.c_char_p
        except OSError:
            pass
    text = re.sub(r"/\*.*?\*/", "", (include / "driver_types.h").read_text(), flags=re.DOTALL)
    body = re.search(r"enum\s+\w+\s+cudaError\s*\{(.*?)\}", text, re.DOTALL)
    assert body is not None
    rows = []
    for name, code in sorted(_ERROR.findall(body[1]), key=lambda row: int(row[1])):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removeprefix("cudaError")).lower()
        sentence = describe(int(code)).decode() if describe else words
        rows.append(f'    {{{code}, "{name}", "{sentence}"}},')
    return "\n".join(
        [
            "// Generated from driver_types.h by codegen/runtime_api.py.",
            '#include "cudart/runtime.h"',
            "namespace gpukernel::cudart {",
            "const ErrorText error_texts[] = {",
            *rows,
            "    {0, nullptr, nullptr},",
            "};",
            "}  // namespace gpukernel::cudart",
            "",
        ]
    )


class Library:
    """One ``libcudart.so``: its functions, and how each is answered."""

    def __init__(
        self, include: Path, driver: Path, table: Path, major: int, sources: list[Path], own: Path
    ) -> None:
        self.include, self.major = include, major
        self.declared = prototypes(include, own)
        library = next(include.glob("libcudart.so.*"), None)
        self.names = set(self.declared) | (library_names(library) if library else set())
        self.soname = library.name if library else f"libcudart.so.{major}"
        self.driver = Driver(driver)
        renamed = dict(_RENAME.findall((include / "cuda_runtime_api.h").read_text()))
        texts = [self._preprocessed(source) for source in sources]
        written = {name for text in texts for name in _DEFINED.findall(text)}
        self.defined = {renamed.get(name, name) for name in written}
        self.defined |= {name for text in texts for name in _LABELLED.findall(text)}
        if unknown := sorted(self.defined - self.names):
            raise SystemExit(f"the CUDA runtime {major} has no {', '.join(unknown)}")
        self.called = {name for text in texts for name in _CALLED.findall(text)}
        self.forwards = {
            name: target
            for name, target in forwards(table, major).items()
            if name in self.declared and name not in self.defined
        }

    def _preprocessed(self, source: Path) -> str:
        """Return the text of `source` without what is for other major versions."""
        kept, stack = [], [True]
        for line in source.read_text().splitlines():
            if match := re.match(r"#if MAJOR (==|>=|<) (\d+)", line):
                number = int(match[2])
                stack.append(
                    {"==": self.major == number, ">=": self.major >= number, "<": self.major < number}[
                        match[1]
                    ]
                )
            elif line.startswith("#if"):
                stack.append(True)
            elif line.startswith("#else"):
                stack[-1] = not stack[-1]
            elif line.startswith("#endif"):
                stack.pop()
            elif all(stack):
                kept.append(line)
        return "\n".join(kept)

    def exports(self) -> tuple[str, dict[str, str]]:
        """Return the C++ text of what the sources leave, and how each exported name is answered."""
        how = dict.fromkeys(self.defined, "written")
        out = ["// Generated by codegen/runtime_api.py.", '#include "cudart/runtime.h"', ""]
        undefined = [name for name in sorted(self.names) if name in self.declared]
        out += [f"#undef {name}" for name in undefined]
        out += ["", "using namespace gpukernel::cudart;", ""]
        for name, (target, context) in sorted(self.forwards.items()):
            prototype = self.declared[name]
            plain, version = split(target, self.driver)
            asked = version or self.driver.version(plain, len(prototype.parameters))
            self.called.add(f"{plain}_v{asked}")
            arguments = ", ".join([f"driver::{plain}_v{asked}", *(n for _, n in prototype.parameters)])
            first = "if (CUresult r = enter()) return done(r); " if context else ""
            out.append(
                f"API cudaError_t {name}({prototype.declaration}) {{ {first}return done(invoke({arguments})); }}"
            )
            how[name] = "forwarded"
        for name in sorted(self.names - how.keys()):
            match = re.fullmatch(r"(cuda\w+)_(ptsz|ptds)", name)
            if match and how.get(match[1]) in ("written", "forwarded") and name in self.declared:
                out.append(self._per_thread(self.declared[name], self.declared[match[1]]))
                how[name] = how[match[1]]
        refused = sorted(self.names - how.keys())
        # What is refused looks at no parameter.
        for name in refused:
            how[name] = "refused"
            if name in self.declared:
                prototype = self.declared[name]
                out.append(
                    f'API cudaError_t {name}({prototype.declaration}) {{ return unsupported("{name}"); }}'
                )
            else:
                out.append(f'API cudaError_t {name}() {{ return unsupported("{name}"); }}')
        return "\n".join([*out, ""]), how

    @staticmethod
    def _per_thread(prototype: Signature, target: Signature) -> str:
        """Return the definition of a name in ``_ptsz`` or ``_ptds``."""
        arguments, streams = [], False
        for kind, name in prototype.parameters:
            streams = streams or kind == "cudaStream_t"
            arguments.append(f"per_thread({name})" if kind == "cudaStream_t" else name)
        scope = "" if streams else "const PerThreadDefault scope; "
        return f"API cudaError_t {prototype.name}({prototype.declaration}) {{ {scope}return {target.name}({', '.join(arguments)}); }}"

    def driver_calls(self) -> str:
        """Return the header of the driver functions that are called."""
        out = [
            "// Generated from cudaTypedefs.h by codegen/runtime_api.py.",
            "#pragma once",
            "namespace gpukernel::cudart::driver {",
        ]
        for name in sorted(self.called):
            plain, version = split(name, self.driver)
            asked = version or self.driver.version(plain)
            out.append(f'inline Entry<PFN_{plain}_v{asked}> {name}{{"{plain}", {asked}}};')
        return "\n".join([*out, "}  // namespace gpukernel::cudart::driver", ""])


def write(path: Path, text: str) -> None:
    """Write `text` to `path`, unless that is what it has."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> None:
    """Write what has changed."""
    runtime, driver, table, major, output = sys.argv[1:6]
    sources = [Path(source) for source in sys.argv[6:]]
    library = Library(Path(runtime), Path(driver), Path(table), int(major), sources, Path(table).parent)
    exports, how = library.exports()
    to = Path(output)
    to.mkdir(parents=True, exist_ok=True)
    write(to / "exports.cpp", exports)
    write(to / "driver_calls.h", library.driver_calls())
    write(to / "errors.cpp", error_table(Path(runtime)))
    write(to / "versions.map", f"{library.soname} {{ global: cuda*; __cuda*; gpukernel*; local: *; }};\n")
    write(to / "functions.txt", "".join(f"{name} {answer}\n" for name, answer in sorted(how.items())))


if __name__ == "__main__":
    main()
