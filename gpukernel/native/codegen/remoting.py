"""Generator of both ends of the remoted calls from ``calls.txt`` and the prototypes of ``cuda.h``.

``remoting.py INCLUDE OUTPUT_DIRECTORY`` writes

* ``calls.h``: for both ends, the number of each call and the layout of each custom call (``messages.py``);
* ``shim_calls.cpp``: the exported driver functions that write a request and read its answer;
* ``worker_driver_calls.inc``: the functions that read a request, call the driver and write the answer, and their table;
* ``worker_custom_calls.inc``: the declarations of the functions that serve custom calls, and their table;
* ``driver_functions.inc``: the functions that the worker looks up in the CUDA library that it loads.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from calls import CallTable, DriverCall, read_table
from cuda_h import Headers, Parameter
from messages import calls_header

HANDLES = {
    "CUmodule": "module",
    "CUlibrary": "library",
    "CUfunction": "function",
    "CUkernel": "kernel",
    "CUstream": "stream",
    "CUevent": "event",
    "CUlinkState": "link",
    "CUarray": "array",
    "CUmipmappedArray": "mipmap",
    "CUtexref": "texture_reference",
    "CUsurfref": "surface_reference",
}


def _target(parameter: Parameter) -> str:
    return str(parameter.type).removesuffix("*").removeprefix("const ").strip()


def _before(call: DriverCall, arguments: str) -> list[str]:
    """Return what has a word before the call travels: stream capture, managed memory and the like."""
    name = call.name
    lines = []
    if "captured" in call.flags:
        lines.append(
            f"    if (capturing()) if (Captured captured = captured_{name}({arguments})) return *captured;"
        )
    if "graph-memory" in call.flags:
        lines.append(
            f"    if (has_graph_memory()) if (auto done = graph_memory_{name}({arguments})) return *done;"
        )
    if "fills" in call.flags:
        to, *_, last = (each.name for each in call.inputs if each.type != "CUstream")
        element = int(re.findall(r"D(8|16|32)", name)[0]) // 8
        sizes = f"dstPitch, Width, {element}, {last}" if last == "Height" else f"0, {last}, {element}, 1"
        lines.append(
            f"    if (CUresult error = reach_host(*connection, {to}, pitched_bytes({sizes})); error != CUDA_SUCCESS) return error;"
        )
    if "local" in call.flags:
        lines.append(f"    if (auto done = local_{name}({arguments})) return *done;")
    if "uses-memory" in call.flags:
        lines.append(f"    const DeviceWork work = managed_{name}({arguments});")
    if "foreseen" in call.flags:
        lines.append(f"    if (auto done = foreseen_{name}({arguments})) return *done;")
    if "waits" in call.flags:
        lines.append(f"    const DeviceWait wait = managed_{name}({arguments});")
    if "managed" in call.flags:
        lines.append(f"    if (has_managed()) if (auto done = managed_{name}({arguments})) return *done;")
    if "spare" in call.flags:
        lines.append(f"    if (auto done = spare_{name}({arguments})) return *done;")
    return lines


def _on_this_device(call: DriverCall, arguments: str) -> list[str]:
    """Return what has libraries and kernels of a process be those of one of its devices."""
    lines = []
    if "of-process" in call.flags:
        lines.append(
            f"    if (several_devices()) if (auto done = process_{call.name}({arguments})) return *done;"
        )
    lines += [
        f"    if (CUresult error = name_there(*connection, {p.name}); error != CUDA_SUCCESS) return error;"
        for p in call.inputs
        if p.type in ("CUlibrary", "CUkernel", "CUfunction")
    ]
    return lines


def _recalled(call: DriverCall) -> list[str]:
    """Return what answers a call whose answer is known already."""
    lines = []
    words = ", ".join(
        f"reinterpret_cast<uint64_t>({p.name})" if p.type in HANDLES else f"static_cast<uint64_t>({p.name})"
        for p in call.inputs
    )
    (answer,) = call.outputs
    lines.append(
        f"    const Question question{{static_cast<uint16_t>(DriverCall::{call.name}), {{{words}}}}};"
    )
    lines.append("    if (const auto known = recall(*connection, question)) {")
    cast = "reinterpret_cast" if _target(answer) in HANDLES else "static_cast"
    lines.append(f"        if ({answer.name}) *{answer.name} = {cast}<{_target(answer)}>(*known);")
    lines.append("        return CUDA_SUCCESS;")
    lines.append("    }")
    return lines


def shim_function(call: DriverCall) -> str:
    """Return the exported function of the shim."""
    name = call.name
    lines = [f"CUresult CUDAAPI {name}({call.prototype.declaration}) {{"]
    device = next((p.name for p in call.inputs if p.type == "CUdevice"), None)
    if "no-context" in call.flags and device:
        lines.append(f"    GPUKERNEL_OF_DEVICE(connection, {device});")
    elif "no-context" in call.flags:
        lines.append("    GPUKERNEL_DEFAULT_DEVICE(connection);")
    elif "of-handle" in call.flags:
        named = [p for p in call.inputs if p.type in ("CUstream", "CUevent")]
        first, *others = [p.name for p in sorted(named, key=lambda p: p.type != "CUstream")]
        lines.append(f"    GPUKERNEL_NAMED_DEVICE(connection, {first});")
        if "any-device" not in call.flags:
            lines += [
                f"    if (!may_be_of(*connection, {each})) return CUDA_ERROR_INVALID_HANDLE;"
                for each in others
            ]
    else:
        lines.append("    GPUKERNEL_CURRENT(connection);")
    for p in call.prototype.parameters:
        if call.roles.get(p.name) in ("text", "new-handle", "in"):
            lines.append(f"    if (!{p.name}) return CUDA_ERROR_INVALID_VALUE;")
    arguments = ", ".join(["*connection", *(p.name for p in call.prototype.parameters)])
    for p in call.prototype.parameters:
        if call.roles.get(p.name) == "text":  # not to be read in the middle of a request
            lines.append(f"    const std::string own_{p.name}({p.name});")
    lines += _on_this_device(call, arguments)
    lines += _before(call, arguments)
    for p in call.inputs:
        if p.type == "CUstream":
            lines.append(f"    const uint64_t of_{p.name} = stream_name(*connection, {p.name});")
    if "remembered" in call.flags:
        lines += _recalled(call)
    streams = [p.name for p in call.inputs if p.type == "CUstream"]
    of = f", of_{streams[0]}" if len(streams) == 1 else ""
    if not streams and call.asynchronous and "uses-memory" in call.flags:
        of = ", 0"  # a copy or a fill is work of the default stream
    lines.append(f"    Request request(*connection, DriverCall::{name}{of});")
    for p in call.inputs:
        note = call.roles.get(p.name)
        if note == "text":
            lines.append(f"    request.text(own_{p.name});")
        elif note == "in":
            lines.append(f"    request.put(*{p.name});")
        elif note == "optional-in":
            lines.append(f"    request.put<uint8_t>({p.name} != nullptr);")
            lines.append(f"    if ({p.name}) request.put(*{p.name});")
        elif note == "new-handle":
            lines.append(f"    *{p.name} = reinterpret_cast<{_target(p)}>(request.name_handle());")
            if _target(p) == "CUstream":
                flags = next(q.name for q in call.inputs if q.name.lower() == "flags")
                lines.append(f"    made_stream(*connection, *{p.name}, {flags});")
        elif p.type == "CUstream":
            lines.append(f"    request.put(of_{p.name});")
        elif p.type in HANDLES:
            lines.append(f"    request.put(reinterpret_cast<uint64_t>({p.name}));")
        else:
            lines.append(f"    request.put({p.name});")
    if "noted" in call.flags:
        lines.append(f"    noted_{name}({arguments});")
    if call.asynchronous:
        lines.append("    return request.queue();")
    else:
        lines.append("    CUresult result = request.send();")
        managed = f"variable_{name}({arguments})"
        refusal = managed if "variable" in call.flags else f'gpukernel::unsupported("{name}")'
        lines.append(f"    if (result == CUDA_ERROR_NOT_SUPPORTED) return {refusal};")
        for p in call.outputs:
            if _target(p) in HANDLES:
                read = f"reinterpret_cast<{_target(p)}>(request.get<uint64_t>())"
            else:
                read = f"request.get<{_target(p)}>()"
            kept = ""
            if "remembered" in call.flags:
                cast = "reinterpret_cast" if _target(p) in HANDLES else "static_cast"
                kept = f" remember(*connection, request.number(), question, {cast}<uint64_t>(value));"
                for varies, other in enumerate(call.inputs):
                    if call.roles.get(other.name) == "varies":
                        kept += f" remember_others(*connection, question, {varies}, request);"
            lines.append(
                f"    if (result == CUDA_SUCCESS) {{ auto value = {read};{kept} if ({p.name}) *{p.name} = value; }}"
            )
        lines.append("    return wait.over(result);" if "waits" in call.flags else "    return result;")
    return "\n".join([*lines, "}"])


def worker_function(call: DriverCall) -> str:
    """Return the function of the worker that serves the driver call `call`."""
    name = call.name
    lines = [f"CUresult serve_{name}(Session& session, Reader& in, Writer& out) {{"]
    for p in call.prototype.parameters:
        note = call.roles.get(p.name)
        if note == "out":
            lines.append(f"    {_target(p)} {p.name}{{}};")
        elif note == "text":
            lines.append(f"    const std::string {p.name}(in.text());")
        elif note == "in":
            lines.append(f"    const auto {p.name} = in.get<{_target(p)}>();")
        elif p.type in HANDLES:
            lines.append(
                f"    {p.type} {p.name}; if (!session.handle(in.get<uint64_t>(), Kind::{HANDLES[p.type]}, {p.name})) return CUDA_ERROR_INVALID_HANDLE;"
            )
        elif p.type == "CUdevice":
            lines.append(f"    in.get<CUdevice>(); CUdevice {p.name} = session.device();")
        else:
            lines.append(f"    auto {p.name} = in.get<{p.type}>();")
    arguments = []
    for p in call.prototype.parameters:
        note = call.roles.get(p.name)
        arguments.append(
            f"&{p.name}" if note in ("out", "in") else f"{p.name}.c_str()" if note == "text" else p.name
        )
    lines.append("    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;")
    lines.append(f"    CUresult result = session.cuda().{name}({', '.join(arguments)});")
    for p in call.outputs:
        kind = HANDLES.get(_target(p))
        parent = next((i.name for i in call.inputs if i.type in HANDLES), "nullptr")
        value = f"session.number_of({p.name}, Kind::{kind}, {parent})" if kind else p.name
        lines.append(f"    if (result == CUDA_SUCCESS) out.put({value});")
    lines.append("    (void)out;")
    return "\n".join([*lines, "    return result;", "}"])


def _hooks(calls: list[DriverCall], flag: str, result: str, prefix: str) -> str:
    """Declare the shim's functions that have a word in the calls with `flag` before they travel."""
    return "".join(
        f"{result} {prefix}_{call.name}(Connection&{''.join(', ' + p.type for p in call.prototype.parameters)});\n"
        for call in calls
        if flag in call.flags
    )


