"""Instructions of the PTX ISA, one program each: ``forms.txt`` runs, ``not_there.txt`` is an error when its kernel is launched."""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native.simgpu_ptx import acceptance, corpus
from tests.native.simgpu_ptx.conftest import text

VERSION, TARGET = "9.0", "sm_90a"


def _lines(name: str) -> list[str]:
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line for line in lines if not line.startswith("//")]


def _load(device: Any, ptx: str) -> int:
    module = c.c_void_p()
    code: int = device._cuda.cuModuleLoadData(c.byref(module), c.c_char_p(ptx.encode()))
    if not code:
        device._call("cuModuleUnload", module)
    return code


@pytest.fixture
def isa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "VERSION", VERSION)
    monkeypatch.setattr(corpus, "TARGET", TARGET)


@pytest.mark.usefixtures("isa")
def test_every_instruction_of_the_isa_runs() -> None:
    simulated = acceptance.Simulated()
    said = {line: simulated.says(corpus.program([line])) for line in _lines("forms.txt")}
    assert {line: what for line, what in said.items() if what} == {}
    assert len(said) > 400


@pytest.mark.usefixtures("isa")
def test_what_is_not_there_is_an_error_of_its_kernel_only(device: Any) -> None:
    refused = [line for line in _lines("not_there.txt") if _load(device, corpus.program([line]))]
    assert refused == []
    simulated = acceptance.Simulated()
    said = {line: simulated.says(corpus.program([line])) for line in _lines("not_there.txt")}
    assert {line: what for line, what in said.items() if what != "not supported: 801"} == {}


@pytest.mark.usefixtures("isa")
def test_ptxas_takes_every_instruction_of_the_lists() -> None:
    if not acceptance.ptxas():
        pytest.skip("ptxas (CUDA's toolkit) is not installed")
    lines = _lines("forms.txt") + _lines("not_there.txt")
    if "version" in acceptance._errors(corpus.program(["ret;"])):
        pytest.skip(f"this ptxas is older than PTX {VERSION}")
    said = dict(zip(lines, acceptance.ptxas_says(lines), strict=True))
    assert {line: what for line, what in said.items() if what} == {}


def test_a_form_of_a_newer_isa_is_an_error_of_its_kernel_only(device: Any) -> None:
    """Other kernels of a text whose version is newer than the tables run; of an older text ptxas takes nothing."""
    newer = text("add.foo.u32 %r1, %r2, %r3;").replace(".version 8.7", ".version 9.9")
    other = (
        newer
        + ".visible .entry other(.param .u64 out) { .reg .u64 %at; ld.param.u64 %at, [out]; st.global.u32 [%at], 5; ret; }"
    )
    out = np.zeros(1, np.uint32)
    device.run(other, "other", 1, 1, out)
    assert out.tolist() == [5]
    assert _load(device, other.replace(".version 9.9", ".version 8.7")) == 218  # CUDA_ERROR_INVALID_PTX
    with pytest.raises(Exception, match="801"):
        device.run(newer, "k", 1, 1, out)
