"""The table of which framework runs where names tests and suites that are there, and every framework that is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.framework_table import ROWS, Row
from tests.frameworks.sources import JAX, PYTORCH, TENSORFLOW
from tests.suites.__main__ import ALL

ROOT = Path(__file__).parents[2]
OTHERS = {"cuda-samples", "hecbench", "zluda", "programs"}  # no frameworks


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_shown_by_what_is_there(row: Row) -> None:
    assert row.shown_by
    for one in row.shown_by:
        kind, _, name = one.partition(":")
        if kind == "suite":
            assert name in ALL
            continue
        path, _, test = one.partition("::")
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text()
    # What a remote slice cannot run has a way out, and nothing else has.
    assert row.simulated.startswith("yes") == (not row.otherwise)


def test_every_framework_and_suite_has_its_row() -> None:
    named = {name for row in ROWS for one in row.shown_by if (name := one.removeprefix("suite:")) != one}
    frameworks = {name for name in ALL if not any(name.startswith(other) for other in OTHERS)}
    deep = {name for name in frameworks if name.startswith(("jax", "tensorflow"))}  # rows of their own tests
    assert frameworks - deep == named
    installed = {row.install.partition("[")[0] for row in ROWS}
    for framework in (JAX, PYTORCH, TENSORFLOW):
        assert framework.packages[0].partition("=")[0].partition("[")[0] in installed


def test_the_page_has_the_table_and_the_sentence_of_who_cannot_run_leads_there() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    assert all(f"| {row.name} |" in page for row in ROWS)
    assert "## Which framework runs where" in page
    shim = (ROOT / "gpukernel" / "native" / "shim" / "process.cpp").read_text()
    assert "“Which framework runs where” in docs/frameworks.md" in shim