def shim_end(table: CallTable) -> str:
    """Return the C++ text of ``shim_calls.cpp``."""
    calls = table.driver
    return (
        "#define __CUDA_API_VERSION_INTERNAL\n"
        + "".join(
            f'#include "shim/{name}.h"\n'
            for name in (
                "graphs/capture",
                "graphs/memory",
                "managed/managed",
                "memory/memory",
                "modules/libraries",
                "transport/memo",
                "transport/request",
            )
        )
        + "\nusing namespace gpukernel::shim;\nusing gpukernel::wire::DriverCall;\n\nnamespace gpukernel::shim {\n"
        + _hooks(calls, "captured", "Captured", "captured")
        + _hooks(calls, "uses-memory", "DeviceWork", "managed")
        + _hooks(calls, "waits", "DeviceWait", "managed")
        + _hooks(calls, "managed", "std::optional<CUresult>", "managed")
        + _hooks(calls, "foreseen", "std::optional<CUresult>", "foreseen")
        + _hooks(calls, "local", "std::optional<CUresult>", "local")
        + _hooks(calls, "noted", "void", "noted")
        + _hooks(calls, "spare", "std::optional<CUresult>", "spare")
        + _hooks(calls, "variable", "CUresult", "variable")
        + _hooks(calls, "graph-memory", "std::optional<CUresult>", "graph_memory")
        + '}  // namespace gpukernel::shim\n\nextern "C" {\n'
        + "\n\n".join(shim_function(call) for call in calls)
        + "\n}\n"
    )


