"""Accounts that the machine knows no name and no home of: processes that really run under such a number."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from gpukernel.client.pool import PoolClient
from gpukernel.common.account import account_name, own_name
from gpukernel.common.address import resolve_state
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Holder, SliceRequest
from tests.pool.auth.test_identity import connecting_as, pool, state

__all__ = ["state"]  # the fixture

NAMELESS = 54_321
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another account")


def as_nameless(ask: Callable[[], str]) -> str:
    """Return what `ask` says in a process of the nameless account, without a word about it in its environment."""
    with pytest.raises(KeyError):
        pwd.getpwuid(NAMELESS)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(NAMELESS)
            os.setuid(NAMELESS)
            for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME", "GPUKERNEL_STATE", "XDG_STATE_HOME"):
                os.environ.pop(name, None)
            try:
                said = ask()
            except PoolError as error:
                said = f"PoolError: {error}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        return answer.read()


@root_only
def test_an_account_without_a_name_has_one_that_no_account_can_have() -> None:
    assert as_nameless(own_name) == f"uid:{NAMELESS}"
    assert account_name(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name


@root_only
def test_an_account_without_a_home_is_told_which_option_names_another_place() -> None:
    said = as_nameless(lambda: str(resolve_state()))
    assert said == (
        f"PoolError: The account uid:{NAMELESS} has no home directory on this machine; "
        "name a state directory with --state or GPUKERNEL_STATE."
    )
    assert as_nameless(lambda: str(resolve_state("/var/lib/gpukernel"))) == "/var/lib/gpukernel"


@root_only
def test_the_pool_knows_an_account_without_a_name_as_nobody_else(state: Path) -> None:
    async def work() -> None:
        async with (
            pool(state, everybody=True),
            connecting_as(NAMELESS, state) as address,
            PoolClient(address) as client,
        ):
            lease = await client.acquire_now("k", SliceRequest(share=0.1), Holder("uid-54321"))
            assert lease.holder.person == f"uid:{NAMELESS}"
            assert [one.id for one in (await client.leases())[0]] == [lease.id]

    asyncio.run(work())
