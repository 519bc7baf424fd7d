"""The table of the remoted calls, read strictly from ``calls.txt``.

``calls.txt`` explains its own syntax.  Every word of it is either understood or an error that names the line and the
word; nothing is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cuda_h import Parameter, Prototype

__all__ = [
    "FIRST_CUSTOM_CALL",
    "FIRST_DRIVER_CALL",
    "CallTable",
    "CustomCall",
    "DriverCall",
    "MessageField",
    "TableError",
    "read_table",
]

TABLE = Path(__file__).with_name("calls.txt")

FIRST_CUSTOM_CALL, FIRST_DRIVER_CALL = 16, 64

REPLIES = ("sync", "async")
DRIVER_FLAGS = (
    "asks",
    "no-context",
    "of-handle",
    "any-device",
    "handwritten",
    "captured",
    "uses-memory",
    "fills",
    "waits",
    "graph-memory",
    "managed",
    "foreseen",
    "local",
    "of-process",
    "noted",
    "spare",
    "remembered",
    "variable",
)
CUSTOM_FLAGS = ("asks", "question", "streamed")
LIMITS = ("MAX_BODY", "MAX_COPY", "MAX_PITCHED_COPY")
ROLES = ("out", "in", "optional-in", "text", "new-handle", "varies")

# The C++ types of fields, and their bytes on the wire.
NUMBERS = {
    "u8": ("uint8_t", 1),
    "u32": ("uint32_t", 4),
    "u64": ("uint64_t", 8),
    "i32": ("int32_t", 4),
    "f64": ("double", 8),
    "handle": ("uint64_t", 8),
    "address": ("uint64_t", 8),
    "size": ("uint64_t", 8),
}


class TableError(SystemExit):
    """A line of the table that cannot be understood; ends the build with the line's number and the word."""


@dataclass(frozen=True)
class MessageField:
    """One field of a request, an answer or a record."""

    name: str
    type: str
    optional: bool = False
    repeated: bool = False


