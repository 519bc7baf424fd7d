"""A real JupyterHub with its proxy, in processes of their own: started, killed and started again; asked as browsers and scripts ask."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from tests.ports import free_port

ADMIN, PASSWORD = "admin", "a password for tests"
ADMIN_PASSWORD = "another password and a longer one for the administrator"

_CONFIG = """
import sys
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = "sqlite:///{home}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{home}/cookie_secret"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "{password}"
c.SharedPasswordAuthenticator.admin_password = "{admin_password}"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"{admin}"}}
c.JupyterHub.spawner_class = "{spawner}"
c.SimpleLocalProcessSpawner.home_dir_template = "{home}/home/{{username}}"
c.Spawner.default_url = "/lab"
c.Spawner.args = ["--allow-root", "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
c.Spawner.environment = {environment!r}
c.Spawner.http_timeout = 120
c.Spawner.poll_interval = 5
c.Spawner.start_timeout = 120
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0}}
c.JupyterHub.cleanup_servers = False
c.JupyterHub.shutdown_on_logout = True
c.JupyterHub.allow_named_servers = True
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.active_server_limit = 0
c.ConfigurableHTTPProxy.command = [sys.executable, "-m", "hub_spawner.proxy"]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.pid_file = "{home}/proxy.pid"
c.JupyterHub.services = [{{"name": "tests", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [{{
    "name": "tests", "services": ["tests"],
    "scopes": ["admin:users", "admin:servers", "admin:groups", "tokens", "access:servers", "list:users", "read:hub"],
}}]
c.JupyterHub.load_groups = {groups!r}
{extra}
from hub_spawner import configure
configure(c, **{options!r})
"""


class Hub:
    """Context manager around ``python -m jupyterhub``, or what `command` is changed to; its directories lie below `home`.

    Parameters
    ----------
    environment
        For the Hub, and what of it starts with ``GPUKERNEL_`` or ``JUPYTER_`` for the servers.
    options
        For `hub_spawner.configure`.
    extra
        Lines of configuration before that call.
    spawner
        The spawner class, as JupyterHub names it.
    """

    patience = 150.0
    """Seconds that the start of a server may take."""

    def __init__(
        self,
        home: Path,
        environment: Mapping[str, str],
        options: Mapping[str, Any],
        *,
        groups: Mapping[str, list[str]] | None = None,
        extra: str = "",
        spawner: str = "simple",
    ) -> None:
        self.home = home
        self.port, hub_port, proxy_port, console_port = (free_port() for _ in range(4))
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = secrets.token_hex(16)
        self.log = home / "hub.log"
        (home / "home").mkdir(parents=True, exist_ok=True)
        kept = ("JUPYTER_PREFER_ENV_PATH", "GPUKERNEL_NATIVE_DIR", "PYTHONPATH")
        servers = {name: environment[name] for name in kept if name in environment}
        config = _CONFIG.format(
            port=self.port,
            hub_port=hub_port,
            proxy_port=proxy_port,
            home=home,
            password=PASSWORD,
            admin_password=ADMIN_PASSWORD,
            admin=ADMIN,
            environment=servers,
            token=self.token,
            groups={name: {"users": people} for name, people in (groups or {}).items()},
            extra=extra,
            spawner=spawner,
            options={"console_url": f"http://127.0.0.1:{console_port}", **options},
        )
        (home / "jupyterhub_config.py").write_text(config)
        self._environment = {**environment, "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16)}
        self._environment.pop("PYTEST_CURRENT_TEST", None)
        self.command = [sys.executable, "-m", "jupyterhub", "-f", str(home / "jupyterhub_config.py")]
        self.process: subprocess.Popen[bytes] | None = None

    # --- its life ---

    def start(self) -> None:
        """Start it, and return when it and its console answer."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.home, env=self._environment, stdout=log, stderr=log
            )
        end = time.monotonic() + 240  # beside other work a Hub takes minutes
        while True:
            try:
                console = f"{self.url}/services/gpukernel/ready"
                if self.ask("GET", "/info").ok and requests.get(console, timeout=60).ok:
                    return
            except requests.ConnectionError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self.said())
            time.sleep(0.2)

    def said(self) -> str:
        """Return the end of what it has logged."""
        return self.log.read_text()[-5000:]

    def stop(self) -> None:
        """As an administrator does; servers live on (``cleanup_servers``)."""
        if self.process is not None:
            process, self.process = self.process, None
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise RuntimeError(f"JupyterHub did not stop: {self.said()}") from None

    def kill(self) -> None:
        """``kill -9``: neither servers, services nor proxy are told."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            if self.process is not None and self.process.poll() is None:
                self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.stop_all_servers()
            self.stop()

    def stop_all_servers(self) -> None:
        """And return when the Hub runs none."""
        paths = [
            f"/users/{one}/servers/{name}" if name else f"/users/{one}/server" for one, name in self.running()
        ]
        with ThreadPoolExecutor(16) as several:
            list(several.map(lambda path: self.ask("DELETE", path), paths))
        end = time.monotonic() + 60
        while self.running() and time.monotonic() < end:
            time.sleep(0.2)

    # --- what scripts ask ---

    def ask(self, method: str, path: str, body: Any = None, token: str = "") -> requests.Response:
        """The REST API, as the tests' own service or with somebody's token."""
        return requests.request(
            method,
            f"{self.url}/hub/api{path}",
            json=body,
            headers={"Authorization": f"token {token or self.token}"},
            timeout=150,
        )

    def running(self) -> set[tuple[str, str]]:
        """(person, server's name) of every server that the Hub runs or starts."""
        users = self.ask("GET", "/users?state=active&limit=500").json()
        return {(user["name"], name) for user in users for name in user["servers"]}

    def start_server(self, person: str, options: Mapping[str, Any] | None = None, name: str = "") -> None:
        """Start it and return when it is ready.

        Raises
        ------
        ServerRefused
            With the Hub's sentence.
        """
        self.ask("POST", f"/users/{person}")
        path = f"/users/{person}/servers/{name}" if name else f"/users/{person}/server"
        answer = self.ask("POST", path, dict(options or {}))
        if not answer.ok:
            raise ServerRefused(answer.json().get("message", answer.text))
        end = time.monotonic() + self.patience
        while True:
            servers = self.ask("GET", f"/users/{person}").json()["servers"]
            if name not in servers:
                # Hidden by its failure: the Hub tells it to whoever asks for progress.
                raise ServerRefused(self.last_failure(person, name))
            if servers[name]["ready"]:
                return
            if time.monotonic() > end:
                raise RuntimeError(self.said())
            time.sleep(0.1)

    def last_failure(self, person: str, name: str = "") -> str:
        """The sentence of a start that failed."""
        path = f"/users/{person}/servers/{name}/progress" if name else f"/users/{person}/server/progress"
        return self.ask("GET", path).text

    def stop_server(self, person: str, name: str = "") -> None:
        path = f"/users/{person}/servers/{name}" if name else f"/users/{person}/server"
        self.ask("DELETE", path).raise_for_status()
        end = time.monotonic() + 60
        while (person, name) in self.running():
            if time.monotonic() > end:
                raise RuntimeError(f"{person}'s server does not stop")
            time.sleep(0.1)

    def pid(self, person: str, name: str = "") -> int:
        """The process of a server."""
        user = self.ask("GET", f"/users/{person}?include_stopped_servers=1").json()
        return int(user["servers"][name]["state"]["pid"])

    def server(self, person: str, name: str = "") -> Single:
        """The REST API of a person's single-user server."""
        return Single(self, person, name)

    def browse(self, person: str) -> Browser:
        """A session that has signed in as `person`."""
        return Browser(self, person)


class ServerRefused(Exception):
    """The Hub did not start a server; the text is what it says."""


class Single:
    """A single-user server, asked with a token of its person."""

    def __init__(self, hub: Hub, person: str, name: str = "") -> None:
        self.url = f"{hub.url}/user/{person}/{name + '/' if name else ''}"
        made = hub.ask("POST", f"/users/{person}/tokens", {"note": "tests", "expires_in": 3600})
        made.raise_for_status()
        self.token = made.json()["token"]

    def ask(self, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"token {self.token}"}
        return requests.request(method, self.url + path.lstrip("/"), json=body, headers=headers, timeout=150)

    def start_kernel(self, spec: str, path: str = "a.ipynb") -> requests.Response:
        """``POST /api/sessions``, as JupyterLab does."""
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": spec}}
        return self.ask("POST", "/api/sessions", body)


class Browser(requests.Session):
    """Cookies and forms, as a browser has them."""

    def __init__(self, hub: Hub, person: str) -> None:
        super().__init__()
        self.hub = hub
        page = self.get(f"{hub.url}/hub/login", timeout=60)
        page.raise_for_status()
        answer = self.post(
            f"{hub.url}/hub/login",
            data={
                "username": person,
                "password": ADMIN_PASSWORD if person == ADMIN else PASSWORD,
                "_xsrf": self.xsrf,
            },
            allow_redirects=False,
            timeout=60,
        )
        if answer.status_code != 302:
            raise RuntimeError(f"{person} could not sign in: {answer.status_code}")

    @property
    def xsrf(self) -> str:
        """JupyterHub's token against forged requests, of the Hub's own pages."""
        return next(
            cookie.value or "" for cookie in self.cookies if cookie.name == "_xsrf" and cookie.path == "/hub/"
        )


def environment_of(state: Path, home: Path) -> dict[str, str]:
    """For a Hub whose account has the pool's state directory `state`; nothing of the caller's Jupyter."""
    dropped = ("JUPYTER", "JPY", "GPUKERNEL_POOL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    own = {"GPUKERNEL_STATE": str(state), "JUPYTER_PREFER_ENV_PATH": "0", "HOME": str(home), "PATH": path}
    return kept | own
