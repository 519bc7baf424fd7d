"""What the shim costs: driver calls in process, over a unix socket and over TCP, beside the bare sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from benchmarks import sockets
from benchmarks.memory import memory_bandwidth
from benchmarks.pool import leased
from benchmarks.report import Table, gigabytes_per_second, microseconds, ratio
from gpukernel import native

SHARE = 0.05


def _figures(program: str, environment: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", f"benchmarks.{program}"]
    answer = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {answer.stdout}{answer.stderr}")
    return dict(json.loads(answer.stdout))


TRANSPORTS = {  # name → (kind of socket, shared memory)
    "shared memory": ("unix", "1"),
    "unix socket": ("unix", "0"),
    "TCP": ("tcp", "0"),
}
BARE = {"stream": "bare stream", "copy": "bare copy"}


async def measure() -> list[Table]:
    alone = {
        **os.environ,
        "LD_LIBRARY_PATH": str(native.simgpu_library().parent),
        "GPUKERNEL_SIMGPU": "v100:1",
    }
    in_process = _figures("driver_calls", alone)
    step_in_process = _figures("training_step", alone)["step"]
    bare = {kind: sockets.measure(kind) for kind in ("unix", "tcp")}
    memory = memory_bandwidth()
    remote, steps = {}, {}
    for name, (kind, shared) in TRANSPORTS.items():
        async with leased(SHARE, transport=kind) as environment:
            environment["GPUKERNEL_SHARED_MEMORY"] = shared
            remote[name] = _figures("driver_calls", environment)
            steps[name] = _figures("training_step", environment)["step"]
    runs = (in_process, *remote.values())
    socket_of = {name: bare[kind] for name, (kind, _) in TRANSPORTS.items()}

    calls = Table(
        "Calls through the shim",
        ["figure", "in process", *TRANSPORTS, "aim"],
        notes=(
            "Launch and attribute: the caller's cost of one call from Python's ctypes, whose own cost is in every column "
            f"(an empty call takes {microseconds(in_process['empty_ctypes_call'])} in process). "
            "A synchronous call copies four bytes to the host. Bare ping-pong: 64 bytes there and back between two processes, "
            "over a unix socket for the columns of shared memory and the unix socket."
        ),
    )
    names = {
        "launch": ("a launch", "≤ 1 µs above in process"),
        "launch_and_synchronize": ("a launch and a wait for it", ""),
        "synchronous_call": ("a synchronous call", ""),
        "attribute": ("a cached attribute", "≤ 0.2 µs above in process"),
    }
    for key, (name, aim) in names.items():
        calls.rows.append([name, *(microseconds(run[key]) for run in runs), aim])
    calls.rows.append(
        ["bare ping-pong", "", *(microseconds(socket_of[name]["ping_pong"]) for name in TRANSPORTS), ""]
    )
    calls.rows.append(
        [
            "synchronous call ÷ ping-pong",
            "",
            *(ratio(remote[name]["synchronous_call"], socket_of[name]["ping_pong"]) for name in TRANSPORTS),
            "≤ 0.3 shared memory, ≤ 1.3 sockets",
        ]
    )

    copies = Table(
        "Copies of 256 MiB",
        ["direction", "in process", *TRANSPORTS, "aim"],
        notes=(
            "Bare stream: the same MiB again and again, from and into the processor's cache. Bare copy: from one buffer of 256 MiB into another "
            f"over the same socket, as these copies have to. One core's memcpy moves {gigabytes_per_second(memory)}."
        ),
    )
    for key, title in (("host_to_device", "host → device"), ("device_to_host", "device → host")):
        copies.rows.append([title, *(gigabytes_per_second(run[key]) for run in runs), ""])
        for bare_key, name_of_bare in BARE.items():
            ratios = (ratio(remote[name][key], socket_of[name][bare_key]) for name in TRANSPORTS)
            copies.rows.append([f"{title} ÷ {name_of_bare}", "", *ratios, "≥ 0.85"])
    for bare_key, name_of_bare in BARE.items():
        speeds = (gigabytes_per_second(socket_of[name][bare_key]) for name in TRANSPORTS)
        copies.rows.append([name_of_bare, "", *speeds, ""])
    training = Table(
        "A training step",
        ["figure", "in process", *TRANSPORTS, "aim"],
        [
            [
                "300 calls, 4 places that wait",
                f"{step_in_process * 1e3:.1f} ms",
                *(f"{steps[name] * 1e3:.1f} ms" for name in TRANSPORTS),
                "",
            ],
            ["÷ in process", "", *(ratio(steps[name], step_in_process) for name in TRANSPORTS), "≤ 1.15"],
        ],
    )
    return [calls, copies, training]
