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
    together
        All modules in one process on one slice, as the suite's developers run it.
    simulate
        The simulated GPU.
    """

    name: str
    source: Callable[[], Source]
    modules: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    together: bool = False
    simulate: str = "v100:1"

    def unexpected(self, outcome: Outcome) -> list[str]:
        """The tests that failed and are not known to."""
        return sorted(name for name in outcome.failed if not self.known.keys() & _names_of(name))


def _names_of(test: str) -> set[str]:
    """Names that may stand for `test` among those that are known: its own, without parameters or their number, or its class or module."""
    return {test, test.partition("[")[0], test.rstrip("0123456789"), test.partition(".")[0]}


@dataclass(frozen=True)
class Outcome:
    """Results of the tests: names by result, a name of several classes as often as it was run."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    output: str

    @property
    def rate(self) -> float:
        """Of those that were not skipped, the part that passed."""
        return len(self.passed) / max(1, len(self.passed) + len(self.failed))


def run(suite: Suite, share: str = "0.25", at_once: int = 2) -> Outcome:
    """Run `suite` under ``gpukernel run`` on a pool of its own, each module in a process and on a slice of its own.

    A suite that says so goes through all its modules in one process on one slice.
    """
    source = suite.source()
    modules = suite.modules or (() if suite.together else _modules_of(source.tests))
    rounds = [modules] if suite.together else [(module,) for module in modules]
    with EmbeddedPool(suite.simulate) as pool, ThreadPoolExecutor(at_once) as threads:
        environment = _with(pool.environment, source.environment)
        parts = list(threads.map(lambda each: _run_modules(suite, source, each, share, environment), rounds))

    def all_of(kind: str) -> tuple[str, ...]:
        return tuple(name for part in parts for name in getattr(part, kind))

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


def _run_modules(
    suite: Suite, source: Source, modules: tuple[str, ...], share: str, environment: dict[str, str]
) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "gpukernel.cli", "run", "-p", share, "--"]
        command += [sys.executable, "-m", "pytest", *_settings(source, folder), *source.words]
        command += ["-p", "no:cacheprovider", "-q", "--tb=short", "--timeout=300"]
        command += [f"--junitxml={report}"]
        if isinstance(source.tests, str):
            command += ["--pyargs", *(f"{source.tests}.{each}" for each in modules)]
            command += [] if modules else [source.tests]
        else:
            command += [str(source.tests / f"{each}.py") for each in modules] or [str(source.tests)]
        if suite.left_out:
            names = " and ".join(f"not {name.rpartition('.')[2]}" for name in suite.left_out)
            if "-k" in command:  # the last one is the one that counts
                names = f"({command[command.index('-k') + 1]}) and {names}"
            command += ["-k", names]
        where = source.settings.parent if source.settings else ROOT
        done = subprocess.run(
            command, cwd=where, env=environment, capture_output=True, text=True, check=False
        )
        name = ", ".join(modules) or suite.name
        output = f"--- {name}\n{done.stdout[-20000:]}{done.stderr[-2000:]}"
        if not report.exists():
            return Outcome((), (f"{name} as a whole",), (), output)
        return _read(report, name.rpartition("/")[2], output)


def _settings(source: Source, folder: str) -> list[str]:
    plugin = ["-p", source.plugin] if source.plugin else []
    if source.settings:
        return ["-c", str(source.settings), "--rootdir", str(source.settings.parent), *plugin]
    # This project's settings are not theirs.  Below the root, a test's name begins with that of its module.
    root = folder if isinstance(source.tests, str) else str(source.tests)
    return ["-c", os.devnull, "--rootdir", root, "--import-mode=importlib", *plugin]


def _read(report: Path, module: str, output: str) -> Outcome:
    names: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        group = case.get("classname", "").rpartition(".")[2] or module  # functions stand in no class
        names[result].append(f"{group}.{case.get('name')}")
    return Outcome(*(tuple(names[kind]) for kind in ("passed", "failed", "skipped")), output)
