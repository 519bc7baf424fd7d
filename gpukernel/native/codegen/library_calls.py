"""Generator of both ends of a math library's calls, and of the simulated library's entry points.

``library_calls.py TABLE NAMES OUTPUT_DIRECTORY`` reads a table of ``libraries/`` (its head explains the syntax) and
the list of names that the library exports, and writes, for the library `L`:

* ``L_client.inc``: the exported functions of the library in the user's program, which send the call;
* ``L_worker.inc``: the functions that read a call and make it, and their table;
* ``L_simulated.inc``: the exported functions of the library beside the simulated GPU, which call its implementations;
* ``L_unsupported.inc``: every other name, which answers "not supported".
"""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from calls import TableError

__all__ = ["LibraryCall", "LibraryParameter", "LibraryTable", "read_library_table"]

# By the letter in a function's name: the letter of its real type, bytes, and the name of a norm's function.
TYPES = {
    "S": ("S", 4, "S"),
    "D": ("D", 8, "D"),
    "C": ("S", 8, "Sc"),
    "Z": ("D", 16, "Dz"),
    "H": ("H", 2, "H"),
}
PLAIN = ("int", "enum", "i64", "size", "char", "double")
POINTERS = ("in", "out")
SCALARS = ("scalar", "result", "inout")
DESCRIPTOR = "desc"
SPACE = "space"
INTS = "ints"
SIZED = (*SCALARS, DESCRIPTOR, SPACE, INTS)
ZEROED = "zeroed"
# Of cuSOLVER's: objects that do not travel, by their names; a workspace on the host, the size of one, estimates.
OBJECTS = {"params": "Params", "syevj": "SyevjInfo", "gesvdj": "GesvdjInfo"}
LOCAL = (*OBJECTS, "host", "room", "estimate")
KIND = "matrix"  # cuSPARSE's older descriptor: what kind of matrix it is, which travels as one number
C_TYPES = {
    "int": "int",
    "enum": "int",
    "i64": "long long",
    "size": "size_t",
    "char": "signed char",
    "double": "double",
    "in": "const void*",
    "out": "void*",
    "ints": "const int*",
}


@dataclass(frozen=True)
class LibraryParameter:
    """One parameter behind the handle: its role, and the C++ expression of a scalar's or a workspace's bytes, or of a descriptor's type."""

    name: str
    role: str
    size: str = ""

    @property
    def form(self) -> str:
        """Return the type of a descriptor."""
        return self.size.rstrip("?")

    @property
    def optional(self) -> str:
        """Return whether a descriptor may be null, in C++."""
        return "true" if self.size.endswith("?") else "false"

    def c_type(self, wide: bool) -> str:
        """Return its type in C; pointers are untyped."""
        if self.role == "int" and wide:
            return "int64_t"
        return C_TYPES.get(self.role, "const void*" if self.role in ("scalar", DESCRIPTOR) else "void*")


@dataclass(frozen=True)
class LibraryCall:
    """One exported function; its first parameter is the handle."""

    name: str
    number: int
    answered: bool
    wide: bool
    parameters: tuple[LibraryParameter, ...]
    requires: tuple[str, ...]
    implementation: str
    sized: bool = False
    supports: tuple[str, ...] = ()

    @property
    def declaration(self) -> str:
        """Return the parameters as C declares them."""
        return ", ".join(["void* handle", *(f"{p.c_type(self.wide)} {p.name}" for p in self.parameters)])

    @property
    def checks(self) -> list[str]:
        """Return the lines that answer at once what the library answers to arguments that it does not take."""
        return [
            *(f"    if (!({text})) return INVALID_VALUE;" for text in self.requires),
            *(f"    if (!({text})) return NOT_SUPPORTED;" for text in self.supports),
        ]

    @property
    def as_sent(self) -> list[LibraryParameter]:
        """Return the parameters as they are sent: numbers and descriptors first, because the bytes of scalars depend on them."""
        return sorted(self.parameters, key=lambda p: p.role not in (*PLAIN, DESCRIPTOR))


@dataclass
class LibraryTable:
    """A whole table: the library's name and number, and its calls."""

    name: str = ""
    number: int = 0
    calls: list[LibraryCall] = field(default_factory=list)
    own: list[str] = field(default_factory=list)


