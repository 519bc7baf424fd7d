"""Runs somebody else's test suite on a slice of a simulated GPU and counts what came of it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
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
        For tables.
    version
        The distribution whose version the figures belong to.
    targets
        What pytest is given.
    options
        More of pytest's options.
    known
        Tests that fail, ``Class.test`` or ``test``, with the cause.
    """

    name: str
    version: str
    targets: tuple[str, ...]
    options: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=dict)


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


def run(suite: Suite, share: str = "0.5", simulate: str = "v100:1", deselect_known: bool = False) -> Outcome:
    """Run `suite` under ``gpukernel run`` on a pool of its own."""
    with EmbeddedPool(simulate) as pool, tempfile.TemporaryDirectory() as folder:
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
        command += [*suite.options, *suite.targets]
        if deselect_known:
            command += ["-k", " and ".join(f"not {name.rpartition('.')[2]}" for name in suite.known)]
        done = subprocess.run(
            command, cwd=ROOT, env=pool.environment, capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise RuntimeError(f"{suite.name} did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _read(report, done.stdout[-20000:] + done.stderr[-2000:])


def _read(report: Path, output: str) -> Outcome:
    names: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        names[result].add(f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}")
    return Outcome(*(frozenset(names[kind]) for kind in ("passed", "failed", "skipped")), output)
