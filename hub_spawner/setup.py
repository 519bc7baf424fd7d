"""`configure`, which sets up a JupyterHub with GPUs from its configuration file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner

from gpukernel.common.address import resolve_address
from gpukernel.common.course_file import read_courses
from gpukernel.common.errors import Refused
from hub_spawner.form import TEMPLATES
from hub_spawner.roles import admin_role, instructor_roles, scopes_of_sessions
from hub_spawner.spawner import with_gpus

__all__ = ["configure"]

SERVICE = "gpukernel"


def configure(
    c: Any,
    *,
    pool: str = "",
    pool_for_servers: str = "",
    token_file: str = "",
    courses: str = "",
    environments: Mapping[str, Mapping[str, Any]] | None = None,
    state: str = "",
    simulate: str = "",
    hub_tokens: bool = False,
    hub_name: str = "jupyterhub",
    console_url: str = "http://127.0.0.1:10171",
    console_ip: str = "",
) -> None:
    """Give the Hub's servers GPUs: spawner, choice page, instructors' console, and courses.

    Call it at the end of ``jupyterhub_config.py``, after the spawner class was chosen, and after ``load_roles``: an entry there with the
    name ``gpukernel-instructor-COURSE`` says who holds that course's role, one with the name ``gpukernel-admin`` who administers the pool
    besides the Hub's administrators (`hub_spawner.roles`).

    Parameters
    ----------
    c
        The configuration object of JupyterHub's file.
    pool
        A pool that runs elsewhere: the connection file that ``gpukernel token create --scope admin --file`` wrote, or an address
        (``tls://HOST:PORT``, ``unix:/path/pool.sock``).  Empty: the Hub runs a pool of its own, with this machine's GPUs.
    pool_for_servers
        The address that single-user servers use, where it is another one.
    token_file
        File with a token, where `pool` is an address over TCP.  The scope ``service`` is enough for servers; to import `courses`, and for
        the console's administration pages, it is ``admin``.  A pool over a unix socket of the Hub's own account needs no token.
    courses
        A ``courses.yaml``: imported when the Hub starts, if it is not the text that was imported last.  With a token of scope ``service``
        an administrator of the pool imports it (``gpukernel quota import``).
    environments
        What courses may offer, as `GPUSpawnerMixin.environments`.
    state
        Directory of the Hub's own pool; empty: ``gpukernel-pool`` in the working directory.
    simulate
        Devices that the Hub's own pool simulates, for example ``v100:2``, as of ``gpukernel up``.
    hub_tokens
        The Hub's own pool takes JupyterHub's API tokens of people too, as ``gpukernel pool --hub-api`` does for a pool elsewhere.
    hub_name
        What servers of this Hub are called in the pool: one for each Hub that shares a pool.
    console_url
        Where the Hub's proxy reaches the console.
    console_ip
        Where the console listens, if not at the address in `console_url`: ``0.0.0.0`` where the proxy is on another machine, or in
        another pod.

    Raises
    ------
    ValueError
        Where the arguments contradict each other, or a file is missing.
    """
    for what, path in (("token_file", token_file), ("courses", courses)):
        if path and not Path(path).is_file():
            raise ValueError(f"{what}: there is no file {path}.")
    if pool and (simulate or state or hub_tokens):
        raise ValueError(
            "pool names a pool that runs elsewhere; simulate, state and hub_tokens are for the Hub's own."
        )
    services: list[dict[str, Any]] = []
    if pool:
        pool = resolve_address(pool)  # the whole path of a connection file
    else:
        directory = Path(state or "gpukernel-pool").absolute()
        pool = resolve_address(None, directory)
        services.append(_pool_service(directory, simulate, hub_tokens))
    token_file = str(Path(token_file).absolute()) if token_file else ""
    settings = {
        "pool": pool,
        "pool_for_servers": pool_for_servers,
        "pool_token_file": token_file,
        "environments": {name: dict(changes) for name, changes in (environments or {}).items()},
        "hub_name": hub_name,
    }
    for name, value in settings.items():
        if value:
            setattr(c.GPUSpawnerMixin, name, value)
    console = {
        "GPUKERNEL_POOL": pool,
        "GPUKERNEL_POOL_TOKEN_FILE": token_file,
        "GPUKERNEL_COURSES": str(Path(courses).absolute()) if courses else "",
        "GPUKERNEL_HUB": hub_name,
        "GPUKERNEL_CONSOLE_IP": console_ip,
    }
    access = f"access:services!service={SERVICE}"
    roles, scopes = admin_role(_listed(c, "load_roles"), _scopes(c), access)
    roles, scopes = instructor_roles(roles, scopes, _course_names(courses), access)
    c.JupyterHub.custom_scopes = scopes
    services.append(_console_service(console_url, console, scopes))
    c.JupyterHub.services = [*_listed(c, "services"), *services]
    c.JupyterHub.load_roles = _roles(roles)
    c.JupyterHub.template_paths = [*_listed(c, "template_paths"), str(TEMPLATES)]
    c.JupyterHub.spawner_class = with_gpus(_spawner_class(c))


def _pool_service(directory: Path, simulate: str, hub_tokens: bool) -> dict[str, Any]:
    """Return the service that is the Hub's own pool, with its state in `directory`."""
    command = [sys.executable, "-m", "hub_spawner.embedded", "--state", str(directory)]
    command += ["--simulate", simulate] if simulate else []
    command += ["--hub-tokens"] if hub_tokens else []
    return {"name": "gpukernel-pool", "command": command, "environment": _passed_on()}


def _console_service(url: str, environment: Mapping[str, str], scopes: Iterable[str]) -> dict[str, Any]:
    """Return the service that is the console; its sessions may have the instructors' and administrators' part of `scopes`."""
    return {
        "name": SERVICE,
        "display": True,
        "url": url,
        "command": [sys.executable, "-m", "hub_spawner.console"],
        "environment": _passed_on() | {name: value for name, value in environment.items() if value},
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": scopes_of_sessions(scopes),
    }


def _listed(c: Any, name: str) -> list[Any]:
    return list(c.JupyterHub[name]) if name in c.JupyterHub and isinstance(c.JupyterHub[name], list) else []


def _scopes(c: Any) -> dict[str, Any]:
    return dict(c.JupyterHub.custom_scopes) if "custom_scopes" in c.JupyterHub else {}


def _course_names(path: str) -> list[str]:
    """Return the courses of a ``courses.yaml``.  A file with errors gives none: the Hub starts, and the import names the errors."""
    try:
        return list(read_courses(Path(path).read_text()).courses) if path else []
    except (OSError, UnicodeDecodeError, Refused):
        return []


def _roles(before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add that everybody may open the console, which shows only what the pool shows them, and that the console may see who runs what."""
    access = f"access:services!service={SERVICE}"
    roles = [dict(role) for role in before]
    everybody = next((role for role in roles if role.get("name") == "user"), None)
    if everybody is None:
        roles.append({"name": "user", "scopes": ["self", access]})
    else:
        everybody["scopes"] = [*everybody.get("scopes", ["self"]), access]
    scopes = ["list:users", "read:servers", "read:users:groups"]
    return [*roles, {"name": f"{SERVICE}-console", "scopes": scopes, "services": [SERVICE]}]


def _spawner_class(c: Any) -> Any:
    named = c.JupyterHub.get("spawner_class", LocalProcessSpawner)
    if not isinstance(named, str):
        return named
    if "." not in named:  # an entry point, such as "docker"
        from importlib.metadata import entry_points

        (found,) = entry_points(group="jupyterhub.spawners", name=named) or (None,)
        if found is None:
            raise ValueError(f"spawner_class: there is no spawner named {named}.")
        return found.load()
    module, _, name = named.rpartition(".")
    return getattr(import_module(module), name)


def _passed_on() -> dict[str, str]:
    """Return the settings of the Hub's own environment that its services need too; JupyterHub passes on only what it knows."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("GPUKERNEL_") and "TOKEN" not in name
    }
