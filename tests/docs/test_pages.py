"""The pages tell the truth about the tree: files that they name exist, and every decision record is found."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from docs.decision_index import FOLDER, records
from docs.file_tables import described, table

ROOT = Path(__file__).parents[2]


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


PAGES = [Path(name) for name in _tracked() if name.endswith(".md")]
# Folders whose names a page's path may leave out, where the page is about them.
ROOTS = (
    "",
    "gpukernel/",
    "gpukernel/native/",
    "gpukernel/native/simgpu/",
    "gpukernel/pool/",
    "tests/native/fuzz/",
)
TOPS = {Path(name).parts[0] for name in _tracked() if "/" in name} | {
    path.name for root in ROOTS[1:4] for path in (ROOT / root).iterdir() if path.is_dir()
}
# What the build makes, or a user of a page.
MADE = re.compile(r"^(build|dist|site|\.venv|gpukernel/api|gpukernel/lib)\b|_pb2|found-|\.so\b")
HISTORY = {"CHANGELOG.md", "docs/glossary.md"}
"""Pages that name files of earlier versions too."""


def _named(text: str) -> set[str]:
    """Paths in backticks: words with a slash that begin with a folder of this repository."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    words = {word.rstrip(".,:;") for span in spans for word in span.split()}
    paths = {word.partition("::")[0] for word in words if re.fullmatch(r"[\w.{},/*-]+(::\w+)?", word)}
    return {
        path for path in paths if "/" in path and path.partition("/")[0] in TOPS and not MADE.search(path)
    }


def _exists(path: str, page: Path) -> bool:
    alternatives = re.match(r"(.*)\{(.*)\}(.*)", path)
    if alternatives:
        before, names, after = alternatives.groups()
        return all(_exists(f"{before}{name}{after}", page) for name in names.split(","))
    for root in (*ROOTS, f"{page.parent}/"):
        if "*" in path and any(ROOT.glob(f"{root}{path}")):
            return True
        if (ROOT / root / path).exists():
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_a_page_names_exist(page: Path) -> None:
    if str(page) in HISTORY:
        pytest.skip("names files of earlier versions")
    assert [path for path in sorted(_named((ROOT / page).read_text())) if not _exists(path, page)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[0] != "docs"], ids=str)
def test_links_outside_of_the_site_lead_somewhere(page: Path) -> None:
    """MkDocs checks those between its own pages."""
    text = re.sub(r"^(?:        | {4}\S).*$|`[^`\n]+`", "", (ROOT / page).read_text(), flags=re.MULTILINE)
    links = re.findall(r"\]\(([^)#\s]+)", text)
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (ROOT / page.parent / link).exists()] == []


def test_decision_records_are_numbered_without_gaps_and_begin_alike() -> None:
    assert [int(record.number) for record in records()] == list(range(1, len(list(records())) + 1))
    assert {path.name for path in FOLDER.glob("*.md")} == {
        *(record.file for record in records()),
        "index.md",
        "template.md",
    }
    for record in records():
        text = (FOLDER / record.file).read_text()
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences"], record.file


def test_every_page_is_in_the_navigation() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed = set(re.findall(r"'([\w/.-]+\.md)'", str(config["nav"])))
    pages = {str(page.relative_to("docs")) for page in PAGES if page.parts[0] == "docs"}
    assert {p for p in pages - listed if not p.startswith("decisions/")} == set()


def test_a_folder_that_a_page_lists_is_described_file_by_file() -> None:
    marks = {
        folder
        for page in PAGES
        for mark in re.findall(r"^<!-- files: (.+?) -->$", (ROOT / page).read_text(), re.MULTILINE)
        for folder in mark.split()
    }
    assert marks
    for folder in marks:
        assert described(ROOT / folder), folder
        assert list(table(folder))


def test_the_table_of_attacks_has_a_row_for_each_program() -> None:
    folder = Path(__file__).parents[1] / "attacks"
    rows = re.findall(r"^\| `(test_\w+\.py)` \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in folder.glob("test_*.py"))
