"""The result of a texture fetch, in NumPy, from the formulas of the CUDA C++ Programming Guide, "Texture Fetching".

Texels are arrays of shape (…, z or layer, y, x, channel), coordinates arrays of one length.  Coordinates are worked out in single precision,
as a texture unit gets them; weights have 8 bits of fraction; the sums are in double precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

F4 = np.float32
Mode = Literal["wrap", "clamp", "mirror", "border"]


def normalised(values: Any) -> Any:
    """Integers of 8 or 16 bits as numbers in [0, 1] or [-1, 1]."""
    top = F4(np.iinfo(values.dtype).max)
    return np.maximum(values.astype(F4) / top, F4(-1))


def scaled(x: Any, size: int, mode: Mode, normalized: bool) -> Any:
    """The coordinate in texels, with wrapping and mirroring done."""
    if not normalized:
        return x
    whole = np.floor(x)
    if mode == "wrap":
        x = x - whole
    elif mode == "mirror":
        x = np.where(whole.astype(np.int64) % 2 == 0, x - whole, F4(1) - (x - whole))
    return (x * F4(size)).astype(F4)


def index(i: Any, size: int, mode: Mode, normalized: bool) -> Any:
    """The texel that number `i` means, -1 in the border."""
    if mode == "border":
        return np.where((i >= 0) & (i < size), i, -1)
    if mode == "wrap" and normalized:
        return i % size
    return np.clip(i, 0, size - 1)


def read(texels: Any, places: Sequence[Any], border: Any) -> Any:
    """Texels by one index a dimension, x first; where one is -1, the border's colour."""
    inside = np.all([p >= 0 for p in places], axis=0)
    found = texels[tuple(np.maximum(p, 0) for p in reversed(places))]
    return np.where(inside[:, None], found, border)


def sample(
    texels: Any,
    coordinates: Sequence[Any],
    *,
    linear: bool = False,
    modes: Sequence[Mode] = ("clamp",) * 3,
    normalized: bool = False,
    border: Any = 0.0,
) -> Any:
    """A fetch from a texture of one, two or three dimensions (``texels.ndim - 1``)."""
    sizes = texels.shape[-2::-1]
    x = [scaled(c, n, m, normalized) for c, n, m in zip(coordinates, sizes, modes, strict=False)]
    if not linear:
        places = [
            index(np.floor(c).astype(np.int64), n, m, normalized)
            for c, n, m in zip(x, sizes, modes, strict=False)
        ]
        return read(texels, places, border)
    shifted = [(c - F4(0.5)).astype(F4) for c in x]
    floors = [np.floor(b) for b in shifted]
    weights = [np.floor((b - f) * F4(256) + F4(0.5)) / 256.0 for b, f in zip(shifted, floors, strict=True)]
    total = np.zeros((len(x[0]), texels.shape[-1]))
    for corner in itertools.product((0, 1), repeat=len(x)):
        weight = np.ones(len(x[0]))
        places = []
        for d, second in enumerate(corner):
            weight = weight * (weights[d] if second else 1 - weights[d])
            places.append(index(floors[d].astype(np.int64) + second, sizes[d], modes[d], normalized))
        total += weight[:, None] * read(texels, places, border)
    return total


def layers(texels: Any, coordinates: Sequence[Any], layer: Any, **options: Any) -> Any:
    """The same from the layer that each thread names, the nearest where there is none."""
    out = np.zeros((len(layer), texels.shape[-1]))
    chosen = np.clip(layer, 0, len(texels) - 1)
    for n in range(len(texels)):
        some = chosen == n
        if some.any():
            out[some] = sample(texels[n], [c[some] for c in coordinates], **options)
    return out


def faces(x: Any, y: Any, z: Any) -> tuple[Any, Any, Any]:
    """Face and place on it of directions (the table in "Cubemap Textures")."""
    ax, ay, az = np.abs(x), np.abs(y), np.abs(z)
    along_x, along_y = (ax >= ay) & (ax >= az), ay >= az
    face = np.where(
        along_x, np.where(x >= 0, 0, 1), np.where(along_y, np.where(y >= 0, 2, 3), np.where(z >= 0, 4, 5))
    )
    m = np.choose(face, [ax, ax, ay, ay, az, az])
    s = np.choose(face, [-z, z, x, x, x, -x])
    t = np.choose(face, [-y, -y, z, -z, -y, -y])
    return face, ((s / m + F4(1)) / F4(2)).astype(F4), ((t / m + F4(1)) / F4(2)).astype(F4)
