"""The commands of the chart's containers are those of this tree: each is parsed by our command line, and pool and agent really run so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gpukernel.cli.app import app
from gpukernel.cli.terminal.output import Problem, seconds
from tests.attacks.servers import Process
from tests.conftest import eventually
from tests.deploy.helm.chart import CHART, VALUES, containers, needs_helm, pods, render
from tests.ports import free_port

# Of click, which typer brings under a name of its own.
UsageError: Any = typer.BadParameter.__base__
COMMAND = typer.main.get_command(app)
CLI = (sys.executable, "-m", "gpukernel.cli")
FIELDS = {"spec.nodeName": "gpu1", "status.podIP": "127.0.0.1"}


def words(container: dict[str, Any]) -> list[str]:
    """Return what a container runs, with its variables as a kubelet puts them in."""
    values = {
        variable["name"]: variable.get("value") or FIELDS[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in container.get("env", ())
    }
    return [
        re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word)
        for word in (*container.get("command", ()), *container.get("args", ()))
    ]


def parse(command: Any, arguments: list[str], parent: typer.Context | None = None) -> list[typer.Context]:
    """Parse a command line as the program does, without running it; raises `UsageError` or `Problem`."""
    context = command.make_context(command.name or "gpukernel", list(arguments), parent=parent)
    rest = [*getattr(context, "_protected_args", ()), *context.args]
    if not rest or not hasattr(command, "resolve_command"):
        return [context]
    _, below, left = command.resolve_command(context, rest)
    return [context, *parse(below, left, context)]


def ours() -> Iterator[tuple[str, list[str]]]:
    for case, values in VALUES.items():
        for name, container in containers(render(values)):
            command = words(container)
            if command[:1] == ["/opt/gpukernel/bin/gpukernel"]:
                yield f"{case}: {name}", command[1:]


def test_a_renamed_option_is_noticed() -> None:
    parse(COMMAND, ["agent", "--pool=x", "--notice=5m"])
    for wrong in (
        ["agent", "--notise=5m"],
        ["pool", "--listen"],
        ["pools"],
        ["pool", "--client-certificates=x"],
    ):
        with pytest.raises((UsageError, Problem)):
            parse(COMMAND, wrong)


@needs_helm
def test_every_container_runs_a_command_that_exists() -> None:
    found = list(ours())
    assert {line[0] for _, line in found} == {"pool", "agent", "kubernetes"}
    times = re.compile(r"--(notice|grace|token-validity)=(.+)")
    for name, line in found:
        parsed = parse(COMMAND, line)
        if line[0] == "kubernetes":
            assert parsed[-1].command.name in ("controller", "node", "hours"), name
        for word in line:
            if match := times.fullmatch(word):
                assert seconds(match[2]) > 0, name


@needs_helm
@pytest.mark.parametrize("case", VALUES)
def test_an_agent_s_notice_ends_before_its_pod_s_time(case: str) -> None:
    for _, pod in pods(render(VALUES[case])):
        for container in pod["spec"]["containers"]:
            for word in container.get("args", ()):
                if word.startswith("--notice="):
                    left = pod["spec"]["terminationGracePeriodSeconds"] - seconds(word.partition("=")[2])
                    assert left >= 30  # tests/agent/test_notice.py: it ends well within that


class Node:
    """A folder that stands for a node: containers' paths and ports are put there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = {port: str(free_port()) for port in ("7437", "9437")}
        self.running: list[Process] = []

    def here(self, word: str) -> str:
        for place in ("/var/lib/gpukernel", "/etc/gpukernel"):
            word = word.replace(place, f"{self.home}{place}")
        for port, other in self.ports.items():
            word = word.replace(f":{port}", f":{other}")
        return word.replace("0.0.0.0:", "127.0.0.1:")

    def run(self, container: dict[str, Any], ready: str) -> Process:
        command = [self.here(word) for word in words(container)]
        variables = {v["name"]: self.here(v["value"]) for v in container.get("env", ()) if "value" in v}
        process = Process((*CLI, *command[1:]), {**os.environ, **variables})
        self.running.append(process)
        eventually(lambda: ready in process.said or process.process.poll() is not None, 60)
        assert ready in process.said, process.said
        return process

    def status(self, probe: dict[str, Any]) -> int:
        asked = probe["httpGet"]
        assert asked["port"] == "metrics"
        where = f"http://127.0.0.1:{self.ports['9437']}{asked['path']}"
        with urllib.request.urlopen(where, timeout=probe.get("timeoutSeconds", 1)) as answer:
            return int(answer.status)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for process in reversed(node.running):
        process.end()


@needs_helm
def test_pool_and_agent_run_as_the_chart_starts_them(node: Node) -> None:
    manifests = render(
        {"agents": {"simulated": {"simulate": "v100:2"}}, "pool": {"clientCertificates": "require"}}
    )
    found = dict(containers(manifests))
    secrets, state = node.home / "etc/gpukernel", node.home / "var/lib/gpukernel/pool"
    (node.home / "var/lib/gpukernel").mkdir(parents=True)
    made = node.home / "made"
    # NOTES.txt and docs/helm.md: the folder that becomes the Secret.
    init = (*CLI, "pool", "init", "--name", "localhost", "--name", "127.0.0.1", "--state", str(made))
    subprocess.run(init, check=True, capture_output=True)
    secrets.mkdir(parents=True)
    (made / "tls").rename(secrets / "tls")

    first = [node.here(word) for word in words(found["gpukernel-pool/certificate"])]
    subprocess.run(first, check=True)
    assert (state / "tls" / "pool.pem").is_file()
    pool = found["gpukernel-pool/pool"]
    node.run(pool, "The pool is ready")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert node.status(pool[probe]) == 200, probe

    token = secrets / "agent.pool"
    environment = {**os.environ, "GPUKERNEL_STATE": str(state)}
    create = (*CLI, "token", "create", "gpu1", "--scope", "agent", "--file", str(token))
    subprocess.run(create, env=environment, check=True, capture_output=True)
    text = token.read_text()
    assert "address: tls://localhost:" in text  # as the certificate names it
    agent = node.run(found["gpukernel-agent-simulated/agent"], "The agent is ready")
    listed = subprocess.run(
        (*CLI, "list-gpus", "-o", "name"), env=environment, check=True, capture_output=True, text=True
    )
    assert listed.stdout.split() == ["gpu1/0", "gpu1/1"]
    agent.end(15)
    assert agent.process.wait(timeout=60) == 0, agent.said


def test_the_notes_name_commands_that_exist() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    commands = re.findall(r"(?<=\$in }} )gpukernel ([^\n]+)", notes)
    assert len(commands) >= 3
    for line in commands:
        parse(COMMAND, re.sub(r"\$(\w+)", "gpu1", line).split())
