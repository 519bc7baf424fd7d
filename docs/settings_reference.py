"""MkDocs hook: writes every setting into the page ``settings.md``, from traitlets, the schema of ``courses.yaml`` and `configure`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from docs.in_pages import put

_WORDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "maxLength": "characters: at most",
    "maxItems": "entries: at most",
}


def _text(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _traits(cls: Any) -> Iterator[str]:
    own = cls.class_own_traits(config=True)
    yield "| setting | default | what it says |\n| --- | --- | --- |"
    for name, trait in sorted(own.items()):
        default = trait.default_value_repr() if hasattr(trait, "default_value_repr") else ""
        yield f"| `c.{cls.__name__}.{name}` | `{default}` | {_text(trait.help)} |"


def _fields(model: Any) -> Iterator[str]:
    schema = model.model_json_schema()
    yield "| field | kind | bounds | what it says |\n| --- | --- | --- | --- |"
    for name, field in schema["properties"].items():
        options = field.get("anyOf", [field])
        kinds = [
            one.get("type") or one.get("const") or one.get("$ref", "").rpartition("/")[2] for one in options
        ]
        shown = " or ".join(dict.fromkeys(f"`{kind}`" for kind in kinds if kind and kind != "null"))
        limits = {_WORDS[key]: v for one in options for key, v in one.items() if key in _WORDS}
        bounds = ", ".join(f"{word} {value:g}" for word, value in limits.items())
        yield f"| `{name}` | {shown} | {bounds} | {_text(field.get('description', ''))} |"


def _reference() -> Iterator[str]:
    from gpukernel.common.course_entries import CourseEntry, CourseFile, Limits
    from gpukernel.common.reservation_entry import ReservationEntry
    from gpukernel.jupyter.provisioner import GPUSliceProvisioner
    from gpukernel.jupyter.specs import GPUKernelSpecManager
    from hub_spawner.setup import configure
    from hub_spawner.spawner import GPUSpawnerMixin

    yield "## courses.yaml\n"
    yield from _fields(CourseFile)
    yield "\n### A course\n"
    yield from _fields(CourseEntry)
    yield "\n### Limits: `quota`, `each_student`, `each_instructor`, `pool`, a person of `people`\n"
    yield from _fields(Limits)
    yield "\n### A reservation\n"
    yield from _fields(ReservationEntry)
    yield "\nTimes may be written as `90s`, `30min` or `2h`, memory as `2048` (MiB) or `32GiB`.\n"
    yield "## `hub_spawner.configure`\n"
    parameters = inspect.getdoc(configure) or ""
    described = re.findall(r"^(\w+)\n((?:    .*\n?)+)", parameters.partition("Parameters\n---")[2], re.M)
    yield "| argument | default | what it says |\n| --- | --- | --- |"
    for name, words in described:
        default = inspect.signature(configure).parameters.get(name)
        if default is not None and name != "c":
            yield f"| `{name}` | `{default.default!r}` | {_text(words).replace('``', '`')} |"
    for cls, title in (
        (GPUSpawnerMixin, "Spawners"),
        (GPUKernelSpecManager, "The launcher of a Jupyter server"),
        (GPUSliceProvisioner, "Kernels: `metadata.kernel_provisioner.config` of a kernelspec"),
    ):
        yield f"\n## {title}\n"
        yield from _traits(cls)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in the settings."""
    if page.file.src_path != "settings.md":
        return markdown
    return put(markdown, "settings", "\n".join(_reference()))
