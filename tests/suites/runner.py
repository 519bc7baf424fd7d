"""Runs somebody else's test suite on a slice of a simulated GPU and counts what came of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpukernel.embedded import EmbeddedPool
from tests.suites.sources import ROOT, Source


@dataclass(frozen=True)
class Suite:
    """A suite, and what is known of it.

    Parameters
    ----------
    name
        For tables.
    source
        Finds its tests, or raises `NotHere`.
    modules
        Those to run; all that are there where empty.
    known
        Tests that fail, ``Class.test`` or ``module.test``, or whole classes, with the cause.
    left_out
        Tests that are not even started, with the cause; they count as failed.
    """

    name: str
    source: Callable[[], Source]
    modules: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def unexpected(self, outcome: Outcome) -> list[str]:
        """What failed and is not known to."""
        return sorted(n for n in outcome.failed if not self.known.keys() & {n, n.partition(".")[0]})


@dataclass(frozen=True)
class Outcome:
    """What became of the tests: names by result."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]
    output: str

    @property
    def rate(self) -> float:
        """Of those that were not skipped, the part that passed."""
        return len(self.passed) / max(1, len(self.passed) + len(self.failed))


def run(suite: Suite, share: str = "0.25", simulate: str = "v100:1", at_once: int = 2) -> Outcome:
    """Run `suite` under ``gpukernel run`` on a pool of its own, each module in a process and on a slice of its own."""
    source = suite.source()
    modules = suite.modules or _modules_of(source.tests)
    with EmbeddedPool(simulate) as pool, ThreadPoolExecutor(at_once) as threads:
        environment = _with(pool.environment, source.environment)
        parts = list(
            threads.map(lambda module: _run_module(suite, source, module, share, environment), modules)
        )

    def all_of(kind: str) -> frozenset[str]:
        return frozenset(name for part in parts for name in getattr(part, kind))

    output = "".join(part.output for part in parts if part.failed)
    return Outcome(all_of("passed"), all_of("failed"), all_of("skipped"), output)


def _with(environment: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    result = {**environment, **more}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        paths = [each[name] for each in (more, environment) if each.get(name)]
        if paths:
            result[name] = os.pathsep.join(paths)
    return result


def _modules_of(tests: str | Path) -> tuple[str, ...]:
    if isinstance(tests, str):
        (tests,) = importlib.util.find_spec(tests).submodule_search_locations  # type: ignore[union-attr, misc]
    return tuple(sorted(path.stem for path in Path(tests).glob("test_*.py")))


def _run_module(
    suite: Suite, source: Source, module: str, share: str, environment: dict[str, str]
) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [
            sys.executable,
            "-m",
            "gpukernel.cli",
            "run",
            "-p",
            share,
            "--",
            sys.executable,
            "-m",
            "pytest",
        ]
        command += ["-c", os.devnull]  # this project's settings are not theirs
        command += ["-p", source.plugin, "--import-mode=importlib", "-p", "no:cacheprovider"]
        command += ["--rootdir", folder, "-q", "--tb=short", "--timeout=300", f"--junitxml={report}"]
        if isinstance(source.tests, str):
            command += ["--pyargs", f"{source.tests}.{module}"]
        else:
            command += [str(source.tests / f"{module}.py")]
        if suite.left_out:
            command += ["-k", " and ".join(f"not {name.rpartition('.')[2]}" for name in suite.left_out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        output = f"--- {module}\n{done.stdout[-20000:]}{done.stderr[-2000:]}"
        if not report.exists():
            return Outcome(frozenset(), frozenset({f"{module} as a whole"}), frozenset(), output)
        return _read(report, module, output)


def _read(report: Path, module: str, output: str) -> Outcome:
    names: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        group = case.get("classname", "").rpartition(".")[2] or module  # functions stand in no class
        names[result].add(f"{group}.{case.get('name')}")
    return Outcome(*(frozenset(names[kind]) for kind in ("passed", "failed", "skipped")), output)
