"""The lease manager, its socket and the provisioner where something fails or is cancelled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from gpukernel.jupyter import kernel_socket, provisioner
from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.kernel_lease import KernelLease
from gpukernel.jupyter.kernel_socket import KernelSocket
from gpukernel.jupyter.kernel_status import KernelStatus
from gpukernel.jupyter.lease_manager import KernelLeaseManager
from tests.conftest import eventually
from tests.jupyter.test_kernel_lease_states import LEASE, FakePool, granted, told


def test_a_listener_that_fails_keeps_no_other_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    manager, heard = KernelLeaseManager(), list[KernelStatus]()

    def fails(status: KernelStatus) -> None:
        raise RuntimeError("a defect")

    manager.listen(fails)
    manager.listen(heard.append)
    manager.changed(KernelLease(manager, "k1", "unix:/pool", "/socket"))
    assert [status.kernel_id for status in heard] == ["k1"]
    assert [record.getMessage() for record in caplog.records] == ["kernel k1: its status could not be shown"]


def test_a_kernel_that_was_ended_while_it_started_is_a_sentence() -> None:
    manager = KernelLeaseManager()
    for call in (manager.acquire("gone", 1.0), manager.environment("gone", {})):
        with pytest.raises(SliceUnavailable, match="no such kernel"):
            asyncio.run(call)


def test_giving_back_goes_on_where_who_asked_for_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, began, go = KernelLeaseManager(), threading.Event(), threading.Event()

    class SlowPool(FakePool):
        async def release(self, lease: str, reason: str) -> None:
            began.set()
            while not go.is_set():
                await asyncio.sleep(0.01)
            await super().release(lease, reason)

    pool = SlowPool()
    monkeypatch.setattr(manager, "client", pool.client)
    lease = manager._leases["k1"] = KernelLease(manager, "k1", "unix:/pool", "/socket")
    lease.state, lease.lease = "live", LEASE

    async def story() -> None:
        closing = asyncio.create_task(manager.close_key("k1", "the kernel was shut down"))
        await asyncio.to_thread(began.wait, 10)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()

    asyncio.run(story())
    go.set()
    eventually(lambda: pool.released == [("l1", "the kernel was shut down")] and not manager._leases)


def test_a_start_that_is_cancelled_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))

    class Manager:
        def __init__(self) -> None:
            self.asked = asyncio.Event()
            self.closed: list[str] = []

        async def register(self, key: str, *rest: Any) -> None:
            pass

        async def acquire(self, key: str, wait_seconds: float) -> bool:
            self.asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def close_key(self, key: str, reason: str) -> None:
            self.closed.append(key)

    async def story() -> None:
        manager = Manager()
        monkeypatch.setattr(provisioner, "lease_manager", lambda: manager)
        one = provisioner.GPUSliceProvisioner(kernel_id="k1", share=0.1, pool="unix:/pool")
        starting = asyncio.create_task(one.pre_launch())
        await manager.asked.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert manager.closed == ["k1"]

    asyncio.run(story())


# --- the socket ---


def test_two_kernels_that_start_at_once_open_one_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    opened = []

    async def open(*arguments: Any, **more: Any) -> asyncio.Server:
        opened.append(server := await start(*arguments, **more))
        return server

    start = asyncio.start_unix_server
    monkeypatch.setattr(asyncio, "start_unix_server", open)

    async def story() -> None:
        one = KernelSocket(lambda key: None)
        await asyncio.gather(one.open(), one.open())
        assert len(opened) == 1
        reader, writer = await asyncio.open_unix_connection(one.path)
        writer.write(b"show k1\n")
        assert (await reader.readline()).startswith(b"refused ")
        writer.close()
        await one.close()

    asyncio.run(story())


class Writer:
    """The kernel's end of a connection, which does something else while it takes its first line."""

    def __init__(self, meanwhile: Any) -> None:
        self.lines: list[str] = []
        self.two = asyncio.Event()
        self._meanwhile = meanwhile

    def write(self, line: bytes) -> None:
        self.lines.append(line.decode())
        if len(self.lines) == 2:
            self.two.set()

    async def drain(self) -> None:
        await asyncio.sleep(0)
        if len(self.lines) == 1:
            self._meanwhile()


@pytest.mark.parametrize("command", ["watch", "acquire"])
def test_a_change_while_a_kernel_is_slow_to_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(kernel_socket, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(kernel_socket, "TELL_SECONDS", 1000.0)

    async def story(pool: FakePool, lease: KernelLease) -> None:
        lease.ask()
        writer = Writer(lambda: lease.cancel("changed their mind"))
        answer = asyncio.create_task(KernelSocket(lambda key: lease)._answer([command, "k1"], writer))  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            await writer.two.wait()
        assert "changed their mind" in writer.lines[1]
        answer.cancel()

    told(story, tmp_path)


def test_a_command_that_fails_unexpectedly_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        await granted(pool, lease)
        pool.resize = lambda *arguments: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        writer = Writer(lambda: None)
        words = ["resize", "k1", '{"share": 0.1}']
        await KernelSocket(lambda key: lease)._answer(words, writer)  # type: ignore[arg-type]
        assert writer.lines == ["refused That failed in the kernel's Jupyter server, whose log says why.\n"]
        assert lease.state == "live"

    told(story, tmp_path)
    assert [record.getMessage() for record in caplog.records] == ["kernel k1: “resize” failed"]
