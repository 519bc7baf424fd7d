"""``python -m hub_spawner.demo``, or ``make hub``: a real JupyterHub with simulated GPUs and a course of 50, to look at.

Everything lies in one directory and listens on this machine only.  Everybody's password is printed; servers run as your own account, so
this is for looking, not for a class.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from gpukernel.cli.demo import demo_notebooks
from hub_spawner.ports import free_port, is_free

__all__ = ["main", "write"]

_COURSES = """\
# The demo's courses: what an administrator writes.  docs/jupyterhub.md explains each line.
courses:
  ml101:
    title: Introduction to machine learning
    term: autumn 2026
    instructors: [prof]
    students: [{students}]
    offers: [V100 x 0.02, V100 x 0.05, V100 x 0.1]
    notebooks: [{notebooks}]
    quota: {{devices: 1.5, idle: 30min, longest_lease: 4h}}
    each_student: {{largest_slice: 0.1, leases: 2, gpu_hours_per_week: 3}}
  vision:
    title: Computer vision, a research group
    instructors: [prof, maria]
    students: [student01]
    offers: [V100 x 0.25, V100 x 0.5]
    quota: {{devices: 1.0}}
"""

_CONFIG = """\
# The demo's JupyterHub.  The last lines are all that GPUs need.
import pathlib, sys
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = "sqlite:///{home}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "{home}/cookie_secret"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = "{password}"
c.SharedPasswordAuthenticator.admin_password = "{admin_password}"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"admin"}}
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.pid_file = "{home}/proxy.pid"
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{home}/home/{{username}}"
c.Spawner.cmd = [{singleuser!r}]
c.Spawner.args = {arguments!r}
c.Spawner.default_url = "/lab"
c.JupyterHub.shutdown_on_logout = True

from hub_spawner import configure
configure(c, courses="{home}/courses.yaml", state="{home}/pool", simulate="{simulate}", console_url="http://127.0.0.1:{console_port}")
"""


def _free_port(wanted: int) -> int:
    return wanted if wanted and is_free(wanted) else free_port()


def write(home: Path, port: int, simulate: str = "v100:2") -> dict[str, str]:
    """Write the demo's files into `home`, and return its address and passwords.  Files of an earlier demo stay, but
    for the configuration.
    """
    (home / "home").mkdir(parents=True, exist_ok=True)
    home.chmod(0o711)
    students = ", ".join(f"student{number:02}" for number in range(1, 51))
    courses = home / "courses.yaml"
    if not courses.exists():
        courses.write_text(
            _COURSES.format(students=students, notebooks=demo_notebooks() / "02-classification.ipynb")
        )
    passwords = home / "passwords"
    if not passwords.exists():
        passwords.touch(mode=0o600)
        passwords.write_text(f"{secrets.token_urlsafe(6)}\n{secrets.token_urlsafe(32)}\n")
    password, admin_password = passwords.read_text().split()
    programs = Path(sys.executable).parent
    port = _free_port(port)
    content = _CONFIG.format(
        port=port,
        hub_port=_free_port(8081),
        proxy_port=_free_port(8001),
        console_port=_free_port(10171),
        home=home,
        password=password,
        admin_password=admin_password,
        proxy=[sys.executable, "-m", "hub_spawner.proxy"]
        if find_spec("configurable_http_proxy")
        else ["configurable-http-proxy"],
        singleuser=str(programs / "jupyterhub-singleuser"),
        arguments=["--allow-root"] if os.geteuid() == 0 else [],
        simulate=simulate,
    )
    config = home / "jupyterhub_config.py"
    config.touch(mode=0o600)
    config.write_text(content)
    return {"url": f"http://127.0.0.1:{port}", "password": password, "admin_password": admin_password}


_WELCOME = """
  JupyterHub is at {url}

    student01 … student50, prof, maria    password  {password}
    admin                                 password  {admin_password}

  Sign in as student01 (two courses to choose from), as student02 (straight into JupyterLab), and as prof,
  whose console is under Services → gpukernel.  Everything lies in {home}.  Stop it with Ctrl-C.
"""


def _answers(url: str, hub: subprocess.Popen[bytes]) -> bool:
    """Return whether the Hub comes up within two minutes."""
    end = time.monotonic() + 120
    while hub.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/hub/login", timeout=5):
                return True
        except OSError:
            time.sleep(0.3)
    return False


def main() -> None:
    """Write the demo, start JupyterHub, print where it is, and stop it when told to."""
    parser = argparse.ArgumentParser(
        prog="python -m hub_spawner.demo", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=Path(platformdirs.user_state_dir("gpukernel")) / "hub-demo",
        help="where everything lies (default: %(default)s)",
    )
    parser.add_argument("--port", type=int, default=8000, help="another one is taken where it is busy")
    parser.add_argument(
        "--simulate", default="v100:2", help="the GPUs, as of gpukernel up (default: %(default)s)"
    )
    arguments = parser.parse_args()
    home = arguments.home.absolute()
    told = write(home, arguments.port, arguments.simulate)
    log = home / "jupyterhub.log"
    print(f"Starting JupyterHub with simulated GPUs ({arguments.simulate}); its log: {log} …", flush=True)
    command = [sys.executable, "-m", "jupyterhub", "-f", str(home / "jupyterhub_config.py")]
    with log.open("wb") as file:
        hub = subprocess.Popen(command, cwd=home, stdout=file, stderr=file)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if not _answers(told["url"], hub):
            print(f"JupyterHub did not start:\n{log.read_text()[-2000:]}", file=sys.stderr)
            sys.exit(1)
        print(_WELCOME.format(home=home, **told), flush=True)
        hub.wait()
    except KeyboardInterrupt:
        print("\nStopping …", flush=True)
    finally:
        hub.terminate()
        hub.wait()


if __name__ == "__main__":
    main()
