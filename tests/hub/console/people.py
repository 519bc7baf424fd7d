"""A Hub with its console for many tests, leases that are held for people, and forms as a browser without JavaScript sends them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Coroutine, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from gpukernel.client.admin import AdminClient
from gpukernel.common.model import Holder, Lease, SliceRequest
from tests.conftest import Pool
from tests.hub.hub import Browser, Hub, environment_of

COURSES = """
courses:
  ml101:
    title: "Machine <script>alert(1)</script> & learning"
    term: autumn 2026
    instructors: [prof]
    students: [anna, ben, carl, "=1+1"]
    offers: [V100 x 0.02, V100 x 0.1]
    quota: {devices: 0.8}
    each_student: {devices: 0.5, idle: 20min}
  hpc:
    title: Parallel programming
    instructors: [chief]
    instructor_groups: [teachers]
    students: [dora, prof]
"""


@contextlib.contextmanager
def running_console(
    home: Path,
    courses_yaml: str,
    devices: str = "v100:1",
    *,
    groups: Mapping[str, list[str]] | None = None,
    extra: str = "",
    **options: Any,
) -> Iterator[tuple[Hub, Pool]]:
    """A Hub with its console and a pool with these courses; `options` are for `configure`, the rest for `Pool` and `Hub`."""
    file = home / "courses.yaml"
    file.write_text(courses_yaml)
    with Pool(devices, home / "state") as pool:
        imported = pool.gpukernel("quota", "import", str(file))
        assert imported.returncode == 0, imported.stderr
        options = {"pool": pool.address, **options}
        with Hub(home, environment_of(pool.state, home), options, groups=groups, extra=extra) as hub:
            yield hub, pool


class Holders:
    """People who hold slices and wait, for as long as the context lasts; asked for by the pool's own account."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: list[Any] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()

        async def released() -> None:
            async with AdminClient(self._address) as client:
                while held := (await client.leases())[0]:  # until their workers are dead
                    for lease in held:
                        await client.release(lease.id)
                    await asyncio.sleep(0.05)

        try:
            self.do(released())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def hold(
        self, person: str, share: float, course: str = "ml101", description: str = "a notebook"
    ) -> Lease:
        """Granted, and renewed until the end."""
        lease: Lease = self.do(self._acquire(person, share, course, description))
        self._tasks.append(asyncio.run_coroutine_threadsafe(self._keep(lease), self._loop))
        return lease

    def wait(self, person: str, share: float, course: str = "ml101") -> str:
        """A place in the queue; returns the request's key."""
        key = f"{person} waits for {share}"
        queued = threading.Event()

        async def stay() -> None:
            async with AdminClient(self._address) as client:
                holder = Holder(person, "jupyterhub", course, "waits")
                async for _ in client.acquire(key, SliceRequest(share=share), holder):
                    queued.set()

        self._tasks.append(asyncio.run_coroutine_threadsafe(stay(), self._loop))
        assert queued.wait(30)
        return key

    async def _acquire(self, person: str, share: float, course: str, description: str) -> Lease:
        async with AdminClient(self._address) as client:
            holder = Holder(person, "jupyterhub", course, description)
            key = f"{person} {share} {description}"
            return await client.acquire_now(key, SliceRequest(share=share), holder, wait_seconds=0)

    async def _keep(self, lease: Lease) -> None:
        async with AdminClient(self._address) as client, client.keep_alive(lease) as task:
            await task

    def ask(self, method: str, *arguments: Any, on_behalf: str | None = None, **options: Any) -> Any:
        """One call of an administrator's, or on somebody's behalf."""

        async def work() -> Any:
            async with AdminClient(self._address, on_behalf=on_behalf) as client:
                return await getattr(client, method)(*arguments, **options)

        return self.do(work())


class Visitor(Browser):
    """A person with the console's pages."""

    def __init__(self, hub: Hub, person: str) -> None:
        super().__init__(hub, person)
        self.at = f"{hub.url}/services/gpukernel/"

    def see(self, path: str = "", **options: Any) -> requests.Response:
        return self.get(self.at + path, timeout=60, **options)

    def form_token(self, path: str = "") -> str:
        """The token that a page's forms carry."""
        found = re.search(r'name="_xsrf" value="([^"]+)"', self.see(path).text)
        assert found is not None
        return found[1]

    def fill(self, path: str, **fields: str) -> requests.Response:
        """A form of the console, sent and followed to where it leads."""
        return self.post(self.at + path, data={"_xsrf": self.form_token(), **fields}, timeout=60)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        own = tag == "style" or (tag == "script" and "src" not in names) or "style" in names
        if (
            own
            or any(re.fullmatch(r"on[a-z]+", name) for name in names)
            or tag in ("iframe", "object", "base")
        ):
            self.wrong.append(f"<{tag} {attrs}>")


def active_tags(page: requests.Response) -> list[str]:
    """Tags with a script or a style in the page itself, which our policy forbids."""
    tags = _Tags()
    tags.feed(page.text)
    return tags.wrong


def words(page: requests.Response) -> str:
    """A page's text without its tags."""
    return words_in(page.text)


def words_in(text: str) -> str:
    """HTML without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())
