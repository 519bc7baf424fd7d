"""The protocol's own calls as C++: numbers, largest bodies, and one structure for each request and answer.

Both ends include the result, ``calls.h``: what one writes by ``LaunchRequest::write`` the other reads by
``LaunchRequest::read``, so that no layout is written down twice.
"""

from __future__ import annotations

from calls import FIRST_CUSTOM_CALL, FIRST_DRIVER_CALL, NUMBERS, CallTable, MessageField

__all__ = ["calls_header", "message_name"]

_HEAD = """\
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>
#include "wire/body.h"
#include "wire/device_facts.h"
#include "wire/protocol.h"

namespace gpukernel::wire {
"""


def message_name(call: str, part: str) -> str:
    """Return the structure's name: ``CopyToHostRequest`` for the request of ``copy_to_host``."""
    return "".join(word.capitalize() for word in call.split("_")) + part


def _element(one: MessageField) -> str:
    return NUMBERS[one.type][0] if one.type in NUMBERS else one.type


def _declaration(one: MessageField) -> str:
    if one.type in ("text", "bytes"):
        kind = "std::string_view"
    else:
        kind = f"std::vector<{_element(one)}>" if one.repeated else _element(one)
    return f"    {f'std::optional<{kind}>' if one.optional else kind} {one.name}{{}};"


def _write(one: MessageField, table: CallTable) -> str:
    if one.repeated:
        each = "one.write(out)" if one.type in table.records else "out.put(one)"
        return (
            f"        out.template put<uint32_t>({one.name}.size());\n"
            f"        for (const auto& one : {one.name}) {each};"
        )
    if one.type == "bytes":
        return f"        if (!{one.name}.empty()) out.bytes({one.name}.data(), {one.name}.size());"
    if one.type == "text":
        put = f"out.text({'*' if one.optional else ''}{one.name});"
    else:
        put = f"out.put({'*' if one.optional else ''}{one.name});"
    return f"        {f'if ({one.name}) ' if one.optional else ''}{put}"


def _read(one: MessageField, table: CallTable) -> str:
    if one.repeated:
        each = f"{one.type}::read(in)" if one.type in table.records else f"in.template get<{_element(one)}>()"
        return (
            f"        for (auto left = in.template get<uint32_t>(); left && !in.failed(); --left)\n"
            f"            m.{one.name}.push_back({each});"
        )
    get = {"text": "in.text()", "bytes": "in.rest()"}.get(one.type, f"in.template get<{_element(one)}>()")
    return f"        {'if (!in.rest().empty()) ' if one.optional else ''}m.{one.name} = {get};"


def _head_bytes(fields: tuple[MessageField, ...], table: CallTable) -> int:
    """The bytes before the first field whose size varies."""
    total = 0
    for one in fields:
        if one.repeated or one.optional or one.type in ("text", "bytes"):
            break
        total += NUMBERS[one.type][1] if one.type in NUMBERS else table.types[one.type]
    return total


def _structure(name: str, fields: tuple[MessageField, ...], table: CallTable, constants: str = "") -> str:
    lines = [f"struct {name} {{"]
    if constants:
        lines.append(f"    {constants}")
    lines.append(f"    static constexpr size_t HEAD_BYTES = {_head_bytes(fields, table)};")
    lines += [_declaration(one) for one in fields]
    lines.append("    template <class Out>")
    if fields:
        lines += ["    void write(Out& out) const {", *(_write(one, table) for one in fields), "    }"]
    else:
        lines.append("    void write(Out&) const {}")
    lines.append("    template <class In>")
    if fields:
        lines += [
            f"    static {name} read(In& in) {{",
            f"        {name} m;",
            *(_read(one, table) for one in fields),
            "        return m;",
            "    }",
        ]
    else:
        lines.append(f"    static {name} read(In&) {{ return {{}}; }}")
    return "\n".join([*lines, "};", ""])


def calls_header(table: CallTable) -> str:
    """Return the C++ text of ``calls.h``, without its first comment."""
    out = [
        _HEAD,
        f"constexpr uint16_t FIRST_CUSTOM_CALL = {FIRST_CUSTOM_CALL}, FIRST_DRIVER_CALL = {FIRST_DRIVER_CALL};",
        "",
        "enum class CustomCall : uint16_t {",
        *(f"    {call.name} = {call.number}," for call in table.custom),
        f"    end = {FIRST_CUSTOM_CALL + len(table.custom)}",
        "};",
        "",
        "enum class DriverCall : uint16_t {",
        *(f"    {call.name} = {call.number}," for call in table.driver),
        f"    end = {FIRST_DRIVER_CALL + len(table.driver)}",
        "};",
        "",
        "// The bytes that the body of a request may have.",
        "constexpr size_t max_request(uint16_t call) {",
        "    switch (static_cast<CustomCall>(call)) {",
        *(
            f"        case CustomCall::{call.name}:\n            return {call.limit};"
            for call in table.custom
            if call.limit != "MAX_CALL"
        ),
        "        default:\n            return MAX_CALL;",
        "    }",
        "}",
        "",
        "// Whether a call answers from what is known, and leaves the device's work and memory as they are.",
        "constexpr bool only_asks(uint16_t call) {",
        "    switch (call) {",
        *(
            f"        case static_cast<uint16_t>({kind}::{call.name}):"
            for kind, calls in (("CustomCall", table.custom), ("DriverCall", table.driver))
            for call in calls
            if "asks" in call.flags
        ),
        "            return true;\n        default:\n            return false;",
        "    }",
        "}",
        "",
    ]
    out += [f"static_assert(sizeof({name}) == {size});" for name, size in table.types.items()]
    out += ["", *(_structure(name, fields, table) for name, fields in table.records.items())]
    for call in table.custom:
        constants = f"static constexpr CustomCall call = CustomCall::{call.name};"
        out.append(_structure(message_name(call.name, "Request"), call.request, table, constants))
        if not call.asynchronous:
            out.append(_structure(message_name(call.name, "Answer"), call.answer, table))
    return "\n".join([*out, "}  // namespace gpukernel::wire", ""])
