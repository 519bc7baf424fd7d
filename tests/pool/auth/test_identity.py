"""The caller's identity: the kernel's word over the unix socket, a token over TCP; and what each may do."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import pwd
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpukernel.client.admin import AdminClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import container_sockets, socket_path
from gpukernel.common.errors import LeaseEnded, NotAllowed, PoolError, Refused
from gpukernel.common.model import Holder, Queued, SliceRequest
from gpukernel.pool.auth.identity import Caller, Identity
from gpukernel.pool.rpc.server import RunningPool, serve
from gpukernel.pool.store.store import Store
from tests.pool.world import Agent
from tests.ports import free_port

HALF, ALL = SliceRequest(share=0.5), SliceRequest(share=1.0, devices=4)
NOBODY = pwd.getpwnam("nobody")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another account")


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory that every account can pass through, as in production."""
    folder = Path(tempfile.mkdtemp(prefix="gpukernel-id-"))
    folder.chmod(0o711)
    yield folder / "state"
    shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def pool(state: Path, listen: str = "", **options: bool) -> AsyncIterator[RunningPool]:
    async with serve(state, listen, **options) as running:
        agent = Agent(running.manager, "s", devices=4, direct_machine="m1")
        agent.attach()
        yield running


def connect_as(uid: int, theirs: socket.socket, path: str) -> None:
    """Connect as another account: of this thread alone, since the pool has threads that go on as its own (setresuid(2), C library/kernel differences)."""
    become = functools.partial(ctypes.CDLL(None, use_errno=True).syscall, 117, -1)
    become(uid, -1)  # what counts is whose it is while it connects
    try:
        theirs.connect(path)
    finally:
        become(0, -1)