def _parameter(where: str, word: str, wide: bool) -> LibraryParameter:
    name, _, role = word.partition(":")
    role, _, size = role.partition("=")
    if not name.isidentifier() or role not in (*PLAIN, *POINTERS, *SIZED, ZEROED, *LOCAL, KIND):
        raise TableError(f"{where}: unknown role {role!r} of {name!r}")
    if (role in (*SIZED, "host", "room", "estimate")) != bool(size):
        raise TableError(f"{where}: {name!r}: scalars, and no others, say their bytes")
    return LibraryParameter(name, role, {"index": "8" if wide else "4"}.get(size, size))


def _substituted(text: str, letter: str) -> str:
    if not letter:
        return text
    real, size, norm = TYPES[letter]
    own = letter == real
    replacements = {"T": letter, "i": letter.lower(), "b": size, "R": real, "r": TYPES[real][1], "N": norm}
    replacements |= {"sy": "sy" if own else "he", "or": "or" if own else "un"}
    return re.sub(r"\{(\w+)\}", lambda match: str(replacements[match[1]]), text)


def read_library_table(path: Path) -> LibraryTable:
    """Read the table at `path`.

    Raises
    ------
    TableError
        With the line and the word that is unknown.
    """
    table = LibraryTable()
    blocks: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.split("#")[0].rstrip()
        if not text:
            continue
        if not text[0].isspace():
            blocks.append((number, text, []))
        elif blocks:
            blocks[-1][2].append(text.strip())
        else:
            raise TableError(f"{path.name}:{number}: an indented line continues nothing")
    for number, head, more in blocks:
        where = f"{path.name}:{number}"
        keyword, *words = head.split()
        if keyword == "library" and len(words) == 2:
            table.name, table.number = words[0], int(words[1])
        elif keyword == "own":
            table.own += [*words, *(word for line in more for word in line.split())]
        elif keyword == "call":
            _read_call(table, where, words, more)
        else:
            raise TableError(f"{where}: unknown keyword {keyword!r}; there are library, own, call")
    names = [call.name for call in table.calls] + table.own
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TableError(f"{path.name}: {', '.join(twice)} stands there twice")
    return table


def _read_call(table: LibraryTable, where: str, words: list[str], more: list[str]) -> None:
    name, reply, *flags = words
    letters, implementation, wide = [""], "", False
    if reply not in ("queued", "answered", "sized"):
        raise TableError(f"{where}: {name}: the reply is queued, answered or sized, not {reply!r}")
    for flag in flags:
        if flag == "wide":
            wide = True
        elif flag.startswith("of="):
            letters = list(flag[3:])
        elif flag.startswith("as="):
            implementation = flag[3:]
        else:
            raise TableError(f"{where}: {name}: unknown flag {flag!r}")
    parameters = [
        word for line in more if not line.startswith(("require ", "support ")) for word in line.split()
    ]
    requires = [line.removeprefix("require ") for line in more if line.startswith("require ")]
    supports = [line.removeprefix("support ") for line in more if line.startswith("support ")]
    if not implementation and reply != "sized":
        raise TableError(f"{where}: {name}: nothing says what implements it")
    for letter in letters:
        for is_wide in (False, True) if wide else (False,):
            table.calls.append(
                LibraryCall(
                    _substituted(name, letter) + ("_64" if is_wide else ""),
                    len(table.calls),
                    reply == "answered",
                    is_wide,
                    tuple(_parameter(where, _substituted(word, letter), is_wide) for word in parameters),
                    tuple(_substituted(text, letter) for text in requires),
                    _substituted(implementation, letter),
                    reply == "sized",
                    tuple(_substituted(text, letter) for text in supports),
                )
            )


