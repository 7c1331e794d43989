"""Cutting the messages of a handler into pieces, so that none of them takes much memory or holds the loop for long.

Strategy: 128 kB of a log may be a single message that holds 6.6 million empty ones. A batch makes them as they are
asked for; code that joins, encodes or stores many at a time takes them in pieces with a limit for both their number and
their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def in_chunks(items: Iterable[_Item], count: int, size: int, size_of: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """The items, in order, as lists of at most `count`.

    A list ends before the item that would bring the sum of `size_of` beyond `size`, unless it is the list's only one.
    """
    piece: list[_Item] = []
    room = size
    for item in items:
        taken = size_of(item)
        if piece and (taken > room or len(piece) == count):
            yield piece
            piece, room = [], size
        piece.append(item)
        room -= taken
    if piece:
        yield piece
