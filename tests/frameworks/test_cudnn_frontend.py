"""NVIDIA's own frontend of cuDNN from PyPI, which asks a new library for attention by one operation."""

from __future__ import annotations

import json

import pytest

from tests.frameworks.conftest import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_attention_and_its_gradients_are_numpys(on_frontend: Run) -> None:
    found = json.loads(on_frontend("cudnn_frontend").splitlines()[-1])
    assert found["version"] >= 92100  # from which on attention, softmax and masks are operations
    assert found["failed"] == {}
    assert len(found["far"]) == 8
    assert {name: far for name, far in found["far"].items() if max(far.values()) > 4e-3} == {}
