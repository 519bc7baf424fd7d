"""ResourceSlices: what the scheduler sees of the pool's devices, and how it changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.resources.resource_v1 import ResourceSlice

from gpukernel.common.model import Device
from gpukernel.engines.kubernetes.classes import ClassLimits, class_manifests
from gpukernel.engines.kubernetes.names import model_name
from gpukernel.engines.kubernetes.publisher import Publisher
from gpukernel.engines.kubernetes.quantities import bytes_of, quantity
from gpukernel.engines.kubernetes.slices import (
    MOST_DEVICES,
    SliceSettings,
    arranged,
    slice_manifest,
    spec_of,
)
from tests.engines.kubernetes.cluster import Cluster

GIB = 2**30
SETTINGS = SliceSettings(0.02, {"gpu": "far", "gpu1": "near"}, {"gpu": "570.86.10"})


def device(number: int = 0, **changes: object) -> Device:
    made = Device(
        f"gpu1/{number}",
        "gpu1",
        number,
        "Tesla V100-SXM2-16GB (simulated)",
        16 * GIB,
        available=False,
        compute_capability="7.0",
        multiprocessors=80,
        uuid=f"GPU-{number:08x}-0000-0000-0000-00000000ABCD",
        decided_by="kubernetes",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class Pool:
    """Devices that a test changes, asked for as a pool's."""

    def __init__(self, *devices: Device) -> None:
        self.known = list(devices)

    async def devices(self) -> list[Device]:
        return self.known


class Watched:
    """A client of the API that says before each of its writes which one it is, from 1 on."""

    def __init__(self, api: AsyncClient, before: Callable[[int], object]) -> None:
        self._api, self._before, self._writes = api, before, 0

    def __getattr__(self, name: str) -> Any:
        done = getattr(self._api, name)
        if name in ("create", "replace", "delete"):
            self._writes += 1
            self._before(self._writes)
        return done


def publish(
    cluster: Cluster, pool: Pool, times: int = 1, before: Callable[[int], object] = lambda number: None
) -> None:
    async def once() -> None:
        api = AsyncClient(KubeConfig.from_file(str(cluster.kubeconfig)).get())
        publisher = Publisher(Watched(api, before), pool, SETTINGS)  # type: ignore[arg-type]
        try:
            for _ in range(times):
                await publisher.publish()
        finally:
            await api.close()

    asyncio.run(once())


def shown(cluster: Cluster) -> list[ResourceSlice]:
    return sorted(cluster.slices(), key=lambda one: str(one.metadata.name))


def versions(cluster: Cluster) -> list[str]:
    return [str(one.metadata.resourceVersion) for one in shown(cluster)]


def pool_of(one: ResourceSlice) -> tuple[int, int]:
    return one.spec.pool.generation, one.spec.pool.resourceSliceCount


def test_a_device_is_shown_by_its_uuid_with_what_selectors_need() -> None:
    ((one,),) = arranged([device()], SETTINGS)
    assert one["name"] == "gpu-00000000-0000-0000-0000-00000000abcd"
    assert one["allowMultipleAllocations"] is True
    assert one["attributes"] == {
        "uuid": {"string": "GPU-00000000-0000-0000-0000-00000000ABCD"},
        "model": {"string": "Tesla V100-SXM2-16GB"},
        "server": {"string": "gpu1"},
        "roundTrip": {"string": "near"},
        "computeCapability": {"version": "7.0.0"},
        "driverVersion": {"version": "570.86.10"},
        "multiprocessors": {"int": 80},
        "simulated": {"bool": True},
    }
    assert one["capacity"]["memory"] == {
        "value": "16Gi",
        "requestPolicy": {"default": "327Mi", "validRange": {"min": "1Mi", "max": "16Gi", "step": "1Mi"}},
    }
    assert "taints" not in one
    for version in ("1.34", "1.35", "1.36", "1.37"):
        kubernetes_validate.validate(slice_manifest(0, spec_of([one], 1, 1)), version, strict=True)


def test_names_that_are_longer_than_attributes_may_be_are_cut_and_not_refused_with_all_devices() -> None:
    ((one,),) = arranged([device(name="Ü" * 40 + " (simulated)", server="é" * 100)], SETTINGS)
    found = {name: one["attributes"][name]["string"] for name in ("model", "server")}
    assert found == {"model": "Ü" * 32, "server": "é" * 32}
    (_, of_model) = class_manifests([("Ü", model_name("Ü" * 40))], ClassLimits())
    assert f'"{"Ü" * 32}"' in of_model["spec"]["selectors"][1]["cel"]["expression"]


@pytest.mark.parametrize(
    ("changes", "taints"),
    [
        ({}, []),
        ({"trouble": "drained"}, [("gpukernel.io/drained", "drained", "NoSchedule")]),
        ({"trouble": "away"}, [("gpukernel.io/drained", "away", "NoSchedule")]),
        ({"next_decider": "pool"}, [("gpukernel.io/drained", "leaving", "NoSchedule")]),
        (
            {"trouble": "its server has it no more"},
            [("gpukernel.io/failed", "its-server-has-it-no-more", "NoExecute")],
        ),
    ],
)
def test_a_device_in_trouble_takes_no_new_claims_and_a_failed_one_ends_its_pods(
    changes: dict[str, str], taints: list[tuple[str, str, str]]
) -> None:
    ((one,),) = arranged([device(**changes)], SETTINGS)
    assert [(t["key"], t["value"], t["effect"]) for t in one.get("taints", [])] == taints
    kubernetes_validate.validate(slice_manifest(0, spec_of([one], 1, 1)), "1.34", strict=True)


