"""The graph of imports between this repository's Python modules, and of includes between its C++ files.

Imports under ``TYPE_CHECKING`` and inside functions count as well: a reader follows them, too.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["ROOT", "cycles", "grouped", "includes", "modules", "python_imports"]

ROOT = Path(__file__).parents[1]
PACKAGES = ("gpukernel", "hub_spawner")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([\w./]+)"', re.MULTILINE)


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return every module of the installed packages by its dotted name; build scripts are none."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            if ".native.codegen" not in name and ".migrations" not in name:
                found[name] = path
    return found


def python_imports(root: Path = ROOT) -> dict[str, set[str]]:
    """Return, for each module, the modules of this repository that it imports; a package means its ``__init__``.

    Generated modules (``*_pb2``) count as the package that holds them.
    """
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                # `from package import name`: the module of that name, or else something in the package itself.
                targets.update(
                    full if (full := f"{node.module}.{alias.name}") in known else node.module
                    for alias in node.names
                )
        graph[name] = {nearest for target in targets if (nearest := _nearest(target, known))} - {name}
    return graph


def _nearest(target: str, known: Mapping[str, Path]) -> str:
    """Return the module that `target` names, or the innermost package around it that exists; empty for foreign ones."""
    if target.partition(".")[0] not in PACKAGES:
        return ""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


def includes(root: Path = ROOT) -> dict[str, set[str]]:
    """Return, for each C++ file below ``gpukernel/native``, the files there that it includes, as paths from there."""
    native = root / "gpukernel" / "native"
    files = [path for path in sorted(native.rglob("*")) if path.suffix in (".cpp", ".h")]
    graph = {}
    for path in files:
        found = set()
        for name in _INCLUDE.findall(path.read_text()):
            for candidate in (path.parent / name, native / name, native / "codegen" / name):
                if candidate.exists():
                    found.add(str(candidate.resolve().relative_to(native)))
                    break
        graph[str(path.relative_to(native))] = found
    return graph


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return every set of nodes that reach each other (strongly connected components of more than one; Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            if len(component := stack[start:]) > 1:
                found.append(sorted(component))
            del stack[start:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def grouped(graph: Mapping[str, Iterable[str]], groups: Iterable[str]) -> dict[str, set[str]]:
    """Return the graph between `groups`, each of which stands for itself and the modules below it; the longest name wins."""
    names = sorted(groups, key=len, reverse=True)

    def group(module: str) -> str:
        return next((name for name in names if module == name or module.startswith(f"{name}.")), module)

    edges: dict[str, set[str]] = defaultdict(set)
    for module, targets in graph.items():
        own = group(module)
        others = {group(target) for target in targets}
        edges[own] |= {name for name in others if not (f"{name}.").startswith(f"{own}.")}
    # A package and the packages inside it are one room: what is inside may use what surrounds it.
    return {name: {t for t in targets if not name.startswith(f"{t}.")} for name, targets in edges.items()}