@dataclass(frozen=True)
class CustomCall:
    """A call of the protocol's own, and the layout of its request and answer."""

    name: str
    number: int
    asynchronous: bool
    flags: frozenset[str]
    limit: str
    request: tuple[MessageField, ...]
    answer: tuple[MessageField, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class DriverCall:
    """A function of ``cuda.h`` that travels by its prototype; `roles` are those of its parameters, by name."""

    name: str
    number: int
    asynchronous: bool
    flags: frozenset[str]
    roles: dict[str, str]
    line: int
    prototype: Prototype = field(default=Prototype("", ()))

    @property
    def inputs(self) -> list[Parameter]:
        """Return the parameters that the request carries."""
        return [p for p in self.prototype.parameters if self.roles.get(p.name) != "out"]

    @property
    def outputs(self) -> list[Parameter]:
        """Return the parameters that the answer carries."""
        return [p for p in self.prototype.parameters if self.roles.get(p.name) == "out"]


@dataclass
class CallTable:
    """The whole table: `types` are structures by name with their bytes, `records` lists' elements by name."""

    types: dict[str, int] = field(default_factory=dict)
    records: dict[str, tuple[MessageField, ...]] = field(default_factory=dict)
    custom: list[CustomCall] = field(default_factory=list)
    driver: list[DriverCall] = field(default_factory=list)
    lookups: list[str] = field(default_factory=list)

    @property
    def driver_functions(self) -> list[str]:
        """Return every driver function that the worker looks up."""
        carried = (name for call in self.custom for name in call.calls)
        return sorted({*(call.name for call in self.driver), *carried, *self.lookups})

    def number_of(self, name: str) -> int:
        """Return the number of the call `name` on the wire.

        Raises
        ------
        KeyError
        """
        return {call.name: call.number for call in (*self.custom, *self.driver)}[name]


def _statements(text: str) -> Iterator[tuple[int, str, list[str], list[tuple[int, list[str]]]]]:
    """The statements of `text`: line number, keyword, words, and the indented lines that follow."""
    found: list[tuple[int, str, list[str], list[tuple[int, list[str]]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if not line[0].isspace():
            found.append((number, words[0], words[1:], []))
        elif found:
            found[-1][3].append((number, words))
        else:
            raise TableError(f"calls.txt:{number}: an indented line continues nothing: {line.strip()}")
    return iter(found)


def _reply(number: int, name: str, words: list[str]) -> bool:
    """True where the call `name` is asynchronous, by the first of its `words`."""
    if not words or words[0] not in REPLIES:
        raise TableError(
            f"calls.txt:{number}: {name}: the reply is {' or '.join(REPLIES)}, not "
            f"{repr(words[0]) if words else 'left out'}"
        )
    return words[0] == "async"


def _flags(number: int, name: str, words: list[str], known: tuple[str, ...]) -> frozenset[str]:
    for word in words:
        if word not in known:
            raise TableError(
                f"calls.txt:{number}: {name}: unknown flag {word!r}; there are {', '.join(known)}"
            )
        if words.count(word) > 1:
            raise TableError(f"calls.txt:{number}: {name}: the flag {word!r} stands there twice")
    return frozenset(words)


class _Reader:
    """Reads one table, statement by statement."""

    def __init__(self) -> None:
        self.table = CallTable()

    def fields(self, number: int, of: str, words: list[str]) -> tuple[MessageField, ...]:
        found: list[MessageField] = []
        for word in words:
            name, _, rest = word.partition(":")
            kind, _, presence = rest.partition(":")
            plain = kind.removesuffix("[]")
            repeated = plain != kind
            known = {*NUMBERS, *self.table.types, *self.table.records} | (
                set() if repeated else {"text", "bytes"}
            )
            if (
                not name.isidentifier()
                or plain not in known
                or (plain in self.table.records and not repeated)
            ):
                raise TableError(f"calls.txt:{number}: {of}: unknown type {kind!r} of the field {name!r}")
            if presence not in ("", "optional") or (":" in rest and not presence):
                raise TableError(f"calls.txt:{number}: {of}: unknown presence {presence!r} of {name!r}")
            if name in (one.name for one in found):
                raise TableError(f"calls.txt:{number}: {of}: two fields {name!r}")
            if found and (found[-1].type == "bytes" or (found[-1].optional and not presence)):
                raise TableError(
                    f"calls.txt:{number}: {of}: {name!r} follows {found[-1].name!r}, which is last"
                )
            found.append(MessageField(name, plain, bool(presence), repeated))
        return tuple(found)

    def type(self, number: int, words: list[str]) -> None:
        if len(words) != 2 or not words[1].isdecimal():
            raise TableError(f"calls.txt:{number}: a type is 'type NAME BYTES', not {' '.join(words)!r}")
        self.table.types[words[0]] = int(words[1])

    def record(self, number: int, words: list[str]) -> None:
        if len(words) < 2:
            raise TableError(f"calls.txt:{number}: a record is 'record NAME FIELD:TYPE …'")
        self.table.records[words[0]] = self.fields(number, words[0], words[1:])

    def custom(self, number: int, words: list[str], clauses: list[tuple[int, list[str]]]) -> None:
        name = words[0] if words else ""
        asynchronous = _reply(number, name, words[1:])
        limits = [word.removeprefix("limit=") for word in words[2:] if word.startswith("limit=")]
        if len(limits) > 1 or any(limit not in LIMITS for limit in limits):
            raise TableError(
                f"calls.txt:{number}: {name}: unknown limit {limits[-1]!r}; there are {', '.join(LIMITS)}"
            )
        flags = _flags(number, name, [w for w in words[2:] if not w.startswith("limit=")], CUSTOM_FLAGS)
        parts: dict[str, tuple[int, list[str]]] = {}
        for line, more in clauses:
            if more[0] in ("request", "answer", "calls"):
                if more[0] in parts:
                    raise TableError(f"calls.txt:{line}: {name}: a second {more[0]!r}")
                parts[more[0]] = (line, more[1:])
            elif parts:
                parts[list(parts)[-1]][1].extend(more)
            else:
                raise TableError(f"calls.txt:{line}: {name}: unknown clause {more[0]!r}")
        if asynchronous and "answer" in parts:
            raise TableError(f"calls.txt:{parts['answer'][0]}: {name} is async and has no answer")
        request, answer = (
            self.fields(parts[part][0], name, parts[part][1]) if part in parts else ()
            for part in ("request", "answer")
        )
        place = FIRST_CUSTOM_CALL + len(self.table.custom)
        if place >= FIRST_DRIVER_CALL:
            raise TableError(f"calls.txt:{number}: {name}: the numbers of custom calls are used up")
        calls = tuple(parts["calls"][1]) if "calls" in parts else ()
        self.table.custom.append(
            CustomCall(name, place, asynchronous, flags, *(limits or ["MAX_CALL"]), request, answer, calls)
        )

    def driver(self, number: int, words: list[str]) -> None:
        name = words[0] if words else ""
        asynchronous = _reply(number, name, words[1:])
        flags = _flags(number, name, [word for word in words[2:] if ":" not in word], DRIVER_FLAGS)
        roles: dict[str, str] = {}
        for word in words[2:]:
            parameter, separator, role = word.partition(":")
            if not separator:
                continue
            if role not in ROLES:
                raise TableError(
                    f"calls.txt:{number}: {name}: unknown role {role!r} of {parameter!r}; "
                    f"there are {', '.join(ROLES)}"
                )
            if (role == "new-handle" and not asynchronous) or (role == "out" and asynchronous):
                raise TableError(
                    f"calls.txt:{number}: {name} is {words[1]}: {parameter!r} cannot be {role!r}"
                )
            roles[parameter] = role
        place = FIRST_DRIVER_CALL + len(self.table.driver)
        self.table.driver.append(DriverCall(name, place, asynchronous, flags, roles, number))

    def statement(
        self, number: int, keyword: str, words: list[str], more: list[tuple[int, list[str]]]
    ) -> None:
        if keyword == "custom":
            return self.custom(number, words, more)
        every = [*words, *(word for _, line in more for word in line)]
        if keyword == "type":
            self.type(number, every)
        elif keyword == "record":
            self.record(number, every)
        elif keyword == "driver":
            self.driver(number, every)
        elif keyword == "lookup":
            self.table.lookups += every
        else:
            raise TableError(
                f"calls.txt:{number}: unknown keyword {keyword!r}; there are type, record, custom, driver, lookup"
            )
        return None


def _joined(call: DriverCall, prototypes: dict[str, Prototype]) -> DriverCall:
    """The call with its prototype; a parameter that the table does not fit is an error."""
    where = f"calls.txt:{call.line}: {call.name}"
    prototype = prototypes.get(call.name)
    if prototype is None:
        raise TableError(f"{where}: cuda.h declares no such function")
    if unknown := call.roles.keys() - {p.name for p in prototype.parameters}:
        raise TableError(f"{where} has no parameter {', '.join(sorted(unknown))}")
    for parameter in prototype.parameters:
        if "*" in parameter.type and parameter.name not in call.roles:
            raise TableError(f"{where}: the pointer {parameter.name} needs a role: {', '.join(ROLES)}")
        role = call.roles.get(parameter.name)
        if "*" not in parameter.type and role not in (None, "varies"):
            raise TableError(f"{where}: {parameter.name} is no pointer and has no role but varies")
        if role == "varies" and ("*" in parameter.type or "remembered" not in call.flags):
            raise TableError(f"{where}: {parameter.name} varies, so it must be a number of a remembered call")
        if call.roles.get(parameter.name) == "optional-in" and "handwritten" not in call.flags:
            raise TableError(f"{where}: {parameter.name} is optional-in, so the call must be handwritten")
    return DriverCall(call.name, call.number, call.asynchronous, call.flags, call.roles, call.line, prototype)


def read_table(text: str | None = None, prototypes: dict[str, Prototype] | None = None) -> CallTable:
    """Read the table `text`, or ``calls.txt``; with `prototypes`, join its driver calls with them.

    Raises
    ------
    TableError
        With the line and the word that is unknown or does not fit ``cuda.h``.
    """
    reader = _Reader()
    for statement in _statements(TABLE.read_text() if text is None else text):
        reader.statement(*statement)
    table = reader.table
    names = [call.name for call in (*table.custom, *table.driver)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TableError(f"calls.txt: {', '.join(twice)} stands there twice")
    if prototypes is not None:
        table.driver = [_joined(call, prototypes) for call in table.driver]
        if unknown := sorted(set(table.driver_functions) - prototypes.keys()):
            raise TableError(f"calls.txt: cuda.h declares no {', '.join(unknown)}")
    return table