def test_only_devices_that_kubernetes_decides_over_are_shown() -> None:
    assert (
        arranged([device(0, decided_by="pool"), device(1, decided_by="slurm"), device(2, uuid="")], SETTINGS)
        == []
    )


def test_nothing_is_written_where_nothing_has_changed(cluster: Cluster) -> None:
    # The API adds a time to the taints.
    pool = Pool(device(0), device(1, trouble="drained"), device(2, trouble="gone"))
    publish(cluster, pool)
    before = versions(cluster)
    publish(cluster, pool)
    assert versions(cluster) == before


def test_a_change_of_one_device_is_one_write_and_the_generation_stays(cluster: Cluster) -> None:
    pool = Pool(*map(device, range(MOST_DEVICES + 2)))
    publish(cluster, pool)
    assert [pool_of(one) for one in shown(cluster)] == [(1, 2), (1, 2)]
    before = versions(cluster)
    pool.known[0] = replace(pool.known[0], trouble="drained")
    publish(cluster, pool)
    assert [pool_of(one) for one in shown(cluster)] == [(1, 2), (1, 2)]
    after = versions(cluster)
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)
    del pool.known[0]  # no other device moves up into its place
    publish(cluster, pool)
    assert [len(one.spec.devices) for one in shown(cluster)] == [MOST_DEVICES - 1, 2]
    assert versions(cluster)[1] == before[1]


def test_another_number_of_slices_is_another_generation_in_all_of_them(cluster: Cluster) -> None:
    pool = Pool(*map(device, range(MOST_DEVICES)))
    publish(cluster, pool)
    pool.known.append(device(MOST_DEVICES))
    publish(cluster, pool)
    assert [pool_of(one) for one in shown(cluster)] == [(2, 2), (2, 2)]
    del pool.known[MOST_DEVICES:]
    publish(cluster, pool)
    assert [pool_of(one) for one in shown(cluster)] == [(3, 1)]
    pool.known.clear()
    publish(cluster, pool)
    assert shown(cluster) == []


@pytest.mark.parametrize("writes", range(1, 4))
def test_a_publisher_that_is_killed_on_the_way_is_followed_by_a_whole_generation(
    cluster: Cluster, writes: int
) -> None:
    pool = Pool(*map(device, range(2 * MOST_DEVICES)))
    publish(cluster, pool)
    pool.known.append(device(2 * MOST_DEVICES))

    def until_killed(number: int) -> None:
        if number > writes:
            raise ConnectionError("killed")

    with contextlib.suppress(ConnectionError) if writes == 3 else pytest.raises(ConnectionError):
        publish(cluster, pool, before=until_killed)
    assert {pool_of(one)[0] for one in shown(cluster)} == ({1, 2} if writes == 1 else {2})
    publish(cluster, pool)
    generation = 2 if writes == 3 else 3
    assert [pool_of(one) for one in shown(cluster)] == [(generation, 3)] * 3
    names = [one.name for part in shown(cluster) for one in part.spec.devices]
    assert len(names) == len(set(names)) == 2 * MOST_DEVICES + 1


def test_what_the_api_leaves_out_is_said_once_and_not_written_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    server = cluster.stand_in
    if server is None:
        pytest.skip("needs a server without feature gates")
    server.unknown = {"allowMultipleAllocations", "taints"}
    publish(cluster, Pool(device(0, trouble="drained")), times=3)
    assert [method for method, path in server.requests if "resourceslices" in path and method != "GET"] == [
        "POST"
    ]
    assert len([one for one in caplog.messages if "DRAConsumableCapacity" in one]) == 1


def test_an_old_view_is_refused_and_the_next_look_is_right(cluster: Cluster) -> None:
    pool = Pool(device(0))
    publish(cluster, pool)
    pool.known[0] = replace(pool.known[0], trouble="drained")
    (known,) = (str(one.metadata.name) for one in shown(cluster))

    def somebody_else_is_quicker(number: int) -> None:
        cluster.api.patch(ResourceSlice, known, {"metadata": {"annotations": {"a": "b"}}})

    with pytest.raises(ApiError) as caught:
        publish(cluster, pool, before=somebody_else_is_quicker)
    assert caught.value.status.code == 409
    publish(cluster, pool)
    assert [one.spec.devices[0].taints[0].effect for one in shown(cluster)] == ["NoSchedule"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("655Mi", 655 << 20),
        ("1.5Gi", 3 << 29),
        ("2e9", 2 * 10**9),
        ("1k", 1000),
        ("1500m", 2),
        ("17", 17),
        (".5Ki", 512),
    ],
)
def test_quantities_are_bytes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "1 GiB", "4GB", "-1Mi", "Mi", "0x10"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        bytes_of(text)


def test_quantities_are_written_as_the_api_does() -> None:
    assert [quantity(size) for size in (655 << 20, 16 << 30, 1 << 40, 0)] == ["655Mi", "16Gi", "1Ti", "0"]
