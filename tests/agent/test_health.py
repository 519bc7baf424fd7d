"""The health of a server's devices, as the agent finds it."""

from __future__ import annotations

from pathlib import Path

from gpukernel.agent.health import Health
from gpukernel.agent.inventory import Inventory
from gpukernel.remoting.worker import DeviceDescription


def test_what_an_administrator_wrote_down_is_a_fault(tmp_path: Path) -> None:
    devices = tuple(DeviceDescription(i, "T4", f"uuid-{i}", 2**34, "7.5", 40) for i in range(3))
    health = Health(Inventory(devices, "libcuda.so.1", "t4:3"), tmp_path)
    assert health.check() == {}
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "1").write_text("the fan\n rattles " + "x" * 5000)
    (tmp_path / "faults" / "2").write_text("")
    (tmp_path / "faults" / "7").write_text("no such device")
    found = health.check()
    assert set(found) == {1, 2}
    assert found[1].startswith("the fan rattles xxx")
    assert len(found[1]) == 200
    assert found[2] == "taken out by hand"
    (tmp_path / "faults" / "1").unlink()
    (tmp_path / "faults" / "2").unlink()
    assert health.check() == {}
