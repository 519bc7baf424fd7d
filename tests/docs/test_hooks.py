"""The hooks that build the site from the code: each finds what it describes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from docs import cli_reference, in_pages, line_breaks, permission_table, schema_diagram, settings_reference
from gpukernel.pool.store import schema


def _page(path: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_path=path))


def test_every_setting_has_its_line() -> None:
    marks = "<!-- settings -->\n<!-- /settings -->\n"
    text = settings_reference.on_page_markdown(f"# Settings\n{marks}", page=_page("settings.md"))
    for name in ("`quota`", "`courses`", "`c.GPUSliceProvisioner.share`", "`c.GPUKernelSpecManager.shares`"):
        assert f"| {name} |" in text
    assert "| `hub_name` |" in text


def test_every_command_has_its_section() -> None:
    marks = "<!-- reference -->\n<!-- /reference -->\n"
    text = cli_reference.on_page_markdown(f"# Command line\n{marks}", page=_page("cli.md"))
    for command in ("run", "pool", "agent", "quota import", "token create"):
        assert re.search(rf"^#+ `gpukernel {command}`$", text, re.MULTILINE), command


def outline(text: str) -> list[str]:
    """A page without the words of the commands' reference, whose kinds differ from one version of typer to the next."""
    head, _, reference = text.partition("<!-- reference -->")
    names = re.findall(r"^(?:#+ `gpukernel[^`]*`|\* `-[^`]*?(?=[ `]))", reference, re.MULTILINE)
    return [head, *names]


def test_pages_are_whole_where_the_repository_is_read() -> None:
    pages = list(in_pages.whole_pages())
    assert len(pages) == 3
    for path, text in pages:
        assert len(text.splitlines()) > 90
        assert outline(path.read_text()) == outline(text), f"{path.name}: make docs writes it"


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="<!-- x --> and <!-- /x -->"):
        in_pages.put("# Page\n<!-- x -->\n", "x", "text")


def test_the_drawing_of_the_schema_has_every_table_once_and_no_two_overlap() -> None:
    boxes = list(schema_diagram.layout(schema.metadata).values())
    assert {box.table.name for box in boxes} == set(schema.metadata.tables)
    for one in boxes:
        for other in boxes:
            apart = one.x != other.x or one.y + one.height <= other.y or other.y + other.height <= one.y
            assert one is other or apart, (one.table.name, other.table.name)
    drawn = schema_diagram.drawing(schema.metadata)
    assert "\n\n" not in drawn
    texts = {element.text for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")}
    assert {column.name for table in schema.metadata.sorted_tables for column in table.columns} <= texts


def test_every_table_has_its_description() -> None:
    assert set(schema_diagram.descriptions(schema)) == set(schema.metadata.tables)


def test_long_names_in_tables_may_break_and_nothing_else_changes() -> None:
    page = "<p><code>gpukernel/pool/rpc/pool.py</code></p><td>a/b <code>gpukernel/pool/rpc/pool.py</code> <code>at_start</code></td>"
    broken = line_breaks.on_page_content(page)
    assert "<p><code>gpukernel/pool/rpc/pool.py</code></p><td>a/b " in broken
    assert "<code>gpukernel/<wbr>pool/<wbr>rpc/<wbr>pool.<wbr>py</code> <code>at_start</code>" in broken
    assert broken.replace("<wbr>", "") == page


def test_every_call_of_the_pool_has_its_line_with_a_cell_for_each_role() -> None:
    text = permission_table.on_page_markdown(f"# Security\n\n{permission_table.MARK}\n")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    calls = [method.name for service in permission_table.services() for method in service.methods]
    assert [row[0].strip(" `") for row in rows if "<span>" not in row[1]] == calls
    assert {len(row) for row in rows} == {1 + len(permission_table.ROLES)}
    cells = {cell.strip() for row in rows if "<span>" not in row[1] for cell in row[1:]}
    assert cells == {"–", "own", "course", "all"}