_SERVE = "CUresult serve_{name}(Session& session, Reader& in, Writer& out);"


def worker_driver_end(table: CallTable) -> str:
    """Return the C++ text of ``worker_driver_calls.inc``."""
    return (
        "\n\n".join(
            _SERVE.format(name=call.name) if "handwritten" in call.flags else worker_function(call)
            for call in table.driver
        )
        + "\n\nconst ServedCall driver_calls[] = {\n"
        + "".join(
            f'    {{"{call.name}", serve_{call.name}, {str(call.asynchronous).lower()}}},\n'
            for call in table.driver
        )
        + "};\n"
    )


def worker_custom_end(table: CallTable) -> str:
    """Return the C++ text of ``worker_custom_calls.inc``."""
    lines = [_SERVE.format(name=call.name) for call in table.custom if "streamed" not in call.flags]
    lines += ["", "const ServedCall custom_calls[] = {"]
    for call in table.custom:
        serve = "nullptr" if "streamed" in call.flags else f"serve_{call.name}"
        asynchronous, question = str(call.asynchronous).lower(), str("question" in call.flags).lower()
        lines.append(f'    {{"{call.name}", {serve}, {asynchronous}, {question}}},')
    return "\n".join([*lines, "};", ""])


def main() -> None:
    """Write the files whose text has changed."""
    include, output = map(Path, sys.argv[1:])
    table = read_table(prototypes=Headers(include).prototypes)
    files = {
        "calls.h": calls_header(table),
        "shim_calls.cpp": shim_end(table),
        "worker_driver_calls.inc": worker_driver_end(table),
        "worker_custom_calls.inc": worker_custom_end(table),
        "driver_functions.inc": "".join(
            f"GPUKERNEL_DRIVER_FUNCTION({name})\n" for name in table.driver_functions
        ),
    }
    for name, text in files.items():
        path = output / name
        text = f"// Generated from calls.txt and cuda.h by codegen/remoting.py.\n{text}"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
