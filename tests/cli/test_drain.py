"""``gpukernel drain`` and ``undrain`` against a real pool."""

from __future__ import annotations

import json

from tests.cli.held_slices import hold, over
from tests.conftest import Pool


def test_drain_waits_until_the_deadline_has_ended_what_is_left(gpu1_pool: Pool) -> None:
    program = hold(gpu1_pool)
    drained = gpu1_pool.gpukernel("drain", "gpu1", "--deadline", "2s", "--wait")
    assert drained.returncode == 0, drained.stderr
    assert drained.stdout.splitlines() == [
        "gpu1 gets no new leases; 1 are left, for 2s at most.",
        "gpu1 is empty.",
    ]
    reasons = {
        lease["end_reason"] for lease in json.loads(gpu1_pool.gpukernel("leases", "--all", "--json").stdout)
    }
    assert "its GPU server gpu1 was drained" in reasons
    refused = gpu1_pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true")
    assert refused.returncode == 5
    assert gpu1_pool.gpukernel("undrain", "gpu1").returncode == 0
    assert gpu1_pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true").returncode == 0
    over(program)
    unknown = gpu1_pool.gpukernel("drain", "gpu7")
    assert (unknown.returncode, unknown.stderr) == (5, "gpukernel: The pool has no GPU server gpu7.\n")


def test_a_server_without_a_name_is_asked_for(own_pool: Pool) -> None:
    for command in ("drain", "undrain"):
        refused = own_pool.gpukernel(command, "")
        assert (refused.returncode, refused.stderr) == (
            2,
            "gpukernel: Name the GPU server, as “gpukernel list-gpus” shows it.\n",
        )
