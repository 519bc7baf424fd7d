"""A Hub in a container of its image; the network is this machine's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from tests.cli.test_tls import Secured
from tests.deploy.images.builder import Builder, skip_without
from tests.hub.hub import Hub

__all__ = ["ACCOUNT", "HubContainer"]

ACCOUNT = 1000
"""The number of the account in the images of Hub and single-user server."""

# As the configuration of Zero to JupyterHub begins.
_CLIENT = """
from tornado.httpclient import AsyncHTTPClient
AsyncHTTPClient.configure("tornado.curl_httpclient.CurlAsyncHTTPClient")
"""


class HubContainer(Hub):
    """A Hub of the image ``hub`` on the pool `secured`.

    Parameters
    ----------
    extra
        Lines of its configuration.
    volumes
        What it sees of this machine beside its own folder, as podman writes it.
    """

    def __init__(
        self, builder: Builder, secured: Secured, courses: str, *, extra: str, volumes: Iterable[str] = ()
    ) -> None:
        skip_without("podman", "runc")
        builder.image("hub")
        builder.home.chmod(0o711)
        home = builder.home / "jupyterhub"  # pytest's own folders are closed for other accounts
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        shutil.copy(secured.file("hub", "--scope", "service"), home / "hub.pool")
        (home / "courses.yaml").write_text(courses)
        options = {"pool": str(home / "hub.pool"), "courses": str(home / "courses.yaml")}
        super().__init__(home, builder.podman.environment, options, extra=f"{_CLIENT}{extra}")
        for path in (home, *home.rglob("*")):
            os.chown(path, ACCOUNT, ACCOUNT)
        mounts = (f"{home}:{home}", *volumes)
        self.command = [
            *builder.podman.command,
            *("run", "--rm", "--name", "hub", "--network", "host", "--env", "CONFIGPROXY_AUTH_TOKEN"),
            *(word for one in mounts for word in ("-v", one)),
            "localhost/hub:1",
            *("jupyterhub", "-f", str(home / "jupyterhub_config.py")),
        ]
