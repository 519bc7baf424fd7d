"""The numbers of a server's devices, kept by UUID."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpukernel.agent.inventory import Inventory, numbered, numbers_of_workers
from gpukernel.remoting.worker import DeviceDescription


def real(*uuids: str) -> Inventory:
    devices = (DeviceDescription(i, "T4", uuid, 2**34, "7.5", 40) for i, uuid in enumerate(uuids))
    return Inventory(tuple(devices), "libcuda.so.1")


def numbers(state: Path, uuids: Sequence[str], living: Sequence[int] = ()) -> dict[str, int]:
    found = numbered(real(*uuids), state, "s", "machine", living)
    for number, device in enumerate(found.devices):
        assert found.uuid(device.index) == device.uuid
        assert found.number(device.uuid) == device.index
        assert found.worker_environment(device.index)["CUDA_VISIBLE_DEVICES"] == device.uuid
        assert found.position(device.index) == uuids.index(device.uuid)
        assert number == 0 or found.devices[number - 1].index < device.index
    return {device.uuid: device.index for device in found.devices}


def test_a_driver_that_counts_anew_changes_no_number(tmp_path: Path) -> None:
    assert numbers(tmp_path, "abc") == {"a": 0, "b": 1, "c": 2}
    assert numbers(tmp_path, "cab") == {"a": 0, "b": 1, "c": 2}
    assert numbers(tmp_path, "ac") == {"a": 0, "c": 2}
    assert numbered(real("a", "c"), tmp_path, "s", "machine", ()).gone == {1: "b"}
    assert numbers(tmp_path, "bac") == {"a": 0, "b": 1, "c": 2}


def test_a_device_that_was_replaced_leaves_its_number_once_no_worker_lives_there(tmp_path: Path) -> None:
    numbers(tmp_path, "ab")
    assert numbers(tmp_path, "ax", living=[1]) == {"a": 0, "x": 2}
    assert numbered(real("a", "x"), tmp_path, "s", "machine", [1]).uuid(1) == "b"
    (tmp_path / "other").mkdir()
    numbers(tmp_path / "other", "ab")
    assert numbers(tmp_path / "other", "ax") == {"a": 0, "x": 1}


def test_the_first_numbers_are_the_drivers_under_which_workers_of_before_live(tmp_path: Path) -> None:
    assert numbers(tmp_path, "ab", living=[0, 1]) == {"a": 0, "b": 1}
    (tmp_path / "devices.json").write_text("nonsense")
    assert numbers(tmp_path, "ba") == {"b": 0, "a": 1}


def test_workers_are_found_by_what_they_left(tmp_path: Path) -> None:
    for name in ("workers/abc-0", "workers/abc-12", "workers/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "direct").mkdir()
    (tmp_path / "direct/abc-3.json").touch()
    assert numbers_of_workers(tmp_path) == {0, 12, 3}


def test_simulated_devices_have_uuids_that_stay(tmp_path: Path) -> None:
    def uuids(state: str, models: Sequence[str], server: str = "s", machine: str = "m") -> dict[str, str]:
        (tmp_path / state).mkdir(exist_ok=True)
        devices = (DeviceDescription(i, model, "00", 1, "7.0", 80) for i, model in enumerate(models))
        found = numbered(Inventory(tuple(devices), "", "some"), tmp_path / state, server, machine, ())
        assert [found.worker_device(d.index) for d in found.devices] == [
            found.position(d.index) for d in found.devices
        ]
        return {device.uuid: device.name for device in found.devices}

    first = uuids("a", ["V100", "V100", "T4"])
    assert len(first) == 3
    assert all(len(uuid) == 40 and uuid.startswith("GPU-") for uuid in first)
    assert uuids("b", ["T4", "V100", "V100"]) == first  # another state directory, another order
    for other in (uuids("c", ["V100"], server="t"), uuids("d", ["V100"], machine="n")):
        assert not other.keys() & first.keys()
