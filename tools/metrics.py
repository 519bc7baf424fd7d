"""``make metrics``: the shape of the tree in one table, so that a crowded folder or a missing docstring is seen at once."""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.import_graph import ROOT, cycles, grouped, includes, modules, python_imports

FILES_IN_A_FOLDER, PYTHON_LINES, CPP_LINES, FUNCTION_LINES, SUBJECT = 20, 500, 600, 100, 72
_CPP_CLASS = re.compile(r"^(?:class|struct|enum class) (\w+)(?: final)?(?:\s*:[^;{]*)?\s*\{", re.MULTILINE)
_QUESTIONS = ("what", "who", "whose", "whom", "where", "when", "how", "which", "that", "so")


@dataclass(frozen=True)
class Metric:
    """One row: a figure, the bound that it should keep, and the places that are worst or break it."""

    name: str
    value: str
    bound: str
    kept: bool
    places: list[str]


def tracked(*patterns: str, root: Path = ROOT) -> list[Path]:
    """Return the files that git tracks or would (new ones that it does not ignore), as paths from `root`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in dict.fromkeys(listed) if (root / name).is_file()]


def _longest(files: list[Path], root: Path) -> list[tuple[int, str]]:
    return sorted(((len((root / path).read_text().splitlines()), str(path)) for path in files), reverse=True)


def _public(node: ast.AST) -> bool:
    return not getattr(node, "name", "").startswith("_")


def _functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _documented(tree: ast.Module) -> list[tuple[ast.AST, str | None]]:
    """Return the public things of a module and their docstrings: itself, classes, functions, methods but ``__init__`` and the
    like.
    """
    found: list[tuple[ast.AST, str | None]] = [(tree, ast.get_docstring(tree))]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _public(node):
            found.append((node, ast.get_docstring(node)))
        if isinstance(node, ast.ClassDef) and _public(node):
            found.append((node, ast.get_docstring(node)))
            found += [
                (method, ast.get_docstring(method))
                for method in node.body
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
                and _public(method)
                and not any(
                    "overload" in ast.unparse(d) or "setter" in ast.unparse(d) for d in method.decorator_list
                )
            ]
    return found


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


def measure(root: Path = ROOT, since: str = "") -> list[Metric]:
    """Measure the tree below `root`: the installed packages, and of folders all but those of tests.

    Parameters
    ----------
    since
        A revision of git: commit subjects after it are measured; empty leaves that row out.
    """
    python = [
        p for p in tracked("gpukernel/*.py", "hub_spawner/*.py", root=root) if "migrations" not in p.parts
    ]
    cpp = tracked("gpukernel/*.cpp", "gpukernel/*.h", root=root)
    code = tracked("*.py", "*.cpp", "*.h", "*.ts", root=root)
    rows = []

    folders = Counter(str(path.parent) for path in code if path.parts[0] != "tests")
    crowded = [f"{folder} ({n})" for folder, n in folders.most_common() if n > FILES_IN_A_FOLDER]
    folder, most = folders.most_common(1)[0]
    rows.append(
        Metric(
            "files in the fullest folder",
            f"{most} ({folder})",
            f"≤ {FILES_IN_A_FOLDER}",
            not crowded,
            crowded,
        )
    )

    for name, files, bound in (("Python", python, PYTHON_LINES), ("C++", cpp, CPP_LINES)):
        longest = _longest(files, root)
        over = [f"{path} ({n})" for n, path in longest if n >= bound]
        rows.append(
            Metric(
                f"lines of the longest {name} file",
                f"{longest[0][0]} ({longest[0][1]})",
                f"< {bound}",
                not over,
                over,
            )
        )

    missing, questions, untyped, long, classes = [], [], [], [], defaultdict(list)
    documented = functions = 0
    for path in python:
        tree = ast.parse((root / path).read_text())
        for node, text in _documented(tree):
            documented += 1
            place = f"{path}:{getattr(node, 'lineno', 1)}"
            if not text:
                missing.append(place)
            elif text.split()[0].strip("`,.:").lower() in _QUESTIONS:
                questions.append(place)
        for function in _functions(tree):
            functions += 1
            if function.returns is None:
                untyped.append(f"{path}:{function.lineno}")
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines >= FUNCTION_LINES:
                long.append(f"{path}:{function.lineno} {function.name} ({lines})")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path}:{node.lineno}")
    rows.append(
        Metric(
            "functions with a return type",
            _share(functions - len(untyped), functions),
            "100 %",
            not untyped,
            untyped,
        )
    )
    rows.append(
        Metric(
            "public docstrings", _share(documented - len(missing), documented), "100 %", not missing, missing
        )
    )
    rows.append(
        Metric(
            "docstrings that open with a question word",
            _share(len(questions), documented),
            "0 %",
            not questions,
            questions,
        )
    )
    rows.append(Metric("functions of 100 lines and more", str(len(long)), "0", not long, long))
    twice = [f"{name}: {', '.join(places)}" for name, places in sorted(classes.items()) if len(places) > 1]
    rows.append(Metric("Python class names used twice", str(len(twice)), "0", not twice, twice))
    native = _native_names(root)
    # Other libraries have namespaces of their own; within one a reader meets both.
    rows.append(
        Metric("C++ class names used twice in one library", str(len(native)), "0", not native, native)
    )

    graph = python_imports(root)
    packages = {
        name.rpartition(".")[0] if path.name != "__init__.py" else name
        for name, path in modules(root).items()
    }
    loops = (
        cycles(graph)
        + cycles(grouped(graph, packages - {"gpukernel", "hub_spawner"}))
        + cycles(includes(root))
    )
    rows.append(
        Metric(
            "cycles of imports and includes",
            str(len(loops)),
            "0",
            not loops,
            [" ↔ ".join(loop) for loop in loops],
        )
    )

    return rows + (_commits(root, since) if since else [])


def _native_names(root: Path) -> list[str]:
    """Return the classes that two headers of one library (a folder of ``gpukernel/native``) define, with their places."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in tracked("gpukernel/native/*.h", root=root):
        for name in _CPP_CLASS.findall((root / path).read_text()):
            found[path.parts[2], name].append(str(path))
    return [f"{name}: {', '.join(places)}" for (_, name), places in sorted(found.items()) if len(places) > 1]


def _commits(root: Path, since: str) -> list[Metric]:
    """Return the rows about the commits after the revision `since`."""
    command = ["git", "log", "--no-merges", "--format=%s%x1f%b%x1e", f"{since}..HEAD"]
    log = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    commits = [entry.strip("\n").partition("\x1f")[::2] for entry in log.split("\x1e") if entry.strip()]
    long = [subject for subject, _ in commits if len(subject) > SUBJECT]
    bare = [subject for subject, body in commits if not body.strip()]
    of = f"of {len(commits)} commits"
    return [
        Metric(f"subjects over {SUBJECT} characters, {of}", str(len(long)), "0", not long, long),
        Metric(f"without a body, {of}", str(len(bare)), "0", not bare, bare),
    ]


def main() -> int:
    """Print the table, or JSON; the exit status is 1 where a bound is not kept and ``--check`` asks for it."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.metrics",
        description=__doc__,
        epilog="Example: python -m tools.metrics --places --since v0.1.0",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--places", action="store_true", help="print every place that breaks a bound")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bound is not kept")
    parser.add_argument(
        "--since", default="", metavar="REVISION", help="measure commit subjects after this revision, too"
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, metavar="DIRECTORY", help="another checkout of this repository"
    )
    options = parser.parse_args()
    rows = measure(options.root.resolve(), options.since)
    if options.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        table = Table("", "figure", "value", "bound", box=None)
        for row in rows:
            table.add_row("✓" if row.kept else "✗", row.name, row.value, row.bound)
        Console(width=None if sys.stdout.isatty() else 120).print(table)
        if options.places:
            for row in rows:
                for place in row.places:
                    print(f"{row.name}: {place}")
    return int(options.check and not all(row.kept for row in rows))


if __name__ == "__main__":
    sys.exit(main())
