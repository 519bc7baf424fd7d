"""The page about desktops and VMs, whose commands are run as they stand on three machines that are namespaces."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.e2e import machines
from tests.e2e.machines import ROOT, Machine, Shell

PAGE = ROOT / "docs" / "vms.md"
UNITS = ROOT / "deploy" / "systemd"
NAMES = {"pool": "pool.example.edu", "gpu1": "gpu1.example.edu", "desktop": "desktop.example.edu"}
LIST = "/opt/gpukernel/bin/gpukernel list-gpus"
LOG = ".units/gpukernel-run@train.log"
TRAIN = """#!/opt/gpukernel/bin/python
import time
from cuda.bindings import driver as d
d.cuInit(0)
print(d.cuDeviceTotalMem(0)[1] >> 20, flush=True)
time.sleep(600)
"""
NEWER = "DelegateSubgroup"
"""A setting that systemd knows since version 254, and ignores before."""
SPECS = """
import json, sys, urllib.request
server = json.loads(sys.stdin.readline())
asked = urllib.request.Request(server["url"] + "api/kernelspecs", headers={"Authorization": "token " + server["token"]})
print(*json.load(urllib.request.urlopen(asked))["kernelspecs"])
"""


def commands() -> list[tuple[str, str]]:
    """The page's commands, with what stands before them."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    found = [re.fullmatch(r"(\w+#|\w+@\w+\$) (.+)", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return [(match[1], match[2]) for match in found if match]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    if absent := machines.missing():
        pytest.skip(absent)
    for made in machines.started(tmp_path_factory.mktemp("machines"), *NAMES):
        machines.connect({NAMES[name]: machine for name, machine in made.items()})
        for machine in made.values():
            prepare(machine)
        yield made


def prepare(machine: Machine) -> None:
    """Bring what the page takes for granted: systemd, the units, and anna's account on the desktop."""
    root = machine.shell()
    root.run("mkdir -p /run/commands /etc/systemd/system /etc/gpukernel")
    root.run(
        f"printf '#!/bin/sh\\nexec /opt/gpukernel/bin/python {ROOT}/tests/e2e/units.py \"$@\"\\n' > /run/commands/systemctl"
    )
    root.run("chmod 755 /run/commands/systemctl")
    root.run(f"cp {UNITS}/*.service /etc/systemd/system/")
    if machine.name == "gpu1":
        root.run("hostname gpu1.example.edu")
        # In place of the devices that are not here.
        root.run("mkdir /etc/systemd/system/gpukernel-agent.service.d")
        start = re.search(r"^ExecStart=.*$", (UNITS / "gpukernel-agent.service").read_text(), re.MULTILINE)
        assert start is not None
        drop_in = f"ExecStart=\\n{start[0].replace('%', '%%')} --simulate v100:1\\n"
        root.run(f"printf '{drop_in}' > /etc/systemd/system/gpukernel-agent.service.d/simulate.conf")
    if machine.name == "desktop":
        root.run("useradd --create-home --shell /bin/bash anna")
        root.run(f"cp {UNITS}/gpukernel-jupyterlab.service {UNITS}/gpukernel-run@.service /home/anna/")
        root.run(f"mkdir /home/anna/jobs; cat > /home/anna/jobs/train <<'END'\n{TRAIN}END")
        root.run("chmod 755 /home/anna/jobs/train; chown -R anna: /home/anna")


def carry(giver: Shell, file: str, taker: Shell, place: str, owner: str) -> None:
    """Bring a file to another machine."""
    text = giver.run(f"cat {file}")
    taker.run(f"(umask 077; cat > {place}) <<'END'\n{text}END")
    taker.run(f"chown {owner}: {place}")


@pytest.mark.thorough
def test_the_page_s_commands_give_a_desktop_slices_of_the_pool(network: dict[str, Machine]) -> None:
    pool, gpu1, desktop = (network[name] for name in NAMES)
    shells = {"pool#": pool.shell(), "gpu1#": gpu1.shell(), "anna@desktop$": desktop.shell("anna")}
    said = dict[str, str]()
    for prompt, command in commands():
        shell = shells[prompt]
        said[command] = shell.run(command)
        if command.endswith("gpukernel-pool"):
            eventually(lambda: pool.shell().try_("test -S /var/lib/gpukernel/pool.sock")[0] == 0, 60)
        elif command.endswith("anna.pool") and prompt == "pool#":
            carry(pool.shell(), "gpu1.pool", gpu1.shell(), "/etc/gpukernel/agent.pool", "root")
            carry(pool.shell(), "anna.pool", desktop.shell(), "/home/anna/anna.pool", "anna")
        elif command.endswith("gpukernel-agent") and command.startswith("systemctl"):
            eventually(lambda: "V100" in pool.shell().try_(LIST)[1], 90)
        elif command.endswith("gpukernel-jupyterlab"):
            eventually(lambda: "http" in desktop.shell("anna").run("jupyter server list"), 90)
        elif command.endswith("gpukernel-run@train"):
            trained = eventually(lambda: desktop.shell("anna").run(f"cat {LOG}"), 90)
            assert trained == "16384\n"  # half of a V100
    anna = desktop.shell("anna")
    assert said["gpukernel list-gpus"].count("V100") == 1
    (computed,) = (text for command, text in said.items() if command.startswith("gpukernel run"))
    assert re.fullmatch(r".*V100.* 3276 MiB", computed.strip()), computed
    assert "16.0 GiB" in said["gpukernel leases"]
    # The launcher's cards.
    specs = anna.run(
        f"jupyter server list --jsonlist | python -c 'import json, sys; print(json.dumps(json.load(sys.stdin)[0]))' | python -c '{SPECS}'"
    )
    assert {"python3", "gpu-v100-0.1"} <= set(specs.split())
    # The account has no rights, and the desktop nothing of the other machines but the network.
    assert anna.run("id -u").strip() != "0"
    assert anna.try_("cat /etc/shadow")[0] != 0
    assert desktop.shell().try_("ls /var/lib/gpukernel /var/lib/gpukernel-agent")[0] != 0
    # Whoever has no file is not let in.
    status, refusal = anna.try_("GPUKERNEL_POOL=tls://pool.example.edu:7437 gpukernel list-gpus")
    assert (status != 0, "certificate" in refusal) == (True, True), refusal
    # A desktop that is switched off gives its slices back.
    desktop.switch_off()
    leases = "/opt/gpukernel/bin/gpukernel leases --json"
    eventually(lambda: pool.shell().run(leases).strip() == "[]", 60)


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda unit: unit.name)
def test_systemd_understands_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # Programs that are not where the unit looks for them are no mistake of the unit.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
    name = unit.name.replace("@.", "@train.")
    (tmp_path / unit.name).write_text(text)
    if "@" in unit.name:
        (tmp_path / name).symlink_to(unit.name)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    plain = unit.name.partition(".")[0].rstrip("@")
    complaints = [line for line in done.stderr.splitlines() if plain in line and NEWER not in line]
    assert (done.returncode, complaints) == (0, []), done.stderr
