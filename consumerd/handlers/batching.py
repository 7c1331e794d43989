"""Batches of the size that a handler wants: fetched ones are joined while a moment passes, large ones are cut.

Strategy: nothing is copied but references. Joined messages stay reserved in their lane until handled, so waiting
for more never takes more memory than the partition's budget, and ends when that is used up. A cut is always at a
boundary of the outermost messages: a compressed message stays in one batch, however many it holds, since there is no
position within it that could be stored or committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final, TypeVar, overload

from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers.contents import Content, Source, sources_of
from consumerd.handlers.messages import Batch

_Made = TypeVar("_Made")
#: Payloads whose sizes are looked at at once.
_PIECE: Final = 1024


def is_full(contents: Sequence[Content], size: HandlerSection) -> bool:
    """Whether a batch of `contents` waits for no more, by its largest `size`."""
    if size.max_batch is not None and sum(map(len, contents)) >= size.max_batch:
        return True
    if size.max_bytes is None:
        return False
    return sum(len(payload or b"") for each in contents for payload in each) >= size.max_bytes


def has_size(size: HandlerSection) -> bool:
    """Whether batches are cut to a size."""
    return size.max_batch is not None or size.max_bytes is not None


def cut(batch: Batch, size: HandlerSection) -> Iterator[Batch]:
    """`batch` in parts of at most this size, in order."""
    if not has_size(size):
        yield batch
        return
    first, length = 0, len(batch)
    while first < length:
        end = boundary(batch, first, _end(batch, first, size))
        yield batch if (first, end) == (0, length) else batch.part(first, end - first)
        first = end


def _end(batch: Batch, first: int, size: HandlerSection) -> int:
    """Return the end of a part that begins at message `first`, by its size; after that message at least."""
    end = len(batch) if size.max_batch is None else min(first + size.max_batch, len(batch))
    if size.max_bytes is None:
        return end
    room = size.max_bytes
    for start in range(first, end, _PIECE):
        for count, payload in enumerate(batch[start : min(start + _PIECE, end)], start):
            room -= len(payload or b"")
            if room < 0:
                return max(count, first + 1)
    return end


def boundary(batch: Batch, first: int, end: int) -> int:
    """Return the number of the message at the boundary nearest before `end`, or else at the first one behind it.

    `first` is a boundary, too, and never returned.
    """
    offset = batch.prefix(end)
    if end == len(batch) or batch.prefix(end - 1) != offset:
        return end
    # Within a compressed message every prefix is where that begins.
    numbers = range(first + 1, len(batch))
    start = bisect_left(numbers, offset, key=batch.prefix)
    if start < len(numbers) and batch.prefix(first) != offset:
        return numbers[start]
    behind = bisect_right(numbers, offset, key=batch.prefix)
    return numbers[behind] if behind < len(numbers) else len(batch)


def joinable(before: Content, after: Content) -> bool:
    """Whether `after` can stand in one batch behind `before`: it follows it in the same log."""
    return after.start_offset >= before.next_offset and after.log == before.log


def join(contents: Sequence[Content]) -> Content:
    """One content of several that are joinable one behind the other."""
    return contents[0] if len(contents) == 1 else _Joined(contents)


class _Joined:
    """Contents one behind the other. Payloads stay where they are, and are made when they are read."""

    def __init__(self, contents: Sequence[Content]) -> None:
        self._contents = contents
        self._ends = list(accumulate(map(len, contents)))
        self.start_offset = contents[0].start_offset
        self.next_offset = contents[-1].next_offset
        self.log = contents[0].log
        self.keyed = all(each.keyed for each in contents)
        if self.keyed:
            self.keys = [key for each in contents for key in getattr(each, "keys")]  # noqa: B009

    @property
    def payloads(self) -> list[bytes | None]:
        """All of them, made."""
        return list(self)

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[bytes | None]:
        return chain.from_iterable(self._contents)

    @overload
    def __getitem__(self, position: int) -> bytes | None: ...
    @overload
    def __getitem__(self, position: slice) -> list[bytes | None]: ...
    def __getitem__(self, position: int | slice) -> bytes | list[bytes | None] | None:
        if isinstance(position, int):
            number = range(len(self))[position]
            at = bisect_right(self._ends, number)
            return self._contents[at][number - self._start(at)]
        start, stop, step = position.indices(len(self))
        found: list[bytes | None] = []
        at = bisect_right(self._ends, start)
        while start < stop:
            before = self._start(at)
            found += self._contents[at][start - before : stop - before]
            start, at = self._ends[at], at + 1
        return found[::step]

    def sources(self, first: int, stop: int) -> Iterator[Source]:
        """As `sources_of`."""
        for at, content in enumerate(self._contents):
            before, end = self._start(at), self._ends[at]
            if before < stop and first < end:
                yield from sources_of(content, max(first, before) - before, min(stop, end) - before)

    def _start(self, at: int) -> int:
        """The number of the first message of a content."""
        return self._ends[at - 1] if at else 0

    def messages_as(self, make: Callable[[tuple[Any, ...]], _Made], *before: object, first: int = 0) -> Iterator[_Made]:
        """As `Content`."""
        at = bisect_right(self._ends, first)
        inside = first - self._start(at)
        return chain.from_iterable(
            each.messages_as(make, *before, first=0 if number else inside)
            for number, each in enumerate(self._contents[at:])
        )

    def prefix(self, count: int, /) -> int:
        """As `Content`."""
        if count >= len(self):
            return self.next_offset
        if not count:
            return self.start_offset
        at = bisect_left(self._ends, count)
        return self._contents[at].prefix(count - self._start(at))
