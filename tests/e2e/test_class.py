"""The page about a class of 50: its commands are run as they stand on two machines that are namespaces, and students sign in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.e2e import machines
from tests.e2e.machines import ROOT, Machine
from tests.e2e.test_vms import carry

PAGE = ROOT / "docs" / "class.md"
UNITS = ROOT / "deploy" / "systemd"
NAMES = {"hub": "hub.example.edu", "gpu1": "gpu1.example.edu"}
HUB = "http://hub.example.edu:8000"
GPUKERNEL = "/opt/gpukernel/bin/gpukernel"
STUDENTS = int(os.environ.get("GPUKERNEL_CLASS", "10"))
"""The number of the fifty who sign in: ten in the ordinary suite, all of them in ``make class``."""


def commands() -> list[tuple[str, str]]:
    """The page's commands, with the machine that each is for."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = [re.fullmatch(r"(\w+)# (.+)", line) for block in blocks for line in block.splitlines()]
    assert all(found)
    return [(match[1], match[2]) for match in found if match]


def files() -> dict[str, str]:
    """The files that the page says to write, by their place."""
    return dict(re.findall(r"[Ww]rite `(/etc/[^`]+)`[^`]*:\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    if absent := machines.missing():
        pytest.skip(absent)
    for made in machines.started(tmp_path_factory.mktemp("machines"), *NAMES):
        machines.connect({NAMES[name]: machine for name, machine in made.items()})
        for name, machine in made.items():
            root = machine.shell()
            root.run("mkdir -p /run/commands /etc/systemd/system /etc/gpukernel")
            units = f'exec /opt/gpukernel/bin/python {ROOT}/tests/e2e/units.py "$@"'
            root.run(f"printf '#!/bin/sh\\n%s\\n' {shlex.quote(units)} > /run/commands/systemctl")
            root.run("chmod 755 /run/commands/systemctl")
            root.run(f"cp {UNITS}/*.service /etc/systemd/system/")
            root.run(f"hostname {NAMES[name]}")
        # In place of the device that is not here, as the page says.
        made["gpu1"].shell().run(
            "sed -i 's/^ExecStart=.*/& --simulate v100:1/' /etc/systemd/system/gpukernel-agent.service"
        )
        yield made


@contextlib.contextmanager
def the_class(machine: Machine, password: str, number: int) -> Iterator[dict[str, str]]:
    """Let students sign in from a machine; give what the cell of each printed, while their kernels live."""
    program = [str(ROOT / "tests" / "e2e" / "students.py"), HUB, password, str(number)]
    process = subprocess.Popen(
        [*machine.words(), "env", "-C", "/", "/opt/gpukernel/bin/python", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = [json.loads(process.stdout.readline()) for _ in range(number)]
        yield {one["name"]: one["said"] for one in said}
    finally:
        process.stdin.close()
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.hub
@pytest.mark.timeout(2400)
def test_the_page_s_commands_lead_to_a_class_that_computes(network: dict[str, Machine]) -> None:
    hub, gpu1 = network["hub"].shell(), network["gpu1"].shell()
    for place, text in files().items():
        hub.run(f"mkdir -p {Path(place).parent} && cat > {place} <<'END'\n{text}END")
    said = dict[str, str]()
    in_class = contextlib.ExitStack()
    with in_class:
        for name, command in commands():
            if command == f"{GPUKERNEL} list-gpus":
                eventually(lambda: "V100" in hub.try_(command)[1], 120)  # noqa: B023
            elif command == f"{GPUKERNEL} leases":
                password = hub.run("head -1 /etc/jupyterhub/passwords").strip()
                computed = in_class.enter_context(the_class(network["gpu1"], password, STUDENTS))
                log = hub.run("tail -c 3000 /run/units/jupyterhub.log")
                assert computed == {f"student{n:02}": "655 True" for n in range(1, STUDENTS + 1)}, log
            said[command] = network[name].shell().run(command)
            if command.endswith("gpukernel-pool"):
                eventually(lambda: hub.try_("test -S /var/lib/gpukernel/pool.sock")[0] == 0, 60)
            elif command.endswith("--file gpu1.pool"):
                carry(hub, "gpu1.pool", gpu1, "/etc/gpukernel/agent.pool", "root")
            elif command.endswith("now jupyterhub"):
                ready = f"/opt/gpukernel/bin/python -c 'import urllib.request as u; u.urlopen(\"{HUB}/services/gpukernel/ready\")'"
                eventually(lambda: gpu1.try_(ready)[0] == 0, 120)  # noqa: B023
        assert len(set(re.findall(r"student\d\d", said[f"{GPUKERNEL} leases"]))) == STUDENTS
        held = json.loads(hub.run(f"{GPUKERNEL} leases --json"))
        assert {lease["holder"]["course"] for lease in held} == {"gpu101"}
        assert {piece["server"] for lease in held for piece in lease["slices"]} == {"gpu1.example.edu"}
    # The copy is a whole database, with the course, and the files that make the pool known.
    asked = "select count(*) from members where course = 'gpu101'"
    assert hub.run("sqlite3 /root/pool-copy.db 'pragma integrity_check'").strip() == "ok"
    assert hub.run(f'sqlite3 /root/pool-copy.db "{asked}"').strip() in ("50", "51")
    restore(network["hub"], gpu1)
    assert "gpu101" in hub.run("cat /root/courses.yaml")


def restore(machine: Machine, gpu1: machines.Shell) -> None:
    """Lose the pool's directory, and do what the page says about that."""
    hub = machine.shell()
    hub.run("pkill -f 'gpukernel pool --state'")
    eventually(lambda: hub.try_("pgrep -f 'gpukernel pool --state'")[0] != 0, 60)
    hub.run("rm -rf /var/lib/gpukernel/* && tar -C /var/lib/gpukernel -xf /root/pool-files.tar")
    hub.run("cp /root/pool-copy.db /var/lib/gpukernel/pool.db && chown -R gpukernel: /var/lib/gpukernel")
    hub.run("systemctl enable --now gpukernel-pool")
    # The GPU server comes back by itself: the pool is the one that it knows.
    eventually(lambda: "V100" in hub.try_(f"{GPUKERNEL} list-gpus")[1], 120)
    assert "gpu101" in hub.run(f"{GPUKERNEL} quota export")
