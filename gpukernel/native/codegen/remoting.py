"""Joins the prototypes of ``cuda.h`` with ``calls.txt`` into both ends of the regular calls.

``remoting.py INCLUDE OUTPUT_DIRECTORY`` writes

* ``call_numbers.h``: the number of each call, the same for both ends;
* ``shim_calls.cpp``: the exported functions that write a request and read its answer;
* ``worker_calls.inc``: the functions that read a request, call the driver and write the answer;
* ``driver_functions.inc``: what the worker looks up in the CUDA library that it loads.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from cuda_h import Headers, Parameter, Prototype

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

# Looked up by the worker beside the calls of the table, for what it serves by hand.
ALSO_LOOKED_UP = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuGetErrorName",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamAddCallback",
    "cuStreamBatchMemOp_v2",
    "cuModuleEnumerateFunctions",
    "cuLibraryEnumerateKernels",
    "cuFuncGetName",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpy3D_v2",
    "cuMemcpy3DAsync_v2",
    "cuModuleLoadDataEx",
    "cuLibraryLoadData",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLinkCreate_v2",
    "cuLinkAddData_v2",
    "cuLinkComplete",
    "cuPointerGetAttribute",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetAllocationGranularity",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuOccupancyMaxPotentialClusterSize",
]


@dataclass(frozen=True)
class Call:
    """One line of the table beside its prototype."""

    prototype: Prototype
    asynchronous: bool
    needs_context: bool
    by_hand: bool
    captured: bool
    uses_memory: bool
    may_be_of_graph: bool
    may_be_managed: bool
    waits: bool
    annotations: dict[str, str]

    def inputs(self) -> list[Parameter]:
        return [p for p in self.prototype.parameters if self.annotations.get(p.name) != "out"]

    def outputs(self) -> list[Parameter]:
        return [p for p in self.prototype.parameters if self.annotations.get(p.name) == "out"]


def read_table(headers: Headers) -> list[Call]:
    """The calls of ``calls.txt``; a line that does not fit ``cuda.h`` ends the build with its number."""
    calls = []
    for number, line in enumerate(Path(__file__).with_name("calls.txt").read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        kind, name, *notes = words
        prototype = headers.prototypes.get(name)
        annotations = dict(note.split(":") for note in notes)
        if kind.rstrip("!?~@&=") not in ("sync", "async", "global") or prototype is None:
            raise SystemExit(f"calls.txt:{number}: no such class or function: {line}")
        if unknown := annotations.keys() - {p.name for p in prototype.parameters}:
            raise SystemExit(f"calls.txt:{number}: {name} has no parameter {', '.join(unknown)}")
        for parameter in prototype.parameters:
            if "*" in parameter.type and parameter.name not in annotations:
                raise SystemExit(f"calls.txt:{number}: {name}: {parameter.name} points at what?")
        kind_name = kind.rstrip("!?~@&=")
        calls.append(
            Call(
                prototype,
                asynchronous=kind_name == "async",
                needs_context=kind_name != "global",
                by_hand="!" in kind,
                captured="?" in kind,
                uses_memory="~" in kind,
                may_be_of_graph="@" in kind,
                may_be_managed="&" in kind,
                waits="=" in kind,
                annotations=annotations,
            )
        )
    return calls


def _target(parameter: Parameter) -> str:
    return str(parameter.type).removesuffix("*").removeprefix("const ").strip()


def shim_function(call: Call) -> str:
    """The exported function of the shim."""
    name = call.prototype.name
    lines = [f"CUresult CUDAAPI {name}({call.prototype.declaration}) {{"]
    if not call.needs_context:
        lines.append("    GPUKERNEL_DEFAULT_DEVICE(connection);")
    else:
        lines.append("    GPUKERNEL_CURRENT(connection);")
    for p in call.prototype.parameters:
        if call.annotations.get(p.name) in ("text", "new", "in"):
            lines.append(f"    if (!{p.name}) return CUDA_ERROR_INVALID_VALUE;")
    arguments = ", ".join(["*connection", *(p.name for p in call.prototype.parameters)])
    for p in call.prototype.parameters:
        if call.annotations.get(p.name) == "text":  # not to be read in the middle of a request
            lines.append(f"    const std::string own_{p.name}({p.name});")
    if call.captured:
        lines.append(
            f"    if (capturing()) if (Captured captured = captured_{name}({arguments})) return *captured;"
        )
    if call.may_be_of_graph:
        lines.append(
            f"    if (has_graph_memory()) if (auto done = graph_memory_{name}({arguments})) return *done;"
        )
    if call.uses_memory:
        lines.append(f"    const DeviceWork work = managed_{name}({arguments});")
    if call.waits:
        lines.append(f"    const DeviceWait wait = managed_{name}({arguments});")
    if call.may_be_managed:
        lines.append(f"    if (has_managed()) if (auto done = managed_{name}({arguments})) return *done;")
    for p in call.inputs():
        if p.type == "CUstream":
            lines.append(f"    const uint64_t of_{p.name} = stream_name(*connection, {p.name});")
    lines.append(f"    Request request(*connection, Call::{name});")
    for p in call.inputs():
        note = call.annotations.get(p.name)
        if note == "text":
            lines.append(f"    request.text(own_{p.name});")
        elif note == "in":
            lines.append(f"    request.put(*{p.name});")
        elif note == "maybe":
            lines.append(f"    request.put<uint8_t>({p.name} != nullptr);")
            lines.append(f"    if ({p.name}) request.put(*{p.name});")
        elif note == "new":
            lines.append(f"    *{p.name} = reinterpret_cast<{_target(p)}>(request.name_handle());")
            if _target(p) == "CUstream":
                flags = next(q.name for q in call.inputs() if q.name.lower() == "flags")
                lines.append(f"    made_stream(*connection, *{p.name}, {flags});")
        elif p.type == "CUstream":
            lines.append(f"    request.put(of_{p.name});")
        elif p.type in HANDLES:
            lines.append(f"    request.put(reinterpret_cast<uint64_t>({p.name}));")
        else:
            lines.append(f"    request.put({p.name});")
    if call.asynchronous:
        lines.append("    return request.queue();")
    else:
        lines.append("    CUresult result = request.send();")
        lines.append(f'    if (result == CUDA_ERROR_NOT_SUPPORTED) return gpukernel::unsupported("{name}");')
        for p in call.outputs():
            if _target(p) in HANDLES:
                read = f"reinterpret_cast<{_target(p)}>(request.get<uint64_t>())"
            else:
                read = f"request.get<{_target(p)}>()"
            lines.append(
                f"    if (result == CUDA_SUCCESS) {{ auto value = {read}; if ({p.name}) *{p.name} = value; }}"
            )
        lines.append("    return wait.over(result);" if call.waits else "    return result;")
    return "\n".join([*lines, "}"])


def worker_function(call: Call) -> str:
    """The function of the worker that serves one regular request."""
    name = call.prototype.name
    lines = [f"CUresult serve_{name}(Session& session, Reader& in, Writer& out) {{"]
    for p in call.prototype.parameters:
        note = call.annotations.get(p.name)
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
        note = call.annotations.get(p.name)
        arguments.append(
            f"&{p.name}" if note in ("out", "in") else f"{p.name}.c_str()" if note == "text" else p.name
        )
    lines.append("    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;")
    lines.append(f"    CUresult result = session.cuda().{name}({', '.join(arguments)});")
    for p in call.outputs():
        kind = HANDLES.get(_target(p))
        parent = next((i.name for i in call.inputs() if i.type in HANDLES), "nullptr")
        value = f"session.name_of({p.name}, Kind::{kind}, {parent})" if kind else p.name
        lines.append(f"    if (result == CUDA_SUCCESS) out.put({value});")
    lines.append("    (void)out;")
    return "\n".join([*lines, "    return result;", "}"])


def main() -> None:
    include, output = map(Path, sys.argv[1:])
    headers = Headers(include)
    calls = read_table(headers)
    generated = "// Generated from cuda.h and calls.txt by codegen/remoting.py.\n"
    names = [call.prototype.name for call in calls]
    files = {
        "call_numbers.h": generated
        + '#pragma once\n#include <cstdint>\n#include "wire/protocol.h"\n\nnamespace gpukernel::wire {\nenum class Call : uint16_t {\n'
        + "".join(
            f"    {name}{' = FIRST_FUNCTION' if index == 0 else ''},\n" for index, name in enumerate(names)
        )
        + "    end\n};\n}  // namespace gpukernel::wire\n",
        "shim_calls.cpp": generated
        + '#define __CUDA_API_VERSION_INTERNAL\n#include "capture.h"\n#include "graph_memory.h"\n#include "managed.h"\n#include "request.h"\n\nusing namespace gpukernel::shim;\nusing gpukernel::wire::Call;\n\n'
        + "namespace gpukernel::shim {  // in capture.cpp\n"
        + "".join(
            f"Captured captured_{call.prototype.name}(Connection&{''.join(', ' + p.type for p in call.prototype.parameters)});\n"
            for call in calls
            if call.captured
        )
        + "}\n\nnamespace gpukernel::shim {  // in managed.cpp\n"
        + "".join(
            f"{'DeviceWork' if call.uses_memory else 'DeviceWait' if call.waits else 'std::optional<CUresult>'} managed_{call.prototype.name}"
            f"(Connection&{''.join(', ' + p.type for p in call.prototype.parameters)});\n"
            for call in calls
            if call.uses_memory or call.may_be_managed or call.waits
        )
        + "}\n\nnamespace gpukernel::shim {  // in graph_memory.cpp\n"
        + "".join(
            f"std::optional<CUresult> graph_memory_{call.prototype.name}"
            f"(Connection&{''.join(', ' + p.type for p in call.prototype.parameters)});\n"
            for call in calls
            if call.may_be_of_graph
        )
        + "}\n\n"
        + 'extern "C" {\n'
        + "\n\n".join(shim_function(call) for call in calls)
        + "\n}\n",
        "worker_calls.inc": generated
        + "\n\n".join(
            f"CUresult serve_{call.prototype.name}(Session& session, Reader& in, Writer& out);"
            if call.by_hand
            else worker_function(call)
            for call in calls
        )
        + "\n\nconst Served served_calls[] = {\n"
        + "".join(
            f'    {{"{call.prototype.name}", serve_{call.prototype.name}, {str(call.asynchronous).lower()}}},\n'
            for call in calls
        )
        + "};\n",
        "driver_functions.inc": generated
        + "".join(f"GPUKERNEL_DRIVER_FUNCTION({name})\n" for name in sorted({*names, *ALSO_LOOKED_UP})),
    }
    for name, text in files.items():
        path = output / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
