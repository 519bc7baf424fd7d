"""JupyterHub's own tokens at a pool that knows the Hub: a real Hub says whose they are, and whose no more."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

import gpukernel.common.proto.pool_pb2 as pool_pb
import gpukernel.common.proto.pool_pb2_grpc as pool_rpc
from gpukernel.client.admin import AdminClient
from gpukernel.client.hub import HubClient
from gpukernel.client.pool import PoolClient
from gpukernel.common.address import socket_path
from gpukernel.common.connection import Connection
from gpukernel.common.errors import LeaseEnded, NotAllowed, PoolError, PoolUnreachable
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.auth import hub_tokens
from gpukernel.pool.auth.certificate_authority import init_authority
from gpukernel.pool.auth.hub_tokens import HubAway, HubTokens
from gpukernel.pool.rpc.server import RunningPool, prepare_state, serve
from tests.conftest import Pool
from tests.hub.hub import ADMIN, Hub, environment_of
from tests.hub.test_servers import environment
from tests.pool.world import Agent
from tests.ports import free_port

QUARTER = SliceRequest(share=0.25)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(120):
            await work()

    asyncio.run(within())


def api(hub: Hub) -> str:
    return f"{hub.url}/hub/api"


def new_token(hub: Hub, person: str) -> tuple[str, str]:
    """Its id, and the token."""
    hub.ask("POST", f"/users/{person}")
    made = hub.ask("POST", f"/users/{person}/tokens", {"note": "for the pool", "expires_in": 3600})
    made.raise_for_status()
    return made.json()["id"], made.json()["token"]


@contextlib.asynccontextmanager
async def pool(folder: Path, hub_api: str, **options: bool) -> AsyncIterator[tuple[RunningPool, str]]:
    """A pool that knows a Hub, and its address over TCP."""
    address = f"127.0.0.1:{free_port()}"
    async with serve(folder / "state", address, hub_api=hub_api, **options) as running:
        Agent(running.manager, "s", devices=4).attach()
        yield running, running.address


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_of_the_hub_is_its_person_and_never_more(hub: Hub, tmp_path: Path) -> None:
    _, annas = new_token(hub, "anna")
    _, admins = new_token(hub, ADMIN)

    async def work() -> None:
        async with (
            pool(tmp_path, api(hub)) as (_, address),
            AdminClient(f"unix:{socket_path(tmp_path / 'state')}") as admin,
        ):
            other = await admin.acquire_now("other", QUARTER, Holder("ben"))
            async with AdminClient(address, annas) as anna:
                mine = await anna.acquire_now("mine", QUARTER, Holder("ben"))  # claims to be somebody else
                assert mine.holder.person == "anna"
                assert [lease.id for lease in (await anna.leases())[0]] == [mine.id]
                with pytest.raises(LeaseEnded):
                    await anna.release(other.id)
                assert (await anna.renew(mine.id)).state == "live"
            # An administrator of the Hub is nothing special here.
            async with AdminClient(address, admins) as person:
                assert (await person.leases())[0] == []
                for attempt in (person.tokens, person.audit, person.export_courses):
                    with pytest.raises(NotAllowed, match=f"Only the pool's administrator may do that, not {ADMIN}"):  # fmt: skip
                        await attempt()
                with pytest.raises(NotAllowed, match="Only a JupyterHub may do that"):
                    await person.open_server("anna", "x")
            async with HubClient(address, annas, on_behalf="ben") as thief:
                with pytest.raises(NotAllowed, match="anna may not ask on behalf of others"):
                    await thief.leases()
            # A service of the Hub is no person, and nobody is nobody.
            less = hub.ask("POST", "/users/anna/tokens", {"scopes": ["read:users!user=anna"]}).json()["token"]
            for wrong in (hub.token, annas[:-1], "x" * 32, less):
                async with PoolClient(address, wrong) as stranger:
                    with pytest.raises(PoolError, match="does not know this token"):
                        await stranger.devices()

    run(work)


def test_a_single_user_servers_own_token_is_its_person(hub: Hub, tmp_path: Path) -> None:
    hub.start_server("anna")
    token = environment(hub.pid("anna"))["JUPYTERHUB_API_TOKEN"]

    async def work() -> None:
        async with pool(tmp_path, api(hub)) as (_, address), PoolClient(address, token) as anna:
            assert (await anna.acquire_now("k", QUARTER, Holder("?"))).holder.person == "anna"

    run(work)


def test_a_single_user_servers_own_token_is_bound_to_the_course_of_the_server(
    hub: Hub, tmp_path: Path
) -> None:
    hub.start_server("both", {"course": "ml101"})
    single, persons = environment(hub.pid("both"))["JUPYTERHUB_API_TOKEN"], new_token(hub, "both")[1]

    async def work() -> None:
        async with (
            pool(tmp_path, api(hub)) as (_, address),
            AdminClient(f"unix:{socket_path(tmp_path / 'state')}") as admin,
        ):
            await admin.import_courses("courses: {ml101: {students: [both]}, phys: {students: [both]}}")
            phys = await admin.acquire_now("phys", QUARTER, Holder("both", course="phys"))
            await admin.open_server("both", "jupyterhub/other", "phys")
            await admin.open_server("both", "jupyterhub", "ml101")
            async with PoolClient(address, single) as thief:
                assert (await thief.leases())[0] == []
                with pytest.raises(LeaseEnded):
                    await thief.release(phys.id)
                taken = await thief.acquire_now("k", QUARTER, Holder("both", course="phys"))
                assert (taken.holder.course, taken.holder.server) == ("ml101", "jupyterhub")
            async with PoolClient(address, persons) as both:
                assert {lease.id for lease in (await both.leases())[0]} == {phys.id, taken.id}
            # Revoking the pool's token of the server, as one does with what was stolen, gives the Hub's no more rights than it had, but none.
            opened = [one for one in await admin.tokens() if one.server == "jupyterhub"]
            async with grpc.aio.insecure_channel(address) as channel:
                call = pool_rpc.PoolStub(channel).Hold(metadata=(("authorization", f"Bearer {single}"),))
                await call.write(pool_pb.HoldRequest(hold=[taken.id]))
                assert (await call.read()).lease.state == "live"
                for one in opened:
                    await admin.revoke_token(one.id)
                async with asyncio.timeout(60):
                    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            async with PoolClient(address, single) as thief:
                for attempt in (thief.leases(), thief.release(phys.id)):
                    with pytest.raises(PoolError, match="default server of both is closed in this pool"):
                        await attempt
            await admin.open_server("both", "jupyterhub", "ml101")
            async with PoolClient(address, single) as again:
                assert (await again.leases())[0] == []  # with the server's start its earlier slices end
            assert phys.id in {lease.id for lease in (await admin.leases())[0]}

    run(work)


def test_a_call_that_is_open_ends_when_the_hub_takes_the_token_back(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_tokens, "YES_SECONDS", 1.0)  # as after a minute
    identifier, stolen = new_token(hub, "anna")
    _, good = new_token(hub, "ben")

    async def work() -> None:
        async with pool(tmp_path, api(hub)) as (_, address), grpc.aio.insecure_channel(address) as channel:
            calls = {}
            for token in (stolen, good):
                call = pool_rpc.PoolStub(channel).Hold(metadata=(("authorization", f"Bearer {token}"),))
                await call.write(pool_pb.HoldRequest(hold=["0" * 16]))
                assert (await call.read()).lease.state == "ended"
                calls[token] = call
            hub.ask("DELETE", f"/users/anna/tokens/{identifier}").raise_for_status()
            async with asyncio.timeout(60):
                assert await calls[stolen].code() is grpc.StatusCode.UNAUTHENTICATED
            assert not calls[good].done()
            calls[good].cancel()

    run(work)


def test_a_revoked_token_counts_no_longer_than_the_cache(hub: Hub) -> None:
    """The clock is the test's, the Hub is real."""
    identifier, token = new_token(hub, "anna")
    _, late = new_token(hub, "ben")

    async def work() -> None:
        clock = Clock()
        tokens = HubTokens(api(hub), clock)
        assert await tokens.person(token) == "anna"
        hub.ask("DELETE", f"/users/anna/tokens/{identifier}").raise_for_status()
        clock.now += hub_tokens.YES_SECONDS - 0.1
        assert await tokens.person(token) == "anna"  # the Hub was not asked again
        clock.now += 0.1
        assert await tokens.person(token) == ""
        # Nothing in the memory of the process would give a token away.
        assert token not in repr(vars(tokens))
        assert await tokens.person(late) == "ben"
        tokens.close()

    run(work)


