"""A GPU server whose driver counts its devices anew, or that loses one, with a program on it; real processes from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpukernel.common.address import socket_path
from tests.cli.test_commands import Service
from tests.conftest import eventually

pytestmark = pytest.mark.slow

LOOK = """
from cuda.bindings import driver as d
d.cuInit(0)
device = d.cuDeviceGet(0)[1]
context = d.cuDevicePrimaryCtxRetain(device)[1]
d.cuCtxSetCurrent(context)
for _ in iter(input, "end"):
    print(d.cuDeviceGetName(64, device)[1].split(b"\\0")[0].decode(), int(d.cuMemAlloc(1 << 20)[0]), flush=True)
"""


def test_a_program_stays_on_its_device_and_ends_with_it(tmp_path: Path) -> None:
    state = tmp_path / "pool"
    pool = Service("pool", "--state", str(state))
    agents: list[Service] = []

    def agent(simulate: str) -> None:
        for before in agents:
            before.process.kill()
            before.process.communicate()
        where = ("--pool", f"unix:{socket_path(state)}", "--state", str(tmp_path / "agent"))
        agents.append(Service("agent", *where, "--name", "gpu1", "--simulate", simulate))
        assert "The agent is ready" in agents[-1].line

    environment = {**os.environ, "GPUKERNEL_STATE": str(state)}
    cli = [sys.executable, "-m", "gpukernel.cli"]

    def table(name: str, *options: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [*cli, name, "--json", *options], env=environment, capture_output=True, text=True, check=True
        )
        return list(json.loads(done.stdout))

    def devices() -> Mapping[str, tuple[str, str]]:
        return {d["id"]: (d["name"].split()[1][:4], d["uuid"]) for d in table("list-gpus") if d["available"]}

    try:
        assert "The pool is ready" in pool.line
        agent("v100,t4")
        before = devices()
        t4 = before["gpu1/1"][1]
        assert (len(before), before["gpu1/1"][0], t4[:4]) == (2, "T4", "GPU-")
        program = subprocess.Popen(
            [*cli, "run", "-p", "0.5", "--filter", f"uuid={t4}", "--", sys.executable, "-u", "-c", LOOK],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdin is not None
        assert program.stdout is not None

        def look() -> str:
            print("look", file=program.stdin, flush=True)
            return program.stdout.readline() if program.stdout else ""

        assert look() == "Tesla T4 (simulated) 0\n"
        agent("t4,v100")
        assert eventually(lambda: devices() == before)
        assert look() == "Tesla T4 (simulated) 0\n"
        (lease,) = table("leases")
        (piece,) = lease["slices"]
        assert (lease["state"], piece["device_id"], piece["uuid"]) == ("live", "gpu1/1", t4)
        # A new worker starts on the T4 as well, which stands first now.
        code = LOOK.replace('iter(input, "end")', "range(1)")
        other = [*cli, "run", "-p", "0.25", "--filter", "device=gpu1/1", "--", sys.executable, "-c", code]
        found = subprocess.run(other, env=environment, capture_output=True, text=True, check=False)
        assert found.stdout == "Tesla T4 (simulated) 0\n", found.stderr
        agent("v100")
        assert eventually(lambda: devices() == {"gpu1/0": before["gpu1/0"]})
        eventually(lambda: table("leases") == [])
        ended = next(one for one in table("leases", "--all") if one["id"] == lease["id"])
        reason = f"its device gpu1/1 ({t4}) is gone from GPU server gpu1"
        assert ended["end_reason"] == reason
        print("look\nend", file=program.stdin, flush=True)
        _, said = program.communicate(timeout=60)
        assert reason in said
        agent("v100,t4")
        assert eventually(lambda: devices() == before)
    finally:
        for service in (*agents, pool):
            service.process.kill()
            service.process.communicate()
