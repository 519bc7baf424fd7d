"""What the shim costs: driver calls in process, over a unix socket and over TCP, beside the bare sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from benchmarks import sockets
from benchmarks.pool import leased
from benchmarks.report import Table, gigabytes_per_second, microseconds, ratio
from gpukernel import native

SHARE = 0.05


def _driver_calls(environment: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.driver_calls"]
    answer = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {answer.stdout}{answer.stderr}")
    return dict(json.loads(answer.stdout))


async def measure() -> list[Table]:
    in_process = _driver_calls(
        {**os.environ, "LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100:1"}
    )
    tables = []
    bare = {kind: sockets.measure(kind) for kind in ("unix", "tcp")}
    remote = {}
    for kind in ("unix", "tcp"):
        async with leased(SHARE, transport=kind) as environment:
            remote[kind] = _driver_calls(environment)

    calls = Table(
        "Calls through the shim",
        ["figure", "in process", "unix socket", "TCP", "aim"],
        notes=(
            "Launch and attribute: the caller's cost of one call from Python's ctypes, whose own cost is in every column "
            f"(an empty call takes {microseconds(in_process['empty_ctypes_call'])} in process). "
            "A synchronous call copies four bytes to the host. Bare ping-pong: 64 bytes there and back between two processes."
        ),
    )
    names = {
        "launch": ("a launch", "≤ 1 µs above in process"),
        "launch_and_synchronize": ("a launch and a wait for it", ""),
        "synchronous_call": ("a synchronous call", ""),
        "attribute": ("a cached attribute", "≤ 0.2 µs above in process"),
    }
    for key, (name, aim) in names.items():
        figures = [microseconds(run[key]) for run in (in_process, remote["unix"], remote["tcp"])]
        calls.rows.append([name, *figures, aim])
    calls.rows.append(
        ["bare ping-pong", "", *(microseconds(bare[kind]["ping_pong"]) for kind in ("unix", "tcp")), ""]
    )
    calls.rows.append(
        [
            "synchronous call ÷ ping-pong",
            "",
            *(ratio(remote[k]["synchronous_call"], bare[k]["ping_pong"]) for k in ("unix", "tcp")),
            "≤ 1.3",
        ]
    )
    tables.append(calls)

    copies = Table("Copies of 256 MiB", ["direction", "in process", "unix socket", "TCP", "aim"])
    for key, name in (("host_to_device", "host → device"), ("device_to_host", "device → host")):
        copies.rows.append(
            [
                name,
                *(gigabytes_per_second(run[key]) for run in (in_process, remote["unix"], remote["tcp"])),
                "",
            ]
        )
        copies.rows.append(
            [
                f"{name} ÷ bare stream",
                "",
                *(ratio(remote[k][key], bare[k]["stream"]) for k in ("unix", "tcp")),
                "≥ 0.85",
            ]
        )
    copies.rows.append(
        ["bare stream", "", *(gigabytes_per_second(bare[k]["stream"]) for k in ("unix", "tcp")), ""]
    )
    tables.append(copies)
    return tables
