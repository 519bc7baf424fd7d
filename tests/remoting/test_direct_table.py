"""A slice's table in direct mode, as the agent reads and writes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpukernel.remoting.direct_table import Table, TableBroken
from tests.remoting.conftest import MIB


def test_a_measure_that_came_too_late_changes_nothing(tmp_path: Path) -> None:
    table = Table.make(tmp_path / "table", 64 * MIB, 0.1, None, bytes(1664))
    with pytest.raises(FileExistsError):
        Table.make(tmp_path / "table", 64 * MIB, 0.1, None, bytes(1664))
    file = os.open(table.path, os.O_RDWR)
    os.pwrite(file, (1).to_bytes(4, "little"), 48)  # as a program does that takes the first slot
    os.pwrite(file, (77).to_bytes(4, "little"), 4096)
    os.pwrite(file, (5 * MIB).to_bytes(8, "little"), 4096 + 24)
    (slot,) = table.slots()
    table.measured(slot, 8 * MIB, 1.5)
    assert table.slots()[0].overhead_bytes == 3 * MIB
    os.pwrite(file, (6 * MIB).to_bytes(8, "little"), 4096 + 24)  # it took more meanwhile
    table.measured(slot, 20 * MIB, 1.5)
    assert table.slots()[0].overhead_bytes == 3 * MIB
    table.clear(slot)
    assert table.slots() == []
    os.truncate(table.path, 10)
    with pytest.raises(TableBroken, match="cut short"):
        table.slots()
    os.close(file)
