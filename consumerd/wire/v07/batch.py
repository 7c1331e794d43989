"""What a decoded fetch response is: payloads, and identities that are worked out when asked for.

Strategy: payloads are plain `bytes` in a list. Where they stood is kept as one small entry per *run* (a row of plain
messages of one magic, or one wrapper) and nothing per message: offsets follow from the payloads' lengths. A message's
identity is the offset of its outermost message and its index among the flattened leaves of that one; a position to
commit is always a boundary of the outer set, and of a wrapper's leaves only the last one moves it (golden notes, 2).
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from functools import partial
from itertools import accumulate, chain, count, islice, pairwise, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Made = TypeVar("_Made")
#: What a payload costs beside its bytes: the object's header, rounding, and its place in the list.
OVERHEAD_PER_MESSAGE = 48


def memory_of(count: int, payload_bytes: int) -> int:
    """Bytes of memory that `count` payloads of together `payload_bytes` bytes take."""
    return payload_bytes + OVERHEAD_PER_MESSAGE * count


class BatchEnd(Enum):
    """Why a batch ends where it ends."""

    #: The data ended with a whole message.
    COMPLETE = "complete"
    #: A message is cut off, or left for the next batch: fetch again from `next_offset`.
    PARTIAL = "partial"
    #: What stands at `next_offset` is no message that can be read.
    CORRUPT = "corrupt"


class Message(NamedTuple):
    """One leaf. `next_offset` is the position to commit once it is handled, all before it being handled too."""

    offset: int
    index: int  # type: ignore[assignment]  # the word of the field; nobody looks for members of a tuple of fields
    next_offset: int
    payload: bytes


class Run(NamedTuple):
    """Consecutive leaves with one rule for their offsets.

    `first` is the number of its first leaf and `offset` where the run begins. `overhead` is what each plain message has
    beside its payload, or 0 for a wrapper, whose leaves share the offset.
    """

    first: int
    offset: int
    overhead: int


_FIRST = attrgetter("first")
_message = partial(tuple.__new__, Message)
#: For how many leaves at a time identities are prepared.
PIECE = 1024


class MessageBatch:
    """The messages of one partition, in order, from `start_offset` up to `next_offset`.

    `payloads`: the flattened leaves. `next_offset`: the boundary after the last whole outer message, where the next
    fetch starts. `end` says why it ends there; for PARTIAL `needed` is the number of bytes that the cut-off message
    takes, its length field included, if known; for CORRUPT `problem` is a sentence and `resume_offset` where reading
    could go on past the corrupt message, if its length can be believed. `memory_bytes` is what a budget should count.
    """

    __slots__ = (
        "_mark",
        "_runs",
        "end",
        "memory_bytes",
        "needed",
        "next_offset",
        "payloads",
        "problem",
        "resume_offset",
        "start_offset",
    )

    def __init__(
        self,
        payloads: list[bytes],
        runs: Sequence[Run],
        start_offset: int,
        next_offset: int,
        payload_bytes: int,
        *,
        end: BatchEnd = BatchEnd.COMPLETE,
        problem: str | None = None,
        resume_offset: int | None = None,
        needed: int | None = None,
    ) -> None:
        self.payloads = payloads
        self._runs = runs
        #: A number of handled leaves within a plain run, and where they end.
        self._mark = (-1, 0)
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.memory_bytes = memory_of(len(payloads), payload_bytes)
        self.end = end
        self.problem = problem
        self.resume_offset = resume_offset
        self.needed = needed

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.payloads)

    def __repr__(self) -> str:
        return (
            f"<MessageBatch of {len(self.payloads)} messages, offsets {self.start_offset} to {self.next_offset}, "
            f"{self.end.value}>"
        )

    def messages(self) -> Iterator[Message]:
        """The leaves with their identities, made as they are asked for."""
        return self.messages_as(_message)

    def messages_as(self, make: Callable[[tuple[Any, ...]], _Made], *before: object) -> Iterator[_Made]:
        """As `messages`, of what `make` makes of each one's fields, with `before` in front of them."""
        return chain.from_iterable(self._pieces(make, list(map(repeat, before))))

    def _pieces(
        self, make: Callable[[tuple[Any, ...]], _Made], before: Sequence[Iterator[object]]
    ) -> Iterator[Iterator[_Made]]:
        """`messages_as`, in pieces whose identities are made without a line of Python for each."""
        payloads = self.payloads
        last = Run(len(payloads), self.next_offset, 0)
        for run, following in pairwise((*self._runs, last)):
            start = run.offset
            for first in range(run.first, following.first, PIECE):
                inside = payloads[first : min(first + PIECE, following.first)]
                if run.overhead:
                    sizes = map(run.overhead.__add__, map(len, inside))
                    bounds = list(accumulate(sizes, initial=start))
                    start = bounds[-1]
                    fields = zip(*before, bounds, repeat(0), islice(bounds, 1, None), inside, strict=False)
                else:
                    # Of a wrapper's leaves only the last moves the position.
                    after = [start] * len(inside)
                    if first + len(inside) == following.first:
                        after[-1] = following.offset
                    fields = zip(*before, repeat(start), count(first - run.first), after, inside, strict=False)
                yield map(make, fields)

    def prefix(self, count: int) -> int:
        """The position to commit when the first `count` leaves are handled: a boundary of the outer set.

        0 gives `start_offset`, all of them `next_offset`. Raises ValueError for a count that the batch has not.
        """
        if not 0 <= count <= len(self.payloads):
            raise ValueError(f"a prefix of {count} messages of a batch of {len(self.payloads)}")
        if count == len(self.payloads):
            return self.next_offset
        if count == 0:
            return self.start_offset
        at = bisect_right(self._runs, count - 1, key=_FIRST) - 1
        run = self._runs[at]
        if run.overhead:
            return self._after(run, count)
        following = self._runs[at + 1] if at + 1 < len(self._runs) else None
        return following.offset if following is not None and following.first == count else run.offset

    def _after(self, run: Run, count: int) -> int:
        """The end of leaf `count - 1` of a plain run; goes on from where the last call stopped if it can."""
        # A mark at the very start of the run is the end of another one, before empty wrappers perhaps.
        first, offset = self._mark if run.first < self._mark[0] <= count else (run.first, run.offset)
        more = self.payloads[first:count]
        self._mark = (count, offset + run.overhead * len(more) + sum(map(len, more)))
        return self._mark[1]