@pytest.mark.thorough
def test_what_was_unknown_is_asked_again_soon(home: Path, own_pool: Pool, tmp_path: Path) -> None:
    """And “the Hub is away” is another answer than “unknown”: leases are renewed again when it is back."""
    token = "a-token-of-a-service-account-0123456789"
    running = Hub(home, environment_of(own_pool.state, home), {"pool": own_pool.address})

    async def ask(tokens: HubTokens, which: str) -> str:
        return await tokens.person(which)

    clock = Clock()
    with running as hub:
        _, doras = new_token(hub, "dora")

        async def before() -> None:
            tokens = HubTokens(api(hub), clock)
            assert await ask(tokens, token) == ""
            assert await ask(tokens, doras) == "dora"
            await asyncio.to_thread(hub.stop)
            clock.now += hub_tokens.NO_SECONDS - 0.1
            assert await ask(tokens, token) == ""  # remembered
            assert await ask(tokens, doras) == "dora"
            clock.now += hub_tokens.YES_SECONDS
            for which in (token, doras):
                with pytest.raises(
                    HubAway, match=r"JupyterHub does not answer at .* cannot tell whose token"
                ):
                    await ask(tokens, which)
            async with (
                pool(tmp_path / "ours", api(hub)) as (_, address),
                PoolClient(address, doras) as client,
            ):
                with pytest.raises(PoolUnreachable, match="JupyterHub does not answer at"):
                    await client.devices()
                await asyncio.to_thread(hub.start)
                assert len(await client.devices()) == 4
            assert await ask(tokens, doras) == "dora"
            tokens.close()

        run(before)


