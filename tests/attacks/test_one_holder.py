"""Whoever has a GPU server's token starts a second agent of its name, and the pool grants the memory that the first one's programs hold; or
offers, under a name of their own, the devices of a server that is being restarted.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpukernel.pool.domain.fencing import Registration
from gpukernel.pool.rpc.server import serve
from tests.attacks.servers import WHOLE, Site, site, until
from tests.pool.world import Agent

__all__ = ["site"]


def test_a_second_agent_of_a_name_gives_nobody_memory_that_is_held(site: Site) -> None:
    site.pool()
    first = site.agent("gpu1")
    assert "The agent is ready" in first.said
    program = site.program("-p", "1.0")
    until(lambda: "ready" in program.said)
    assert site.held() == WHOLE
    site.clone("gpu1", "clone")
    other = site.program("-p", "1.0", "--wait", "5")
    until(lambda: "ready" in other.said or other.process.poll() is not None)
    assert site.held() <= WHOLE, "two programs hold the whole device"
    assert program.process.poll() is None, "the honest program lost its slice"


def test_nor_while_the_first_one_is_frozen(site: Site) -> None:
    site.pool()
    first = site.agent("gpu1")
    program = site.program("-p", "1.0")
    until(lambda: "ready" in program.said)
    first.freeze()
    site.clone("gpu1", "clone")
    other = site.program("-p", "1.0", "--wait", "30")
    until(lambda: "ready" in other.said or other.process.poll() is not None)
    assert site.held() <= WHOLE, "two programs hold the whole device"


def test_the_token_of_all_servers_takes_no_server_s_name(site: Site) -> None:
    """The thief is on the same machine, or says so, and waits until the server is switched off."""
    site.pool()
    first = site.agent("gpu1")
    assert "The agent is ready" in first.said
    first.end()
    thief = site.agent("gpu1", "thief")
    assert "The agent is ready" not in thief.said
    assert "enrolled from another state directory" in thief.said
    assert "gpukernel server reset gpu1" in thief.said
    assert "The agent is ready" in site.agent("gpu1").said


def test_a_stolen_token_offers_no_devices_from_another_machine(site: Site, tmp_path: Path) -> None:
    """The thief waits until the server is switched off, and takes its name: students' secrets and data would go there."""
    elsewhere = tmp_path / "machine-id"
    elsewhere.write_text("0123456789abcdef0123456789abcdef\n")
    before = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind {elsewhere} /etc/machine-id && exec "$@"',
        "sh",
    )
    if os.geteuid() or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("another machine needs a mount namespace, and this account may make none")
    site.pool()
    token = tmp_path / "gpu1.token"
    token.write_text(site.ask(lambda admin: admin.create_token("gpu1", scope="agent"))[1])
    first = site.agent("gpu1", token=token)
    assert "The agent is ready" in first.said
    first.end()
    thief = site.agent("gpu1", "thief", token=token, before=before)
    assert "The agent is ready" not in thief.said
    assert "gpukernel server reset gpu1" in thief.said
    assert not any(device.available for device in site.ask(lambda client: client.devices()))


def test_a_server_s_token_offers_no_second_server(site: Site, tmp_path: Path) -> None:
    site.pool()
    token = tmp_path / "gpu1.token"
    token.write_text(site.ask(lambda admin: admin.create_token("gpu1", scope="agent"))[1])
    assert "The agent is ready" in site.agent("gpu1", token=token).said
    second = site.agent("gpu2", token=token)
    assert "The agent is ready" not in second.said
    assert "bound to GPU server gpu1" in second.said


@pytest.mark.parametrize("credential", ["token gpkevil", "agent.token 0123"])
def test_a_server_that_says_another_s_machine_and_devices_takes_none_of_them(
    tmp_path: Path, credential: str
) -> None:
    """Both can be read by everybody on that server; people's data would go to the thief, and the server would lose its devices."""

    async def work() -> None:
        async with serve(tmp_path / "state") as running:
            good = Agent(running.manager, "good")
            good.registration = replace(good.registration, credential="token gpkgood")
            good.tell_uuids()
            good.attach()
            good.sessions.detach("good", good)  # its agent is started again
            evil = Agent(running.manager, "evil")
            evil.registration = Registration(credential, "machine", "place of evil", "process")
            evil.devices = [replace(one, id=f"evil/{one.uuid}", server="evil") for one in good.devices]
            evil.attach()
            evil.sessions.faults("evil", {})
            (seen,) = (one for one in running.manager.devices() if one.server == "evil")
            assert "offered by GPU server good of the same machine" in seen.trouble
            assert "gpukernel server forget good" in seen.trouble
            good.attach()
            assert [one.server for one in running.manager.devices() if one.available] == ["good"]

    asyncio.run(work())
