"""Somebody who may read logs, the list of processes, or the folders of the services looks there for tokens and for the secrets of leases."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpukernel.client.pool import PoolClient
from gpukernel.common.model import Holder, SliceRequest
from tests.attacks.servers import Site, site, until

__all__ = ["site"]


def command_lines(folder: Path) -> str:
    """Return the command lines of all processes that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # it has ended meanwhile
            continue
        if str(folder) in words:
            found.append(words)
    return "\n".join(found)


def test_no_token_and_no_secret_of_a_lease_is_in_a_log_a_command_line_or_a_folder_of_others(
    site: Site, tmp_path: Path
) -> None:
    debug = ("--log-level", "debug")
    services = [site.pool(*debug)]
    _, token = site.ask(lambda admin: admin.create_token("laptop", "anna"))
    _, agents_token = site.ask(lambda admin: admin.create_token("gpu1", scope="agent"))
    file = tmp_path / "gpu1.token"
    file.write_text(agents_token)
    services.append(site.agent("gpu1", "", *debug, token=file))
    assert "The agent is ready" in services[-1].said, services[-1].said

    async def a_slice() -> tuple[str, str]:
        async with PoolClient(site.address, token) as anna:
            lease = await anna.acquire_now("k", SliceRequest(share=0.1), Holder("anna"))
            found = command_lines(site.folder)  # while its worker lives
            await anna.release(lease.id, "the secret is out")
            return lease.secret, found

    lease_secret, running = asyncio.run(a_slice())
    assert "gpukernel-worker" in running
    until(lambda: not site.workers())
    state = site.folder / "pool"
    secrets = {
        "a person's token": token.partition(".")[2],
        "a GPU server's token": agents_token.partition(".")[2],
        "the secret of a lease": lease_secret,
        "agent.token": (state / "agent.token").read_text().strip(),
        "pool.token": (state / "pool.token").read_text().strip(),
    }
    assert all(len(secret) >= 32 for secret in secrets.values())
    places = {"command lines": running, **{f"the log of {n}": one.said for n, one in enumerate(services)}}
    assert "the secret is out" in places["the log of 0"]  # the log has what happened
    for path in site.folder.rglob("*"):
        others = path.is_file() and path.name not in ("agent.token", "pool.token")
        if others and path.stat().st_mode & 0o077:  # who is not its owner may read it
            places[str(path)] = path.read_bytes().decode(errors="replace")
    found = [
        (what, where) for what, secret in secrets.items() for where, text in places.items() if secret in text
    ]
    assert not found
    for path in (state / "agent.token", state / "pool.token", *state.glob("*.db*")):
        assert path.stat().st_mode & 0o077 == 0, path