def test_a_pool_over_tls_with_client_certificates_wants_one_of_the_same_person(
    hub: Hub, tmp_path: Path
) -> None:
    _, annas = new_token(hub, "anna")
    init_authority(prepare_state(tmp_path / "state"), ["localhost"], time.time())

    async def work() -> None:
        async with (
            pool(tmp_path, api(hub), require_certificates=True) as (_, address),
            AdminClient(f"unix:{socket_path(tmp_path / 'state')}") as admin,
        ):
            token, anna = await admin.create_connection("laptop", "anna")
            _, ben = await admin.create_connection("laptop", "ben")

            def using(connection: Connection) -> PoolClient:
                return PoolClient(
                    address, Connection("", annas, connection.authority, connection.certificate)
                )

            async with using(anna) as client:
                assert len(await client.devices()) == 4
            async with using(ben) as client:
                with pytest.raises(NotAllowed, match="is not one of anna's"):
                    await client.devices()
            await admin.revoke_token(token.id)
            async with using(anna) as client:
                with pytest.raises(NotAllowed, match="is not one of anna's"):
                    await client.devices()

    run(work)


# --- what is no Hub ---


@contextlib.contextmanager
def answering(
    answer: Callable[[http.server.BaseHTTPRequestHandler], None],
) -> Iterator[tuple[str, list[str]]]:
    """Somebody who answers in the Hub's place: where, and every token that they were given."""
    heard: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization", ""))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hub/api", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def says(status: int, body: bytes = b"", location: str = "") -> Callable[[http.server.BaseHTTPRequestHandler], None]:  # fmt: skip
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if location:
            handler.send_header("Location", location)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


async def asked(where: str, token: str = "0123456789abcdef") -> str:
    tokens = HubTokens(where)
    try:
        return await tokens.person(token)
    finally:
        tokens.close()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"", "HTTP status 500"),
        (404, b"", "HTTP status 404"),
        (200, b"<html>", "that is no JupyterHub's API"),
        (200, b"[]", "that is no JupyterHub's API"),
        (200, b'{"name": "anna"}', "that is no JupyterHub's API"),
        (
            200,
            b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": "' + b"x" * 2**20 + b'"}',
            "that is no JupyterHub's API",
        ),
    ],
)
def test_an_answer_that_makes_no_sense_says_nothing_about_the_token(status: int, body: bytes, words: str) -> None:  # fmt: skip
    with answering(says(status, body)) as (where, _):

        async def work() -> None:
            with pytest.raises(HubAway, match=words):
                await asked(where)

        run(work)


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind": "service", "scopes": ["access:servers"], "name": "anna"}',
        b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": ""}',
        b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": "a\\nb"}',
        b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": 7}',
        b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": null}',
    ],
)
def test_who_is_no_person_is_nobody(body: bytes) -> None:
    with answering(says(200, body)) as (where, _):

        async def work() -> None:
            assert await asked(where) == ""

        run(work)


