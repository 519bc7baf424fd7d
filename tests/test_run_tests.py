"""`tools.run_tests`: a failure is repeated alone, and a defect stays one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.run_tests import FEW, run

UNSTEADY = "import os\ndef test_unsteady():\n    assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
STEADY = "def test_steady():\n    pass\n"
WRONG = "import pytest\n@pytest.mark.parametrize('n', range({}))\ndef test_wrong(n):\n    assert n < 0\n"


@pytest.mark.parametrize(
    ("files", "status", "said"),
    [
        ({"steady": STEADY}, 0, []),
        ({"steady": STEADY, "unsteady": UNSTEADY}, 0, ["UNSTEADY", "test_unsteady.py::test_unsteady"]),
        ({"unsteady": UNSTEADY, "wrong": WRONG.format(1)}, 1, ["2 failed beside others"]),
        ({"wrong": WRONG.format(FEW + 1)}, 1, []),
        ({"broken": "import nothing_of_this_name"}, 2, ["1 failed beside others"]),
    ],
)
def test_failures_are_repeated_alone_where_they_are_few(
    files: dict[str, str],
    status: int,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name, text in files.items():
        Path(f"test_{name}.py").write_text(text)
    assert run(["-q"], parallel=("-n", "1")) == status
    output = capfd.readouterr().out
    for words in said:
        assert words in output
    assert said or "beside others" not in output
