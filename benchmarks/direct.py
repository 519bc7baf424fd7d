"""The cost of a call in direct mode: through its library, and in the driver behind it, in one process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.interleaving import compiled
from benchmarks.report import Table
from gpukernel.client.pool import PoolClient, resolve_address
from gpukernel.common.machine import machine_identity
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.embedded import EmbeddedPool
from gpukernel.remoting.environment import program_environment


def _figures(environment: dict[str, str]) -> dict[str, tuple[float, float]]:
    with compiled("direct_calls", "-ldl") as program:
        answer = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    return {name: (ours, theirs) for name, (ours, theirs) in json.loads(answer.stdout).items()}


async def measure() -> list[Table]:
    request = SliceRequest(share=0.05, mode="direct", machine=machine_identity(), user=os.getuid())
    with EmbeddedPool("v100:1", options=("--direct",)) as pool, tempfile.TemporaryDirectory() as name:
        async with PoolClient(resolve_address(None, pool.state)) as client:
            lease = await client.acquire_now("benchmark", request, Holder("benchmark"))
            async with client.keep_alive(lease):
                environment = program_environment(Path(name, "lease"), lease, os.environ)
                figures = _figures(environment)
    rows = [
        [call, f"{ours:.1f} ns", f"{theirs:.1f} ns", f"{ours - theirs:.1f} ns", ""]
        for call, (ours, theirs) in figures.items()
    ]
    return [
        Table(
            "Direct mode",
            ["call", "through the library", "in the driver", "difference", "aim"],
            rows,
            notes=(
                "The same calls of one process, from C++, interleaved; medians. The driver is the simulated GPU's. A call that is only "
                "passed on is one jump more; a launch without another lease's work on the device reads a clock and counts; memory is "
                "charged to the slice, in a table that its programs share."
            ),
        )
    ]
