"""Sockets for containers, and state directories of version 0.1."""

from __future__ import annotations

import socket
from pathlib import Path

from gpukernel.agent.container_sockets import ContainerSockets
from gpukernel.agent.inventory import Inventory
from gpukernel.agent.workers import Workers
from gpukernel.common.address import make_container_sockets


def test_a_worker_s_socket_has_a_second_name_behind_the_first(tmp_path: Path) -> None:
    first = tmp_path / "data.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(first))
        sockets = ContainerSockets(make_container_sockets(tmp_path))
        endpoints = (f"unix:{first}", "tcp:127.0.0.1:1")
        assert sockets.with_links(("lease", 0), endpoints) == endpoints
        sockets.add(("lease", 0), endpoints)
        second = tmp_path / "containers" / "lease-0.sock"
        assert sockets.with_links(("lease", 0), endpoints) == (endpoints[0], f"unix:{second}", endpoints[1])
        assert second.samefile(first)
        sockets.remove("lease-0")
        assert sockets.with_links(("lease", 0), endpoints) == endpoints


def test_a_container_that_mounted_the_folder_of_the_previous_version_reaches_new_workers(
    tmp_path: Path,
) -> None:
    (tmp_path / "door").mkdir()
    first = tmp_path / "data.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(first))
        sockets = ContainerSockets(make_container_sockets(tmp_path))
        sockets.add(("lease", 0), (f"unix:{first}",))
        names = [tmp_path / folder / "lease-0.sock" for folder in ("containers", "door")]
        assert sockets.with_links(("lease", 0), (f"unix:{first}",)) == tuple(
            f"unix:{n}" for n in (first, *names)
        )
        assert all(name.samefile(first) for name in names)


def test_a_rename_that_was_killed_half_way_is_completed_by_the_next_start(tmp_path: Path) -> None:
    old, new, link = tmp_path / "door", tmp_path / "containers", tmp_path / "door.link"
    old.mkdir()
    (old / "kept").touch()
    link.symlink_to("containers")  # killed before the folder moved
    make_container_sockets(tmp_path)
    assert (old / "kept").samefile(new / "kept")
    old.rename(link)  # killed after it
    make_container_sockets(tmp_path)
    assert (old / "kept").samefile(new / "kept")
    assert not link.is_symlink()


def test_folders_of_the_previous_version_are_found_by_both_names(tmp_path: Path) -> None:
    for name in ("door", "turns"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").touch()
    for _ in range(2):  # also when the agent starts again
        Workers(tmp_path, Inventory((), ""), "", lambda key, reason: None)
        for old, new in (("door", "containers"), ("turns", "time-slicing")):
            assert (tmp_path / new / "kept").samefile(tmp_path / old / "kept")
            assert (tmp_path / new).is_dir()
            assert not (tmp_path / new).is_symlink()