def client_function(call: LibraryCall) -> str:
    """Return the function of the library in the user's program."""
    declaration = call.declaration.replace(", ", ", [[maybe_unused]] ") if call.sized else call.declaration
    lines = [
        f"GPUKERNEL_EXPORT int {call.name}({declaration}) {{",
        f'    Call call(handle, "{call.name}", {call.number});',
        "    if (!call.ready()) return call.status();",
    ]
    lines += call.checks
    for p in call.as_sent:
        if p.role == "double":
            lines.append(f"    call.number(std::bit_cast<int64_t>({p.name}));")
        elif p.role in PLAIN:
            lines.append(f"    call.number({p.name});")
        elif p.role == DESCRIPTOR:
            lines.append(f"    if (!call.descriptor<{p.form}>({p.name}, {p.optional})) return INVALID_VALUE;")
        elif p.role in (*POINTERS, SPACE):
            lines.append(f"    call.{'place' if call.sized else 'device'}({p.name});")
        elif p.role == ZEROED:
            lines.append(f"    if (!{p.name}) return INVALID_VALUE;")
            lines.append(f"    *static_cast<int*>({p.name}) = 0;")
        elif p.role == INTS:
            lines.append(f"    if (!call.ints({p.name}, {p.size})) return INVALID_VALUE;")
        elif p.role == KIND:
            lines.append(f"    call.number(kind_of({p.name}));")
        elif p.role in LOCAL and p.role != "room":
            what = f"unknown({p.name}, {p.size})" if p.role == "estimate" else f"none({p.name})"
            lines.append(f"    call.{what};")
        else:
            lines.append(f"    call.{p.role}({p.name}, {p.size});")
    send = "measure" if call.sized else "ask" if call.answered else "queue"
    return "\n".join([*lines, f"    return call.{send}();", "}"])


def worker_function(call: LibraryCall) -> str:
    """Return the worker's function that reads the call and makes it."""
    lines = [f"int run_{call.name}(LibraryArguments& in) {{"]
    for p in call.as_sent:
        if p.role == "double":
            lines.append(f"    const auto {p.name} = std::bit_cast<double>(in.word());")
        elif p.role == DESCRIPTOR:
            lines.append(f"    const Described<{p.form}> {p.name}(in, {p.optional});")
            lines.append(f"    if ({p.name}.status()) return {p.name}.status();")
        elif p.role == SPACE:
            lines.append(f"    void* const {p.name} = in.space({p.size});")
        elif p.role in PLAIN:
            lines.append(f"    const auto {p.name} = in.number<{p.c_type(call.wide)}>();")
        elif p.role in POINTERS:
            read = "place" if call.sized else "device"
            lines.append(f"    {p.c_type(call.wide)} const {p.name} = in.{read}();")
        elif p.role == ZEROED:
            lines.append(f"    int own_{p.name} = 0;")
            lines.append(f"    void* const {p.name} = &own_{p.name};")
        elif p.role == INTS:
            lines.append(f"    const HostInts {p.name} = in.ints();")
        elif p.role == KIND:
            lines.append(f"    void* const {p.name} = matrix_of(in);")
        elif p.role in OBJECTS:
            names = ", ".join(f'"cusolverDn{verb}{OBJECTS[p.role]}"' for verb in ("Create", "Destroy"))
            lines.append(f"    void* const {p.name} = in.made({names});")
        elif p.role in LOCAL:
            lines.append(f"    void* const {p.name} = in.{p.role}({p.size});")
        else:
            lines.append(f"    {p.c_type(call.wide)} const {p.name} = in.{p.role}({p.size});")
    types = ", ".join(["void*", *(p.c_type(call.wide) for p in call.parameters)])
    arguments = ", ".join(
        [
            "in.handle()",
            *(p.name + (".get()" if p.role in (DESCRIPTOR, INTS) else "") for p in call.parameters),
        ]
    )
    lines.append("    if (in.failed()) return INVALID_VALUE;")
    for described, pointer in itertools.pairwise(call.parameters):
        if described.role == DESCRIPTOR and pointer.role in POINTERS:
            lines.append(f"    if (!covered(in, {described.name}, {pointer.name})) return INVALID_VALUE;")
    lines += [
        f"    if ({p.name}.count() != {p.size}) return INVALID_VALUE;"
        for p in call.parameters
        if p.role == INTS
    ]
    # What the program's library checks is checked again: whoever speaks to a worker need not be that library.
    lines += [f"    if (!({text})) return INVALID_VALUE;" for text in call.requires]
    lines.append(f"    return in.call<int (*)({types})>({arguments});")
    return "\n".join([*lines, "}"])


