"""The health of devices as a kubelet watches it: what is said of which trouble, and that the stream follows the pool."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpukernel.engines.kubernetes.health import health_of
from gpukernel.engines.kubernetes.names import device_name
from tests.conftest import Pool, eventually
from tests.engines.kubernetes.cluster import Cluster
from tests.engines.kubernetes.fake_kubelet import Kubelet
from tests.engines.kubernetes.test_node import kubelet  # noqa: F401
from tests.engines.kubernetes.test_slices import device

UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2


@pytest.mark.parametrize(
    ("trouble", "health", "said"),
    [
        ("", HEALTHY, ""),
        ("drained", HEALTHY, "gpu1/0: drained."),
        ("its agent is being stopped", HEALTHY, "gpu1/0: its agent is being stopped."),
        ("away", UNKNOWN, "GPU server gpu1 is away."),
        ("its server has it no more", UNHEALTHY, "gpu1/0: its server has it no more."),
        ("x" * 2000, UNHEALTHY, "gpu1/0: " + "x" * 1016),
    ],
)
def test_only_a_device_without_memory_behind_its_leases_is_unhealthy(
    trouble: str, health: int, said: str
) -> None:
    assert health_of(device(0, trouble=trouble)) == (health, said)


def test_the_stream_follows_the_pool(cluster: Cluster, pool: Pool, kubelet: Kubelet) -> None:  # noqa: F811
    (own,) = [one for one in pool.devices() if one.decided_by == "kubernetes"]
    heard = kubelet.health()
    # The pool's other device is not the driver's, and not named.
    assert next(heard) == {device_name(own.uuid): ("HEALTHY", "")}

    def until(wanted: dict[str, Any]) -> None:
        end = time.monotonic() + 60
        while next(heard) != wanted:
            assert time.monotonic() < end

    assert pool.gpukernel("drain", own.server).returncode == 0
    until({device_name(own.uuid): ("HEALTHY", f"{own.label}: drained.")})
    assert pool.gpukernel("undrain", own.server).returncode == 0
    until({device_name(own.uuid): ("HEALTHY", "")})


def test_a_stream_does_not_keep_the_plugin_from_ending(kubelet: Kubelet) -> None:  # noqa: F811
    heard = kubelet.health()
    next(heard)
    process = kubelet.process
    assert process is not None
    process.terminate()
    assert list(heard) == []  # it ends as streams end, and is not broken off
    eventually(lambda: process.poll() == 0, 10)
