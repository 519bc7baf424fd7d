"""Workers' output in the agent's log."""

from __future__ import annotations

import re
from pathlib import Path

from gpukernel.agent.worker_log import WorkerLog


def test_of_a_worker_that_writes_much_the_log_has_a_little_and_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:
    file = tmp_path / "worker.log"
    file.write_text("one\ntwo\nhalf")
    assert WorkerLog(tmp_path).new_lines() == ["one", "two"]
    said = WorkerLog(tmp_path)  # of the next agent
    assert said.new_lines() == []
    with file.open("a") as more:
        more.write(" a line\n")
        more.writelines(f"line {number}\n" for number in range(100_000))
    lines = said.new_lines()
    assert lines[:2] == ["half a line", "line 0"]
    assert len(lines) == 51
    assert re.search(r"^\d+ lines and \d+ bytes more are left out\.$", lines[-1])
    assert said.new_lines() == []
    with file.open("a") as more:
        more.write("last words")
    assert said.new_lines(all_of_it=True) == ["last words"]
