"""The API reference: its example runs, its settings and magics are those of the code, and no interface is left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from traitlets import HasTraits

import hub_spawner
from docs.trait_docs import trait
from gpukernel.jupyter import magics
from gpukernel.jupyter.provisioner import GPUSliceProvisioner
from tests.conftest import Pool

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)


def test_the_client_s_example_runs(own_pool: Pool) -> None:
    (example,) = blocks("client.md", "python")
    done = subprocess.run(
        [sys.executable, "-c", example], env=own_pool.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "V100" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1] == "655 MiB"


def test_the_kernelspec_s_example_names_settings_that_there_are() -> None:
    (example,) = blocks("provisioner.md", "json")
    config = json.loads(example)["metadata"]["kernel_provisioner"]["config"]
    assert set(config) <= set(GPUSliceProvisioner.class_own_traits(config=True))


def test_every_form_of_the_magic_is_in_the_table() -> None:
    page = (PAGES / "magics.md").read_text()
    known = {line.split()[1] for line in magics.USAGE.splitlines() if line.startswith("%gpu ")}
    named = set(re.findall(r"`%gpu ([a-z]+)", page))
    assert known - {"this"} == named - {"help"}


def test_what_the_packages_offer_is_described() -> None:
    text = "".join(page.read_text() for page in PAGES.glob("*.md"))
    described = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    assert {
        "PoolClient",
        "HubClient",
        "AdminClient",
        "GPUSliceProvisioner",
        "notebook",
        "magics",
    } <= described
    # The spawners are the mixin before a class of somebody else's.
    assert {
        name for name in hub_spawner.__all__ if not name.endswith("Spawner")
    } <= described  # fmt: skip


@pytest.mark.parametrize("traits", [GPUSliceProvisioner, hub_spawner.GPUSpawnerMixin])
def test_every_trait_s_help_is_found_without_running_the_module(traits: type[HasTraits]) -> None:
    import ast
    import inspect

    (tree,) = ast.parse(inspect.getsource(traits)).body
    assert isinstance(tree, ast.ClassDef)
    found = {
        target.id: text
        for node in tree.body
        if isinstance(node, ast.Assign) and (text := trait(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for name, one in traits.class_own_traits(config=True).items():
        value, text = found[name]
        assert " ".join(text.split()) == " ".join(one.help.split())
        assert "help=" not in value
