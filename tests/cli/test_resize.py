"""The size and place that commands ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpukernel.cli.resize import conditions, find_lease, wanted_slice
from gpukernel.cli.terminal.output import Problem
from gpukernel.common.model import Holder, Lease
from gpukernel.remoting.lease_file import write_no_lease_file
from tests.conftest import Pool


def test_a_filter_names_server_and_model(gpu1_pool: Pool) -> None:
    words = ("run", "-p", "0.1", "--wait", "0", "--filter")
    assert gpu1_pool.gpukernel(*words, "model=v100 and server=gpu1", "--", "true").returncode == 0
    for wish, sentence in (
        ("server=gpu9", "A server named “gpu9” has no device"),
        ("model=T4 and server=gpu1", "A server named “gpu1” has no T4; it has Tesla V100"),
        ("model=T4 and device=gpu1/0", "“gpu1/0” has no T4; it has Tesla V100"),
        ("device=gpu1/2", "The pool has no device “gpu1/2” that it can offer now."),
        ("driver=5", "“driver=5” is no filter"),
    ):
        refused = gpu1_pool.gpukernel(*words, wish, "--", "true")
        assert refused.returncode == (2 if wish == "driver=5" else 5)
        assert sentence in refused.stderr
        assert len(refused.stderr.splitlines()) == 1


def test_a_filter_names_the_device(gpu1_pool: Pool) -> None:
    for device in ("gpu1/1", "gpu1/0"):
        words = ("run", "-p", "0.1", "--wait", "0", "--filter", f"device={device}", "--", "true")
        assert gpu1_pool.gpukernel(*words).returncode == 0
        last = max(gpu1_pool.leases(ended=True)[0], key=lambda lease: lease.created)
        assert [piece.device_id for piece in last.slices] == [device]


def test_a_request_has_the_class_that_the_command_line_names() -> None:
    assert wanted_slice(0.5, None).priority == "interactive"
    assert wanted_slice(0.5, None, priority="scavenger").priority == "scavenger"
    with pytest.raises(Problem, match="“urgent” is no priority class; it is one of interactive, batch, scav"):
        wanted_slice(0.5, None, priority="urgent")


def test_a_program_runs_in_its_class(gpu1_pool: Pool) -> None:
    words = ("run", "-p", "0.1", "--wait", "0", "--class", "batch", "--", "true")
    assert gpu1_pool.gpukernel(*words).returncode == 0
    assert max(gpu1_pool.leases(ended=True)[0], key=lambda lease: lease.created).priority == "batch"


def test_filters_of_the_command_line() -> None:
    assert conditions("") == {}
    assert conditions("model=V100 and server = gpu1") == {"model": "V100", "server": "gpu1"}
    asked = wanted_slice(0.5, None, 1, "", "server=gpu1")
    assert (asked.server, asked.model) == ("gpu1", "")
    asked = wanted_slice(0.5, None, 1, "", "device=gpu1/3 and model=V100")
    assert (asked.device, asked.model) == ("gpu1/3", "V100")
    assert conditions("device=gpu1/0 and model=T4") == {"device": "gpu1/0", "model": "T4"}
    assert wanted_slice(0.5, None, 1, "", "uuid=GPU-5e2f").device == "GPU-5e2f"
    with pytest.raises(Problem, match="is no UUID"):
        conditions("uuid=gpu1/0")
    for wrong in (
        "gpu1",
        "model=",
        "driver=5",
        "model=a model=b",
        "model=a and model=b",
        "model=a or server=b",
        "device=3",
        "device=gpu1/0 and uuid=GPU-5e2f",
    ):
        with pytest.raises(Problem, match="is no filter"):
            conditions(wrong)
    with pytest.raises(Problem, match="once"):
        wanted_slice(0.5, None, 1, "V100", "model=T4")


def leases(*ids: str) -> list[Lease]:
    return [Lease(one, one, Holder("anna"), (), "live", 5.0, 9.0, 60.0, 1) for one in ids]


def test_a_beginning_names_one_lease_or_is_one_sentence() -> None:
    assert find_lease(leases("3f2a", "3f9b", "8c1f"), "3f9").id == "3f9b"
    for beginning, sentence in (
        ("", "Say which lease: its beginning as “gpukernel leases” shows it."),
        ("9", "No lease of yours begins with “9”; see “gpukernel leases”."),
        ("3f", "2 leases begin with “3f” (3f2a, 3f9b); say more of the one."),
    ):
        with pytest.raises(Problem) as problem:
            find_lease(leases("3f2a", "3f9b", "8c1f"), beginning)
        assert str(problem.value) == sentence
    with pytest.raises(Problem, match="Say which lease"):
        find_lease(leases("8c1f"), "")  # also where there is only one


def test_an_empty_lease_is_none_and_a_kernel_without_a_slice_says_so(own_pool: Pool, tmp_path: Path) -> None:
    own_pool.environment["XDG_STATE_HOME"] = str(tmp_path / "home")
    assert own_pool.gpukernel("request", "-p", "0.1").returncode == 0
    (lease,) = own_pool.live()
    unset = own_pool.gpukernel("resize", "", "-p", "0.2")
    assert (unset.returncode, unset.stdout) == (2, "")
    assert "Say which lease" in unset.stderr
    write_no_lease_file(tmp_path / "lease", "released", "5b0e", "/s")
    own_pool.environment["GPUKERNEL_LEASE_FILE"] = str(tmp_path / "lease")
    inside = own_pool.gpukernel("resize", "-p", "0.2")
    assert (inside.returncode, inside.stdout) == (5, "")
    assert "This kernel holds no slice now" in inside.stderr
    assert [one.slices[0].memory_bytes for one in own_pool.live()] == [lease.slices[0].memory_bytes]
