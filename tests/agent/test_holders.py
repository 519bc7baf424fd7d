"""Whom workers work for, as the agent notes it down."""

from __future__ import annotations

from pathlib import Path

from gpukernel.agent.holders import Holders
from gpukernel.common import logs


def test_an_agent_knows_after_a_restart_whom_its_workers_work_for(tmp_path: Path) -> None:
    first = Holders(tmp_path / "holders", "gpu1")
    first.begin(("a-1", 0), "anna", "ml101")
    first.begin(("b", 1), "ben", "")
    again = Holders(tmp_path / "holders", "gpu1")
    assert again.about(("a-1", 0)) == logs.fields(
        lease="a-1", person="anna", course="ml101", server="gpu1", device="gpu1/0"
    )
    again.keep([("b", 1)])
    assert [path.name for path in (tmp_path / "holders").iterdir()] == ["b-1.json"]
