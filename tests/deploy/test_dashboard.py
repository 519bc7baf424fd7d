"""The dashboard's questions, put to a real Prometheus that reads a real pool; skipped where Prometheus is not installed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "gpukernel.json"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that reads a pool's metrics every second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    metrics, own = _free_port(), _free_port()
    (tmp_path / "prometheus.yml").write_text(
        "global: { scrape_interval: 1s }\n"
        "scrape_configs:\n"
        f"  - {{ job_name: gpukernel, static_configs: [ {{ targets: ['127.0.0.1:{metrics}'] }} ] }}\n"
    )
    state = tmp_path / "pool"
    pool = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gpukernel.cli",
            "pool",
            "--state",
            str(state),
            "--metrics",
            f"127.0.0.1:{metrics}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    reader = subprocess.Popen(
        [
            program,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{own}"
    finally:
        for process in (reader, pool):
            process.terminate()
            process.wait(30)


def _ask(address: str, expression: str) -> Any:
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=10) as answer:
            return json.loads(answer.read())["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it starts
            return None
        raise AssertionError(f"{expression}: {error.read().decode()}") from None
    except OSError:
        return None


def test_a_real_prometheus_answers_every_question(prometheus: str) -> None:
    eventually(lambda: _ask(prometheus, "gpukernel_pools"), 60)
    # A rate needs two samples.
    eventually(lambda: _ask(prometheus, "rate(gpukernel_decisions_total[5m])"), 60)
    asked = {
        target["expr"]: panel["title"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    }
    silent = {title for expression, title in asked.items() if not _ask(prometheus, expression)}
    expected = {t for e, t in asked.items() if "device" in e or "course" in e or "_seconds_total" in e}
    expected |= {t for e, t in asked.items() if "gpukernel_waiting" in e}
    assert silent <= expected, silent - expected
