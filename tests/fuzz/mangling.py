"""Changes to good bytes that readers of hostile ones have to survive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

#: Values that a decoder must not believe in counts, sizes and lengths.
_NUMBERS: Final = (0, 1, 2, 5, 6, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_MOST_CHANGES: Final = 4


def mangled(
    rng: random.Random, data: bytes, others: Sequence[bytes], *, longest: int = 50, longest_piece: int = 200
) -> bytes:
    """`data` after one to four changes: bits, bytes, cuts, repeats, numbers, and pieces of other samples.

    `longest`: bytes that a change takes at once; `longest_piece`: of one of `others`.
    """
    found = bytearray(data)
    for _ in range(rng.randint(1, _MOST_CHANGES)):
        at = rng.randrange(len(found) + 1)
        size = min(rng.choice((1, 2, 4, 8, longest)), len(found) - at)
        change = rng.randrange(6)
        if change == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            found[at : at + size] = rng.randbytes(size)
        elif change == 2:
            del found[at : at + size]
        elif change == 3:
            found[at:at] = found[at : at + size]
        elif change == 4:
            width = rng.choice((1, 2, 4, 4))
            number = rng.choice((*_NUMBERS, len(found)))
            found[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width)
        else:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            found[at:at] = other[start : start + rng.randrange(longest_piece)]
    return bytes(found)
