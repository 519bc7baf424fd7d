"""Hubs with the console: one for all files, unless a file has a `running` of its own; and who comes to see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Pool
from tests.hub.console.people import COURSES, Holders, running_console
from tests.hub.hub import Hub

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.hub.console.signed import Signed


@pytest.fixture(scope="session")
def _console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Pool]]:
    home = tmp_path_factory.mktemp("console")
    with running_console(home, COURSES, groups={"teachers": ["tanja"]}) as both:
        yield both


@pytest.fixture(scope="module")
def running(_console: tuple[Hub, Pool]) -> tuple[Hub, Pool]:
    return _console


@pytest.fixture
def hub(running: tuple[Hub, Pool]) -> Hub:
    return running[0]


@pytest.fixture
def holders(running: tuple[Hub, Pool]) -> Iterator[Holders]:
    """The pool's people; afterwards the courses are again as they were."""
    hub, pool = running
    with Holders(pool.address) as found:
        yield found
        found.ask("import_courses", (hub.home / "courses.yaml").read_text())


@pytest.fixture(scope="module")  # not longer: its event loop is this thread's for as long as it runs
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    from tests.e2e.lab import CHROMIUM, QUIET

    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield found
        found.close()


@pytest.fixture
def signed(browser: Browser, hub: Hub) -> Iterator[Signed]:
    """Afterwards: neither the policy nor the scripts had anything to complain about, and no injected name ran."""
    from tests.hub.console.signed import Signed

    found = Signed(browser, hub)
    yield found
    found.close()
    assert found.said == []
