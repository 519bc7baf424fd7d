"""The bounds of workers' groups: files of cgroup version 2 below a folder that stands for its mount, and systemd's commands as they are called.

Version 1 or 2 as this machine has it, with a real worker in it, is `tests/attacks/test_confinement.py`'s.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.agent import cgroups
from gpukernel.agent.cgroups import CgroupBounds, Cgroups, NoCgroups, find_cgroups

BOUNDS = CgroupBounds(memory_bytes=256 << 20, threads=64, share=0.02)
OFFERED = "cpuset cpu io memory pids"


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the mount of version 2, with the agent's own group in it."""
    own = tmp_path / "mount" / "agents"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text(OFFERED)
    mounts, membership = tmp_path / "mountinfo", tmp_path / "cgroup"
    mounts.write_text(f"31 24 0:27 / {tmp_path / 'mount'} rw,nosuid - cgroup2 cgroup2 rw\n")
    membership.write_text("0::/agents\n")
    monkeypatch.setattr(cgroups, "MOUNTS", mounts)
    monkeypatch.setattr(cgroups, "MEMBERSHIP", membership)
    monkeypatch.setattr(cgroups, "SYSTEMD", tmp_path / "no systemd")
    return own


def told(folder: Path) -> dict[str, str]:
    names = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.weight")
    return {name: (folder / name).read_text() for name in names if (folder / name).exists()}


def test_a_group_of_version_2_has_the_slice_s_bounds(mount: Path, tmp_path: Path) -> None:
    found = find_cgroups(tmp_path / "state")
    assert (mount / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    words, (folder,) = found.create("lease-0", BOUNDS)
    assert not words
    assert told(folder) == {
        "memory.max": str(256 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "64",
        "cpu.weight": "2",
    }
    found.change("lease-0", CgroupBounds(memory_bytes=512 << 20, threads=128, share=0.5))
    assert told(folder)["memory.max"] == str(512 << 20)
    assert told(folder)["cpu.weight"] == "50"
    assert list(found.names()) == ["lease-0"]
    # The next agent of this state directory finds what this one left; another directory's does not.
    assert list(find_cgroups(tmp_path / "state").names()) == ["lease-0"]
    assert list(find_cgroups(tmp_path / "other").names()) == []


def test_nothing_is_left_of_a_state_directory_without_workers(tmp_path: Path) -> None:
    """On this machine's own groups, whose files need not be removed before them."""
    try:
        found = find_cgroups(tmp_path)
    except NoCgroups as why:
        pytest.skip(str(why))
    for _ in range(2):
        first, second = found.create("lease-0", BOUNDS)[1], found.create("lease-1", BOUNDS)[1]
        if not first:
            pytest.skip("systemd keeps its scopes itself")
        found.remove("lease-0")
        assert not any(folder.exists() for folder in first)
        assert list(found.names()) == ["lease-1"]
        found.remove("lease-1")
        assert not any(folder.parent.exists() for folder in (*first, *second))
        assert list(found.names()) == []


def test_groups_are_counted_while_the_last_one_goes(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_cgroups(tmp_path / "state")
    found.create("lease-0", BOUNDS)
    list_folder = Path.iterdir

    def after_the_last(folder: Path) -> Iterator[Path]:
        shutil.rmtree(folder)
        return list_folder(folder)

    monkeypatch.setattr(Path, "iterdir", after_the_last)
    assert list(found.names()) == []


def test_agents_of_one_state_directory_begin_while_workers_do(tmp_path: Path) -> None:
    """On this machine's own groups: whoever looks which groups there are takes none from under a worker."""
    try:
        found = find_cgroups(tmp_path)
    except NoCgroups as why:
        pytest.skip(str(why))
    ends = threading.Event()

    def look() -> None:
        while not ends.is_set():
            find_cgroups(tmp_path)

    others = [threading.Thread(target=look) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(200):
            folders = found.create("lease-0", BOUNDS)[1]
            assert all(folder.is_dir() for folder in folders)
            found.remove("lease-0")
    finally:
        ends.set()
        for other in others:
            other.join()


def test_where_memory_cannot_be_bounded_the_sentence_says_what_is_missing(
    mount: Path, tmp_path: Path
) -> None:
    (mount / "cgroup.controllers").write_text("cpu pids")
    with pytest.raises(NoCgroups, match="has no controller memory here"):
        find_cgroups(tmp_path / "state")


@pytest.fixture
def scopes(mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cgroups, Path]:
    """The way by systemd, whose commands write down with what words they were called."""
    programs, log = tmp_path / "programs", tmp_path / "called"
    programs.mkdir()
    for name in ("systemd-run", "systemctl"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    (tmp_path / "systemd").mkdir()
    monkeypatch.setattr(cgroups, "SYSTEMD", tmp_path / "systemd")
    return find_cgroups(tmp_path / "state"), log


def test_a_scope_of_systemd_has_the_slice_s_bounds(scopes: tuple[Cgroups, Path]) -> None:
    found, log = scopes
    words, folders = found.create("lease-0", BOUNDS)
    assert not folders
    given = {f"--property={each}" for each in ("MemoryMax=268435456", "TasksMax=64", "CPUWeight=2")}
    assert given | {"--scope", "--property=MemorySwapMax=0"} <= set(words)
    (unit,) = (word.removeprefix("--unit=") for word in words if word.startswith("--unit="))
    found.change("lease-0", CgroupBounds(memory_bytes=512 << 20, threads=128, share=0.5))
    called = log.read_text().splitlines()[-1]
    assert called.startswith("systemctl")
    assert f"set-property --runtime {unit} MemoryMax=536870912 TasksMax=128 CPUWeight=50" in called