def test_a_token_is_sent_to_the_hub_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    """Not where the Hub redirects to, not through a proxy, and none of the pool's own."""
    with (
        answering(
            says(200, b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": "mallory"}')
        ) as (elsewhere, stolen),
        answering(says(302, location=elsewhere)) as (where, heard),
    ):
        monkeypatch.setenv("http_proxy", elsewhere.removesuffix("/hub/api"))
        monkeypatch.setenv("all_proxy", elsewhere.removesuffix("/hub/api"))

        async def work() -> None:
            with pytest.raises(HubAway, match="HTTP status 302"):
                await asked(where)
            for never in ("gpk0123456789.secret-of-a-pool", "short", "with space in it", "new\nline-and-more", "é" * 20):  # fmt: skip
                assert await asked(where, never) == ""

        run(work)
        assert heard == ["token 0123456789abcdef"]
        assert stolen == []
        assert "0123456789abcdef" not in caplog.text


def test_a_hub_that_says_nothing_is_waited_for_no_longer_than_a_call_lasts(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(hub_tokens, "ASK_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}/hub/api"

        async def work() -> None:
            with pytest.raises(HubAway, match=r"no answer within 0.5 s|timed out"):
                await asked(where)

        run(work)


def test_many_that_bring_one_token_ask_once_and_too_many_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_tokens, "MOST_AT_ONCE", 3)
    free = threading.Event()

    def slowly(handler: http.server.BaseHTTPRequestHandler) -> None:
        free.wait(30)
        says(200, b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": "anna"}')(handler)

    with answering(slowly) as (where, heard):

        async def work() -> None:
            tokens = HubTokens(where)
            one = [asyncio.create_task(tokens.person("one-token-for-all")) for _ in range(20)]
            others = [asyncio.create_task(tokens.person(f"another-{n}")) for n in range(3)]
            await asyncio.wait(others, return_when=asyncio.FIRST_EXCEPTION)
            refused = [task for task in others if task.done()]
            assert len(refused) == 1
            with pytest.raises(HubAway, match="Too many tokens"):
                refused[0].result()
            one[0].cancel()  # the others still want to know
            free.set()
            found = await asyncio.gather(*one, return_exceptions=True)
            assert found[1:] == ["anna"] * 19
            await asyncio.gather(*others, return_exceptions=True)
            assert heard.count("token one-token-for-all") == 1
            tokens.close()

        run(work)


def test_made_up_tokens_keep_nobody_from_being_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger makes them up without end, and a Hub takes its time to say that it knows none of them."""
    monkeypatch.setattr(hub_tokens, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(hub_tokens, "_THREADS", 2)
    free = threading.Event()

    def slow_for_strangers(handler: http.server.BaseHTTPRequestHandler) -> None:
        if "annas-token" not in handler.headers["Authorization"]:
            free.wait(30)
            return says(403)(handler)
        return says(200, b'{"kind": "user", "scopes": ["access:servers!user=anna"], "name": "anna"}')(handler)

    now = 0.0
    with answering(slow_for_strangers) as (where, heard):

        async def work() -> None:
            nonlocal now
            tokens = HubTokens(where, lambda: now)
            assert await tokens.person("annas-token") == "anna"
            strangers = [asyncio.create_task(tokens.person(f"made-up-{n}")) for n in range(10)]
            await asyncio.wait(strangers, return_when=asyncio.FIRST_EXCEPTION)
            now = hub_tokens.YES_SECONDS + 1
            async with asyncio.timeout(5):
                assert await tokens.person("annas-token") == "anna"
            assert heard.count("token annas-token") == 2
            free.set()
            await asyncio.gather(*strangers, return_exceptions=True)
            tokens.close()

        run(work)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("http://hub.example.edu/hub/api", "in plain text"),
        ("http://10.0.0.5:8081/hub/api", "in plain text"),
        ("hub.example.edu", "is no address of a JupyterHub's API"),
        ("ftp://localhost/hub/api", "is no address"),
        ("https:///hub/api", "is no address"),
        ("https://me:secret@hub/hub/api", "is no address"),
        ("http://localhost:99999/hub/api", "is no address"),
        ("http://[::1/hub/api", "is no address"),
    ],
)
def test_an_address_to_which_tokens_may_not_go_is_refused_at_the_start(where: str, words: str) -> None:
    with pytest.raises(PoolError, match=words):
        HubTokens(where)
    for good in ("https://hub.example.edu/hub/api/", "http://localhost:8081/hub/api", "http://[::1]/hub/api"):
        HubTokens(good).close()


def test_the_hubs_own_pool_takes_them_where_configure_says_so(home: Path) -> None:
    state = home / "own"
    environment_ = environment_of(state, home)
    courses = home / "courses.yaml"
    home.mkdir()
    courses.write_text("courses: {ml: {students: [anna]}}\n")
    options = {"state": str(state), "simulate": "v100:1", "courses": str(courses), "hub_tokens": True}
    with Hub(home, environment_, options) as hub:
        _, token = new_token(hub, "anna")

        async def work() -> None:
            while True:
                with contextlib.suppress(PoolUnreachable):
                    async with PoolClient(f"unix:{socket_path(state)}", token) as anna:
                        await anna.devices()
                        assert (await anna.leases()) == ([], [])
                        lease = await anna.acquire_now("k", QUARTER, Holder("x"))
                        assert lease.holder.person == "anna"
                        await anna.release(lease.id)
                        return
                await asyncio.sleep(0.2)

        run(work)
