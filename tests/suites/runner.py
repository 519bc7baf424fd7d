"""Runs somebody else's test suite on a slice of a simulated GPU and counts what came of it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpukernel.embedded import EmbeddedPool

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Suite:
    """A suite in an installed package.

    Parameters
    ----------
    name
        For tables; the distribution whose version the figures belong to.
    package
        Where its test modules are.
    modules
        Those to run; all of the package where empty.
    known
        Tests that fail, ``Class.test``, or whole classes, with the cause.
    left_out
        Tests that are not even started, with the cause; they count as failed.
    """

    name: str
    package: str
    modules: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


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
    modules = suite.modules or _modules_of(suite.package)
    with EmbeddedPool(simulate) as pool, ThreadPoolExecutor(at_once) as threads:
        parts = list(threads.map(lambda module: _run_module(suite, module, share, pool.environment), modules))

    def all_of(kind: str) -> frozenset[str]:
        return frozenset(name for part in parts for name in getattr(part, kind))

    output = "".join(part.output for part in parts if part.failed)
    return Outcome(all_of("passed"), all_of("failed"), all_of("skipped"), output)


def _modules_of(package: str) -> tuple[str, ...]:
    (folder,) = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr, misc]
    return tuple(sorted(path.stem for path in Path(folder).glob("test_*.py")))


def _run_module(suite: Suite, module: str, share: str, environment: dict[str, str]) -> Outcome:
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
        command += ["-p", "tests.suites.numba_fixtures", "--import-mode=importlib", "-p", "no:cacheprovider"]
        command += ["--rootdir", folder, "-q", "--tb=short", "--timeout=300", f"--junitxml={report}"]
        command += ["--pyargs", f"{suite.package}.{module}"]
        if suite.left_out:
            command += ["-k", " and ".join(f"not {name.rpartition('.')[2]}" for name in suite.left_out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        output = f"--- {module}\n{done.stdout[-20000:]}{done.stderr[-2000:]}"
        if not report.exists():
            return Outcome(frozenset(), frozenset({f"{module} as a whole"}), frozenset(), output)
        return _read(report, output)


def _read(report: Path, output: str) -> Outcome:
    names: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        names[result].add(f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}")
    return Outcome(*(frozenset(names[kind]) for kind in ("passed", "failed", "skipped")), output)
