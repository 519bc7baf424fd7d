"""The texts of the JupyterLab extension: each has its Chinese, and what the server is known to say is what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gpukernel.client
import gpukernel.common
import gpukernel.jupyter
import gpukernel.pool
import hub_spawner

SOURCES = Path(__file__).parents[2] / "labextension" / "src"
CHINESE = Path(gpukernel.jupyter.__path__[0]) / "locale" / "zh_CN" / "LC_MESSAGES" / "gpukernel.json"
PLACE = re.compile(r"%\d")


def marked() -> set[str]:
    """Texts in calls of ``__``, in all files; those of a bundle of JupyterLab's own (``.__``) are JupyterLab's."""
    found: set[str] = set()
    for path in SOURCES.glob("*.ts"):
        found |= set(re.findall(r"(?<![.\w])__\(\s*'((?:[^'\\]|\\.)*)'", path.read_text(encoding="utf-8")))
    return found


def said() -> list[str]:
    """Texts of the server and the pool that the front end translates, and of what stands in place of their values."""
    source = (SOURCES / "texts.ts").read_text(encoding="utf-8")
    lists = re.findall(r"export const (?:SAID|NAMED) = \[(.*?)\];", source, re.DOTALL)
    assert len(lists) == 2
    return [text for one in lists for text in re.findall(r"'((?:[^'\\]|\\.)*)'", one)]


def catalogue() -> dict[str, str]:
    content = json.loads(CHINESE.read_text(encoding="utf-8"))
    head = content.pop("")
    assert head["language"] == "zh-CN"  # as JupyterLab writes it, and looks for it
    assert all(len(forms) == 1 for forms in content.values())
    return {text: forms[0] for text, forms in content.items()}


def test_every_text_has_its_chinese_with_the_same_values() -> None:
    texts = marked() | set(said())
    assert len(texts) > 80
    chinese = catalogue()
    assert sorted(texts - set(chinese)) == []
    assert sorted(set(chinese) - texts) == []
    wrong = [text for text in texts if sorted(PLACE.findall(text)) != sorted(PLACE.findall(chinese[text]))]
    assert wrong == []


def test_what_the_server_is_known_to_say_stands_in_its_source() -> None:
    packages = (gpukernel.client, gpukernel.common, gpukernel.jupyter, gpukernel.pool, hub_spawner)
    rooms = [Path(package.__file__ or "").parent for package in packages]
    files = [path for room in rooms for path in room.rglob("*.py")]
    # Literals that stand one below the other are one.
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in files))
    for text in said():
        # A sentence may be put together: between its values, at a semicolon, and after what many begin with.
        for piece in re.split(r"%\d|; |(?<=This slice is idle)", text):
            assert piece in source, (text, piece)


def test_no_sentence_of_the_extension_is_left_unmarked() -> None:
    shown = r"(?:label|title|caption|body|textContent|aria-label')\s*[:=,]\s*['\"`]([A-Z][a-z]+ [^'\"`]*)"
    loose = [
        (path.name, words)
        for path in SOURCES.glob("*.ts")
        for words in re.findall(shown, path.read_text(encoding="utf-8"))
    ]
    assert loose == []
