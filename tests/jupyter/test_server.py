"""The server extension in a real Jupyter server: who may ask, what it answers, and that it never hangs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.conftest import Pool, eventually
from tests.jupyter.server import Server, pool_environment
from tests.jupyter.test_kernel_lease import LOOK

OPTIONS = (
    "--ServerApp.kernel_spec_manager_class=gpukernel.jupyter.specs.GPUKernelSpecManager",
    "--ServerApp.jpserver_extensions={'gpukernel.jupyter.server': True}",
    "--GPUKernelSpecManager.slice_config={'wait_seconds': 0.2}",
)
SCHEMA = "https://events.gpukernel.org/slice/v1"


@pytest.fixture
def server(own_pool: Pool, tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, pool_environment(own_pool.state), *OPTIONS) as running:
        yield running


def status(server: Server) -> dict[str, Any]:
    return server.get("/gpukernel/api/status")  # type: ignore[no-any-return]


def kernel_of(server: Server, session: dict[str, Any]) -> dict[str, Any]:
    (found,) = [k for k in status(server)["kernels"] if k["kernel_id"] == session["kernel"]["id"]]
    return found  # type: ignore[no-any-return]


class Events:
    """The events of slices in the server's event stream, collected in a thread."""

    def __init__(self, server: Server) -> None:
        address = f"ws://127.0.0.1:{server.port}/api/events/subscribe?token={server.token}"
        self._link = websocket.create_connection(address, timeout=60, suppress_origin=True)
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        try:
            while True:
                event = json.loads(self._link.recv())
                if event["schema_id"] == SCHEMA:
                    self.seen.append(event)
        except (OSError, ValueError, websocket.WebSocketException):
            return

    def states(self, kernel: str) -> list[str]:
        return [event["state"] for event in self.seen if event["kernel_id"] == kernel]


@pytest.mark.parametrize("path", ["status", "offers"])
def test_strangers_learn_nothing(server: Server, path: str) -> None:
    assert server.ask("GET", f"/gpukernel/api/{path}", token=False)[0] == 403


def test_a_request_of_another_page_changes_nothing(server: Server) -> None:
    """A browser sends the cookie of the person with a form of any page; without the XSRF token it is refused."""
    import http.cookiejar
    import urllib.error
    import urllib.request

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    browser.open(f"{server.url}/api/status?token={server.token}")  # now it has the cookies
    browser.open(f"{server.url}/gpukernel/api/status")
    forged = urllib.request.Request(f"{server.url}/gpukernel/api/sizes", b'{"share": 0.07, "model": "V100"}')
    with pytest.raises(urllib.error.HTTPError) as refusal:
        browser.open(forged)
    assert refusal.value.code == 403


def test_status_shows_the_slices_and_their_use(server: Server) -> None:
    session = server.session("gpu-v100-0.02")
    with server.kernel(session["kernel"]["id"]) as kernel:
        kernel.run(LOOK + "\nd.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1]); d.cuMemAlloc(131 << 20)")
        shown = kernel_of(server, session)
    assert (shown["state"], shown["what"], shown["memory_bytes"] >> 20) == ("live", "V100 × 0.02", 655)
    assert shown["used_bytes"] >> 20 == 131
    assert 0 <= shown["gpu_share"] <= 1
    assert "secret" not in json.dumps(status(server))
    assert len(json.dumps(status(server))) < 2000


def test_events_tell_of_the_queue_and_cancel_leaves_it(server: Server, own_pool: Pool) -> None:
    events = Events(server)
    whole = server.session("gpu-v100-1.0")
    waits = server.session("gpu-v100-0.02", "b.ipynb")
    kernel = waits["kernel"]["id"]
    eventually(lambda: any(e["kernel_id"] == kernel and e["position"] == 1 for e in events.seen))
    shown = kernel_of(server, waits)
    assert (shown["state"], shown["position"]) == ("waiting", 1)
    with server.kernel(kernel) as channels:
        cell = channels.outputs(channels.send(LOOK))
        assert "position 1" in next(cell)[1]
        assert server.ask("POST", f"/gpukernel/api/kernels/{kernel}/cancel", {})[0] == 204
        said = "".join(text for _, text in cell)
        assert "this kernel left the queue; run the cell again to queue again" in said
        assert "KeyboardInterrupt" in said
        assert own_pool.leases()[1] == []
        cell = channels.outputs(channels.send(LOOK))
        assert "position 1" in next(cell)[1]
        assert server.ask("DELETE", f"/api/sessions/{whole['id']}")[0] == 204
        assert "CUDA_SUCCESS 655" in "".join(text for _, text in cell)
    eventually(lambda: events.states(kernel)[-1] == "live")


def test_release_and_acquire_from_outside_the_kernel(server: Server, own_pool: Pool) -> None:
    session = server.session("gpu-v100-0.02")
    act = f"/gpukernel/api/kernels/{session['kernel']['id']}"
    assert server.ask("POST", f"{act}/release", {})[0] == 204
    eventually(lambda: own_pool.promised() == 0)
    assert kernel_of(server, session)["state"] == "none"
    assert server.ask("POST", f"{act}/acquire", {"share": 0.05})[0] == 204
    eventually(lambda: kernel_of(server, session)["memory_bytes"] >> 20 == 1638)


