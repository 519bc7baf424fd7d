"""The direction numbers of Sobol's sequence, as a packed table and as words of C++.

``sobol_numbers.py TABLE OUTPUT`` writes the words of `TABLE`.  ``sobol_numbers.py --pack NUMBERS TABLE`` makes the table anew,
from SciPy's ``stats/_sobol_direction_numbers.npz``, which holds Joe's and Kuo's file ``new-joe-kuo-6.21201``.

The table begins with 18 numbers of 16 bits: how many dimensions have a polynomial of degree 1, 2 … 18.  Then come the
dimensions from the second on, the lowest bit first: of degree s, the s - 1 inner coefficients of the polynomial, and of m2 … ms
(m1 is 1) all but the last bit, which is always 1.  `libraries/curand/sobol.cpp` reads it.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

DIMENSIONS = 20000  # as many as cuRAND has
DEGREES = 18


def packed(numbers: Path) -> bytes:
    """Return the table of SciPy's file."""
    import numpy as np

    with np.load(numbers) as file:
        polynomials, initial = file["poly"], file["vinit"]
    counts, bits, length = [0] * DEGREES, 0, 0
    pieces: list[tuple[int, int]] = []
    for dimension in range(1, DIMENSIONS):
        polynomial = int(polynomials[dimension])
        degree = polynomial.bit_length() - 1
        counts[degree - 1] += 1
        pieces.append((polynomial >> 1 & (1 << degree - 1) - 1, degree - 1))
        pieces += [(int(initial[dimension][i]) >> 1, i) for i in range(1, degree)]
    out = bytearray(struct.pack(f"<{DEGREES}H", *counts))
    for value, width in pieces:
        bits |= value << length
        length += width
        while length >= 8:
            out.append(bits & 255)
            bits, length = bits >> 8, length - 8
    return bytes([*out, bits])


def words(table: bytes) -> str:
    """Return words of 64 bits, one of them more than are needed, with a comma behind each."""
    whole = table + bytes(16 - len(table) % 8)
    numbers = [f"{value:#x}," for (value,) in struct.iter_unpack("<Q", whole)]
    return "".join(f"{' '.join(numbers[i : i + 6])}\n" for i in range(0, len(numbers), 6))


def main() -> None:
    """Do what the command line says."""
    if sys.argv[1] == "--pack":
        Path(sys.argv[3]).write_bytes(packed(Path(sys.argv[2])))
    else:
        Path(sys.argv[2]).write_text(words(Path(sys.argv[1]).read_bytes()))


if __name__ == "__main__":
    main()