def simulated_function(call: LibraryCall) -> str:
    """Return the function of the library beside the simulated GPU."""
    # What the size of a workspace depends on matters to NVIDIA's library alone.
    declaration = call.declaration.replace(", ", ", [[maybe_unused]] ") if call.sized else call.declaration
    lines = [
        f"GPUKERNEL_EXPORT int {call.name}({declaration}) {{",
        "    Handle* const own = handle_of(handle);",
        "    if (!own) return NOT_INITIALIZED;",
    ]
    lines += call.checks
    arguments = [f'Context{{*own, "{call.name}"}}']
    if call.sized:
        least = "LEAST_ROOM"  # and on the host none
        for p in (p for p in call.parameters if p.role == "room"):
            lines.append(f"    if (!{p.name}) return INVALID_VALUE;")
            lines.append(f"    *static_cast<{'int' if p.size == '4' else 'size_t'}*>({p.name}) = {least};")
            least = "0"
        return "\n".join([*lines, "    return SUCCESS;", "}"])
    for p in call.parameters:
        if p.role in SCALARS:
            lines.append(f"    if (!{p.name}) return INVALID_VALUE;")
            kind = "Scalar" if p.role == "scalar" else "Result"
            arguments.append(f"{kind}(*own, {p.name}, {p.size})")
        elif p.role == ZEROED:
            lines.append(f"    if (!{p.name}) return INVALID_VALUE;")
            lines.append(f"    *static_cast<int*>({p.name}) = 0;")
        elif p.role == DESCRIPTOR:
            if p.optional == "false":
                lines.append(f"    if (!{p.name}) return INVALID_VALUE;")
            arguments.append(f"static_cast<const {p.form}*>({p.name})")
        elif p.role in (*POINTERS, SPACE):
            arguments.append(f"reinterpret_cast<uint64_t>({p.name})")
        elif p.role == INTS:
            lines.append(f"    if (!all_there({p.name}, {p.size})) return INVALID_VALUE;")
            arguments.append(f"Ints({p.name}, {p.name} + {p.size})")
        elif p.role == KIND:
            arguments.append(f"kind_of({p.name})")
        elif p.role == "estimate":
            lines.append(f"    if ({p.name}) std::fill_n(static_cast<double*>({p.name}), {p.size}, 0.0);")
        elif p.role in LOCAL:
            continue
        else:
            arguments.append(f"static_cast<int64_t>({p.name})" if p.role == "int" else p.name)
    lines.append(f"    return {call.implementation}({', '.join(arguments)});")
    return "\n".join([*lines, "}"])


def outputs(table: LibraryTable, names: list[str]) -> dict[str, str]:
    """Return the text of each file by its name."""
    known = {call.name for call in table.calls}
    if strange := sorted(known - set(names)):
        raise TableError(f"{table.name}: the library exports no {', '.join(strange)}")
    rest = sorted(set(names) - known - set(table.own))
    worker = [
        *(worker_function(call) for call in table.calls),
        f"constexpr LibraryFunction {table.name}_functions[] = {{",
        *(f'    {{"{c.name}", run_{c.name}, {str(c.answered).lower()}}},' for c in table.calls),
        "};",
        "",
    ]
    # Of every other name nobody knows what it returns: an int is as good as anything.
    unsupported = "".join(
        f'GPUKERNEL_EXPORT int {name}() {{ return unsupported("{name}"); }}\n' for name in rest
    )
    return {
        f"{table.name}_client.inc": "\n\n".join(client_function(call) for call in table.calls) + "\n",
        f"{table.name}_worker.inc": "\n".join(worker),
        f"{table.name}_simulated.inc": "\n\n".join(simulated_function(call) for call in table.calls) + "\n",
        f"{table.name}_unsupported.inc": unsupported,
    }


def main() -> None:
    """Write the files whose text has changed."""
    table_path, names_path, output = map(Path, sys.argv[1:])
    names = [line for line in names_path.read_text().split("\n") if line and not line.startswith("#")]
    for name, text in outputs(read_library_table(table_path), names).items():
        path = output / name
        text = f"// Generated from {table_path.name} by codegen/library_calls.py.\n{text}"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