def test_what_cannot_be_is_a_sentence(server: Server) -> None:
    for path, body, code, sentence in [
        ("sizes", {"share": 7}, 400, "between 0.001 and 1"),
        ("sizes", {"share": "x"}, 400, "A size is a share"),
        ("sizes", {}, 400, "A size is a share"),
        ("kernels/none/release", {}, 409, "no such kernel"),
        ("leases/none/release", {}, 404, "You hold no such lease"),
    ]:
        status_code, answer = server.ask("POST", f"/gpukernel/api/{path}", body)
        assert (status_code, sentence in answer["message"]) == (code, True), answer


def test_a_size_of_ones_own_is_listed_and_starts(server: Server) -> None:
    code, answer = server.ask("POST", "/gpukernel/api/sizes", {"share": 0.07, "model": "V100"})
    assert (code, answer) == (201, {"name": "gpu-v100-0.07"})
    assert "gpu-v100-0.07" in server.get("/api/kernelspecs")["kernelspecs"]
    assert kernel_of(server, server.session("gpu-v100-0.07"))["memory_bytes"] >> 20 == 2293
    offers = server.get("/gpukernel/api/offers")
    assert {one["share"] for one in offers["offers"]} >= {0.02, 1.0}
    assert offers["models"].keys() == {"V100"}


def test_the_prospects_of_any_size_are_told_before_it_is_chosen(server: Server) -> None:
    def chance(share: object, model: str = "V100") -> tuple[int, Any]:
        return server.ask("GET", f"/gpukernel/api/chance?share={share}&model={model}")

    code, found = chance(0.07)
    assert (code, found["state"], found["memory_bytes"] >> 20, found["free"]) == (200, "free", 2293, 14)
    server.session("gpu-v100-1.0")
    code, found = chance(0.07)
    assert (code, found["state"], found["sentence"]) == (200, "wait", "All V100 are in use now.")
    for share, model, sentence in ((0.07, "H100", "no H100"), (7, "V100", "share"), ("nan", "V100", "share")):
        code, found = chance(share, model)
        assert (code, found["state"], sentence in found["sentence"]) == (200, "refused", True), found
    code, found = chance("x")
    assert (code, found["message"]) == (400, "A size is a share of a device, for example 0.07, and a model.")


def test_leases_of_other_servers_are_shown_and_can_be_ended(server: Server, own_pool: Pool) -> None:
    program = own_pool.start_on_slice("print('up'); input()")
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    (other,) = eventually(lambda: status(server)["others"])
    assert other["memory_bytes"] >> 20 == 655
    assert server.ask("POST", f"/gpukernel/api/leases/{other['lease_id']}/release", {})[0] == 204
    eventually(lambda: own_pool.live() == [])
    program.communicate("\n", timeout=60)


def test_without_a_pool_every_answer_comes_within_seconds_and_says_so(server: Server, own_pool: Pool) -> None:
    server.session("gpu-v100-0.02")
    own_pool.kill()

    def timed() -> tuple[float, dict[str, Any]]:
        before = time.monotonic()
        answer = status(server)
        return time.monotonic() - before, answer

    took, answer = eventually(lambda: (t := timed())[1]["problem"] and t)
    assert took < 10
    assert "No pool answers" in answer["problem"]
    assert [k["state"] for k in answer["kernels"]] == ["live"]  # the worker lives on
    own_pool.start()
    eventually(lambda: not status(server)["problem"])


def test_a_person_of_a_jupyterhub_is_not_told_to_start_a_pool(tmp_path: Path) -> None:
    environment = pool_environment(tmp_path / "nowhere") | {"JUPYTERHUB_USER": "anna"}
    with Server(tmp_path, environment, *OPTIONS) as server:
        problem = eventually(lambda: status(server)["problem"])
        refusal = server.ask("GET", "/gpukernel/api/hours")
    assert problem.startswith("The GPU pool does not answer now; what runs on a slice goes on.")
    assert refusal[0] == 502
    assert problem in str(refusal[1])


def test_the_hours_of_this_week_are_those_of_the_pool_s_report_and_of_the_quota(
    server: Server, own_pool: Pool
) -> None:
    assert server.get("/gpukernel/api/hours") == {"used": 0, "allowed": 0, "course": "", "page": ""}
    own_pool.gpukernel("quota", "set", "person:*", "gpu_hours_per_week=3")
    server.session("gpu-v100-1.0")
    eventually(lambda: server.get("/gpukernel/api/hours")["used"] > 0)
    week = server.get("/gpukernel/api/hours")
    assert (week["allowed"], week["course"]) == (3, "")
    assert server.ask("GET", "/gpukernel/api/hours", token=False)[0] == 403


def test_leaving_the_queue_interrupts_the_cell_that_waits_and_no_other(
    server: Server, own_pool: Pool
) -> None:
    server.session("gpu-v100-1.0")
    second = server.session("gpu-v100-0.02", "b.ipynb")["kernel"]["id"]
    with server.kernel(second) as kernel:
        busy = kernel.outputs(
            kernel.send("import time; print('busy', flush=True); time.sleep(3); print('done')")
        )
        assert next(busy) == ("stdout", "busy\n")
        assert server.ask("POST", f"/gpukernel/api/kernels/{second}/cancel", {})[0] == 204
        # Nothing waited for the slice, so the cell goes on.
        assert list(busy) == [("stdout", "done\n")]
    assert own_pool.leases()[1] == []
