"""The first page's animation: twenty seconds that end with something else than they begin, in a file of modest size."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageChops, ImageSequence

from docs.animation import PICTURE, SIZE

DOCS = Path(__file__).parents[2] / "docs"


def test_the_animation_lasts_twenty_seconds_and_moves() -> None:
    assert PICTURE.name in (DOCS / "index.md").read_text()
    assert PICTURE.stat().st_size < 400 << 10
    with Image.open(PICTURE) as picture:
        assert picture.size == (SIZE["width"], SIZE["height"])
        durations, frames = [], []
        for frame in ImageSequence.Iterator(picture):
            frame.load()
            durations.append(frame.info["duration"])
            frames.append(frame.convert("L"))
    assert 15 <= sum(durations) / 1000 <= 25
    assert len(frames) > 30
    assert ImageChops.difference(frames[0], frames[-1]).getbbox() is not None