@contextlib.asynccontextmanager
async def connecting_as(uid: int, state: Path) -> AsyncIterator[str]:
    """An address behind which every connection to the pool is made by another account."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = socket.socket(socket.AF_UNIX)
        try:
            await asyncio.to_thread(connect_as, uid, theirs, str(socket_path(state)))
        except OSError:
            writer.close()
            return
        there, back = await asyncio.open_unix_connection(sock=theirs)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    path = state.parent / f"as-{uid}.sock"
    server = await asyncio.start_unix_server(accepted, path)
    try:
        yield f"unix:{path}"
    finally:
        server.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(within())


@root_only
def test_over_the_unix_socket_a_person_is_who_the_kernel_says(state: Path) -> None:
    async def work() -> None:
        async with (
            pool(state, everybody=True) as running,
            connecting_as(NOBODY.pw_uid, state) as address,
        ):
            async with PoolClient(address) as client, PoolClient(f"unix:{socket_path(state)}") as admin:
                mine = await client.acquire_now("mine", HALF, Holder("root"))  # claims to be somebody else
                assert mine.holder.person == "nobody"
                # In direct mode its programs would be its own, whatever number it names.
                held = running.manager.lease(
                    (
                        await client.acquire_now(
                            "here", SliceRequest(0.1, mode="direct", machine="m1", user=0), Holder("nobody")
                        )
                    ).id
                )
                assert held is not None
                assert (held.mode, held.user) == ("direct", NOBODY.pw_uid)
                await client.release(held.id)
                other = await admin.acquire_now("other", HALF, Holder("anna"))  # root speaks for others
                assert other.holder.person == "anna"
                leases, _ = await client.leases()
                assert [lease.id for lease in leases] == [mine.id]
                assert len((await admin.leases())[0]) == 2
                for attempt in (client.renew, client.release, client.interrupt):
                    with pytest.raises(LeaseEnded, match="knows no lease"):
                        await attempt(other.id)
                with pytest.raises(Refused, match="in use by somebody else"):
                    await client.acquire_now("other", HALF, Holder("anna"))
                async with contextlib.aclosing(admin.acquire("waits", ALL, Holder("anna"))) as waiting:
                    assert isinstance(await anext(waiting), Queued)
                    with pytest.raises(Refused, match="in use by somebody else"):
                        await client.acquire_now("waits", HALF, Holder("anna"))
                    assert [one.key for one in (await admin.leases())[1]] == ["waits"]
                assert (await client.renew(mine.id)).state == "live"
                assert (await admin.release(mine.id)).state in ("ending", "ended")
            async with AdminClient(address) as client:
                for attempt in (client.export_courses, client.tokens, client.audit):
                    with pytest.raises(PoolError, match="Only the pool's administrator"):
                        await attempt()
                with pytest.raises(PoolError, match="Only the pool's administrator"):
                    await client.set_quota("person:nobody", {"devices": "100"})

    run(work)


@root_only
def test_other_accounts_stay_outside_unless_everybody_may_ask(state: Path) -> None:
    async def work() -> None:
        async with (
            pool(state),
            connecting_as(NOBODY.pw_uid, state) as address,
            PoolClient(address) as client,
        ):
            with pytest.raises(PoolError, match="No pool answers"):
                await client.devices()

    run(work)


def test_by_the_socket_for_containers_no_account_counts_but_a_token_does(state: Path) -> None:
    async def tell() -> None:
        async with pool(state), AdminClient(f"unix:{socket_path(state)}") as admin:
            for_containers = container_sockets(socket_path(state).parent) / "pool.sock"
            assert stat.S_IMODE(for_containers.stat().st_mode) == 0o666
            assert stat.S_IMODE(for_containers.parent.stat().st_mode) == 0o711
            assert [path.name for path in for_containers.parent.iterdir()] == ["pool.sock"]
            # This is the pool's own account, and root where the tests are.
            async with AdminClient(f"unix:{for_containers}", "") as stranger:
                for ask in (stranger.leases(), stranger.tokens(), stranger.export_courses()):
                    with pytest.raises(PoolError, match="token"):
                        await ask
            await admin.import_courses("courses: {ml101: {students: [anna]}}")
            token = await admin.open_server("anna", "jupyterhub", "ml101")
            async with AdminClient(f"unix:{for_containers}", token) as anna:
                lease = await anna.acquire_now("k", HALF, Holder("root"))
                assert (lease.holder.person, lease.holder.course) == ("anna", "ml101")
                with pytest.raises(PoolError, match="not anna"):
                    await anna.export_courses()

    asyncio.run(tell())


def test_grpc_s_own_socket_is_closed_to_others_and_gives_nothing_to_who_goes_round_the_listener(
    state: Path,
) -> None:
    async def work() -> None:
        async with pool(state, everybody=True):
            inner = socket_path(state).with_name("inner.sock")
            assert stat.S_IMODE(inner.stat().st_mode) == 0o600
            assert stat.S_IMODE(socket_path(state).stat().st_mode) == 0o666
            async with PoolClient(f"unix:{inner}") as client:
                with pytest.raises(PoolError, match="does not know this token"):
                    await client.devices()

    run(work)


def test_tokens_say_who_and_what_for_until_they_end(state: Path) -> None:
    async def work() -> None:
        address = f"127.0.0.1:{free_port()}"
        async with pool(state, address), AdminClient(f"unix:{socket_path(state)}") as admin:
            anna, secret = await admin.create_token("laptop", "anna")
            _, service = await admin.create_token("hub", scope="service")
            _, agent = await admin.create_token("gpu1", scope="agent")
            _, gone = await admin.create_token("short", "anna", valid_seconds=1e-6)
            async with PoolClient(address, secret) as client:
                lease = await client.acquire_now("k", HALF, Holder("ben"))
                assert lease.holder.person == "anna"
            async with PoolClient(address, service) as client:
                assert (await client.acquire_now("l", HALF, Holder("ben"))).holder.person == "ben"
                assert len((await client.leases())[0]) == 2
            async with AdminClient(address, service) as client:
                with pytest.raises(PoolError, match="Only the pool's administrator"):
                    await client.tokens()
            async with PoolClient(address, agent) as client:
                with pytest.raises(NotAllowed, match="gpu1 is for a GPU server's agent"):
                    await client.devices()
            for wrong in (gone, secret[:-1], secret + "x", f"{anna.id}.", "", "x" * 4096):
                async with PoolClient(address, wrong) as client:
                    with pytest.raises(PoolError, match="does not know this token"):
                        await client.devices()
            await admin.revoke_token(anna.id)
            async with PoolClient(address, secret) as client:
                with pytest.raises(PoolError, match="does not know this token"):
                    await client.devices()
            assert [bool(t.revoked) for t in await admin.tokens()] == [True, False, False, False]
            assert secret.encode() not in (state / "pool.db").read_bytes()
            assert [e.action for e in await admin.audit()] == ["token"] * 5

    run(work)


@pytest.mark.parametrize(
    ("name", "person", "scope", "words"),
    [
        ("x", "", "root", "no scope"),
        ("x", "", "person", "names one"),
        ("x", "anna", "agent", "names one"),
        ("", "anna", "person", "1 to 256"),
        ("x\n", "anna", "person", "printable"),
    ],
)
def test_tokens_that_make_no_sense_are_not_made(
    state: Path, name: str, person: str, scope: str, words: str
) -> None:
    async def work() -> None:
        async with pool(state), AdminClient(f"unix:{socket_path(state)}") as admin:
            with pytest.raises(PoolError, match=words):
                await admin.create_token(name, person, scope)
            assert await admin.tokens() == []

    run(work)


COURSES = """
pool: {devices: 3}
courses:
  ml101:
    weight: 2
    instructors: [prof]
    students: [anna, ben]
    quota: {devices: 1.5, longest_lease: 2h}
    each_student: {devices: 0.5, leases: 1}
