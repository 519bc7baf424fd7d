"""A real Jupyter server for tests: its REST interface, and its kernels over websockets, as JupyterLab and VS Code use them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import websocket

from tests.ports import free_port

# The default, 5 s, is for people: a test's kernel starts with its slice, however slow the machine is.
PATIENT = "--GPUKernelSpecManager.slice_config={'wait_seconds': 60}"
QUIET = ("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")


def _waits_for_anyio(dump: str) -> bool:
    """Tell whether all that keeps a server from ending is a thread of anyio's, which is no daemon and which nobody stops where the loop
    ended before the request that the thread had worked for: Jupyter Server's own trouble, and rare.  This package's threads are daemons.
    """
    threads, _, current = dump.partition("Fatal Python error: Aborted")[2].partition("Current thread")
    return "in _shutdown" in current and "anyio/_backends/_asyncio.py" in threads


class Server:
    """Context manager around ``python -m jupyter_server`` (or another `application`) with directories below `home`."""

    def __init__(
        self,
        home: Path,
        environment: dict[str, str],
        *options: str,
        application: str = "jupyter_server",
        root: Path | None = None,
    ) -> None:
        self.token = secrets.token_hex(16)
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        places = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("DATA", "CONFIG", "RUNTIME")}
        self.environment = {**environment, **places, "JUPYTER_TOKEN": self.token}
        self.environment.pop(
            "PYTEST_CURRENT_TEST", None
        )  # ipykernel captures file descriptors only without it
        self._root = root or home
        self._command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            application,
            "--no-browser",
            "--allow-root",
        ]
        self._command += [
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
        ]
        if not any("slice_config" in option for option in options):
            self._command.append(PATIENT)
        self._command += [*options, *(QUIET if application != "jupyter_server" else ())]
        self.process: subprocess.Popen[bytes] | None = None
        self.log = home / "server.log"

    def start(self, seconds: float = 240) -> None:
        """Start it, and return when it answers; where it does not within `seconds`, end its process and raise what its log says."""
        for kind in ("data", "config", "runtime"):
            (self.home / kind).mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, str(self._root)], env=self.environment, stdout=log, stderr=log
            )
        end = time.monotonic() + seconds  # beside other work it takes minutes
        with contextlib.ExitStack() as failed:
            failed.callback(
                self._kill
            )  # whatever goes wrong, a test's own time limit too: nobody calls `stop` then
            while True:
                with contextlib.suppress(OSError):
                    self.get("/api/status")
                    failed.pop_all()
                    return
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(self.log.read_text()[-3000:])
                time.sleep(0.1)

    def _kill(self) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.kill()
            process.wait()

    def stop(self, signum: int = signal.SIGTERM) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.send_signal(signum)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # so that the log shows where its threads are
                process.wait(10)
                if _waits_for_anyio(self.log.read_text()):
                    return
                pytest.fail(f"This server did not end within a minute:\n{self.log.read_text()[-6000:]}")

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(
        self, method: str, path: str, body: object = None, timeout: float = 60, *, token: bool = True
    ) -> tuple[int, Any]:
        """Status and content (JSON, or text where it is none)."""
        request = urllib.request.Request(self.url + path, method=method)
        if token:
            request.add_header("Authorization", f"token {self.token}")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=timeout) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text) if text else None
        except ValueError:
            return status, text

    def get(self, path: str) -> Any:
        status, content = self.ask("GET", path)
        assert status == 200, (status, content)
        return content

    def session(self, kernel: str, path: str = "a.ipynb") -> dict[str, Any]:
        """Start a notebook's kernel as front ends do."""
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": kernel}}
        status, content = self.ask("POST", "/api/sessions", body, timeout=120)
        assert status == 201, (status, content)
        return content  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def kernel(self, kernel_id: str) -> Iterator[KernelSocket]:
        """The channels of a kernel."""
        address = f"ws://127.0.0.1:{self.port}/api/kernels/{kernel_id}/channels?token={self.token}"
        link = websocket.create_connection(address, timeout=60, suppress_origin=True)
        try:
            yield KernelSocket(link)
        finally:
            link.close()


class KernelSocket:
    """One front end of a kernel."""

    def __init__(self, link: websocket.WebSocket) -> None:
        self._link = link
        self.session = uuid.uuid4().hex

    def send(self, code: str) -> str:
        """Have `code` executed; returns the request's id."""
        request = uuid.uuid4().hex
        header = {
            "msg_id": request,
            "session": self.session,
            "username": "test",
            "msg_type": "execute_request",
            "version": "5.3",
            "date": "",
        }
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
            "buffers": [],
        }
        self._link.send(json.dumps(message))
        return request

    def outputs(self, request: str) -> Iterator[tuple[str, str]]:
        """Yield what the cell shows, as it comes: ("stdout", text), ("stderr", text), ("error", sentence), ("data", plain text).

        Fails after two minutes in which nothing of this request came, whatever else the kernel says meanwhile.
        """
        heard = time.monotonic()
        while True:
            message = json.loads(self._link.recv())
            if message["parent_header"].get("msg_id") == request:
                heard = time.monotonic()
            assert time.monotonic() - heard < 120, "the kernel does not answer this request"
            if message["parent_header"].get("msg_id") != request:
                continue
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                yield content["name"], content["text"]
            elif kind == "error":
                yield "error", f"{content['ename']}: {content['evalue']}"
            elif kind in ("execute_result", "display_data"):
                yield "data", content["data"].get("text/plain", "")
            elif kind == "status" and content["execution_state"] == "idle":
                return

    def wait_until_it_answers(self) -> None:
        """Ask until the kernel answers one request.

        A request sent while its process starts anew may be lost, and so may the message of its state; a front end asks again, too.
        """
        asked: set[str] = set()
        patience = time.monotonic() + 120
        self._link.settimeout(2)
        try:
            while (now := time.monotonic()) < patience:
                if now > patience - 120 + 2 * len(asked):
                    asked.add(self.send("pass"))
                try:
                    message = json.loads(self._link.recv())
                except websocket.WebSocketTimeoutException:
                    continue
                if message["msg_type"] == "execute_reply" and message["parent_header"].get("msg_id") in asked:
                    return
            raise AssertionError("the kernel answers nothing")
        finally:
            self._link.settimeout(60)

    def run(self, code: str) -> str:
        """Everything that a cell shows."""
        return "".join(text for _, text in self.outputs(self.send(code)))


def pool_environment(state: Path) -> dict[str, str]:
    """This process's environment, with the pool of `state` and no other."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUKERNEL_POOL")}
    return {**environment, "GPUKERNEL_STATE": str(state)}