"""


def test_an_instructor_sees_ends_and_shares_out_within_the_course(state: Path) -> None:
    async def work() -> None:
        address = f"127.0.0.1:{free_port()}"
        async with pool(state, address), AdminClient(f"unix:{socket_path(state)}") as admin:
            assert len(await admin.import_courses(COURSES)) == 4
            assert await admin.import_courses(await admin.export_courses()) == []
            secrets = {p: (await admin.create_token(p, p))[1] for p in ("prof", "anna", "ben")}
            async with (
                AdminClient(address, secrets["prof"]) as prof,
                AdminClient(address, secrets["anna"]) as anna,
                AdminClient(address, secrets["ben"]) as ben,
            ):
                lease = await anna.acquire_now("a", HALF, Holder("anna", course="ml101"))
                assert lease.role == "student"
                assert lease.until == pytest.approx(lease.created + 7200)
                with pytest.raises(Refused, match=r"anna, as a student of ml101, holds 0\.50 of their 0\.50"):
                    await anna.acquire_now("a2", HALF, Holder("anna", course="ml101"), wait_seconds=0)
                private = await ben.acquire_now("b", HALF, Holder("ben"))
                assert [one.id for one in (await prof.leases())[0]] == [lease.id]
                with pytest.raises(LeaseEnded):
                    await prof.release(private.id)
                shown = {(line.subject, line.bound): (line.value, line.used) for line in await anna.quotas()}
                assert shown["course:ml101", "devices"] == ("1.5", "0.50")
                assert shown["student:ml101 anna", "devices"] == ("0.5", "0.50")
                assert all("anna" not in line.subject for line in await ben.quotas())
                assert await prof.set_quota("student:ml101", {"devices": "1", "leases": "2"})
                with pytest.raises(PoolError, match="Only the pool's administrator"):
                    await prof.set_quota("course:ml101", {"devices": "4"})
                await anna.acquire_now("a2", HALF, Holder("anna", course="ml101"), wait_seconds=0)
                await prof.release(lease.id, "the lesson is over")
                with pytest.raises(LeaseEnded, match="the lesson is over"):
                    await anna.renew(lease.id)

    run(work)


def test_the_token_of_a_person_s_server_is_found_without_looking_at_all_that_were_ever_made(
    tmp_path: Path,
) -> None:
    """Each call with a JupyterHub's token of a server asks for it, in the loop that decides."""
    store, asked = Store.in_directory(tmp_path), list[tuple[str, object]]()

    def noted(*arguments: object) -> None:
        asked.append((str(arguments[2]), arguments[3]))

    sa.event.listen(store.reader, "before_cursor_execute", noted)
    assert Identity(store)._as_server(Caller("anna", "person"), "").course == ""
    sa.event.remove(store.reader, "before_cursor_execute", noted)
    assert len(asked) == 2  # one that is open, and one that is closed
    with store.reader.connect() as db:
        plans = [
            [row[3] for row in db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]  # type: ignore[arg-type]
            for statement, values in asked
        ]
    assert all(step.startswith("SEARCH tokens USING INDEX") for plan in plans for step in plan), plans
    store.close()
