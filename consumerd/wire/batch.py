"""The result of decoding a fetch response, in both dialects: payloads, the next offset, and the reason of the end.

Strategy: payloads are plain `bytes` in a list, or a buffer and an index from which they are made on access (those
of a large compressed message are packed). Everything else is computed on access, in pieces that cost no line of Python
for each message. Code that passes batches on is independent of the dialect; each dialect has its own classes for
identities and positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import chain, repeat
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from consumerd.base.partition import UNKNOWN_LOG
from consumerd.wire.column_buffers import ColumnBuffers

_Made = TypeVar("_Made")
#: `bytes`, or None as well where a payload may be null.
_Payload = TypeVar("_Payload")
#: A run of consecutive messages, kept in place of an entry for each.
_Run = TypeVar("_Run")

#: Memory of a payload in addition to its bytes: the object's header, rounding, and its place in the list.
OVERHEAD_PER_MESSAGE = 48
#: The largest number of 64 bits, which the native codec's messages have.
MAX_NUMBER = (1 << 63) - 1
#: For how many messages at a time identities are prepared.
PIECE = 1024


def memory_of(count: int, payload_bytes: int) -> int:
    """Bytes of memory that `count` payloads of together `payload_bytes` bytes take."""
    return payload_bytes + OVERHEAD_PER_MESSAGE * count


class BatchEnd(Enum):
    """The reason for a batch's end."""

    #: The data ended with a whole message.
    COMPLETE = "complete"
    #: A message is cut off, or left for the next batch: fetch again from `next_offset`.
    PARTIAL = "partial"
    #: There is no readable message at `next_offset`.
    CORRUPT = "corrupt"


class BatchEnding(TypedDict, total=False):
    """The details of a batch's end, if it is not COMPLETE."""

    end: BatchEnd
    problem: str | None
    resume_offset: int | None
    needed: int | None


class DecodedBatch(ABC, Generic[_Payload, _Run]):
    """The messages of one partition, in order, from `start_offset` (the requested offset) to `next_offset`.

    `next_offset` is where the next fetch starts: after the last whole outer message. `end` is the reason for the
    batch's end; for PARTIAL `needed` is the size of the cut-off message, its length field included, if known; for
    CORRUPT `problem` is a sentence and `resume_offset` the offset at which reading could continue after the corrupt
    bytes, if their lengths can be believed. `memory_bytes` is the size that a budget should count. `log` is the log of
    the messages, as far as it is known: the decoder knows the leader epoch, which all have, the fetcher the rest.
    """

    __slots__ = (
        "_payloads",
        "_runs",
        "end",
        "log",
        "memory_bytes",
        "needed",
        "next_offset",
        "problem",
        "resume_offset",
        "start_offset",
    )

    def __init__(
        self,
        payloads: Sequence[_Payload],
        runs: Sequence[_Run],
        start_offset: int,
        next_offset: int,
        payload_bytes: int,
        **ending: Unpack[BatchEnding],
    ) -> None:
        self._payloads = payloads
        self._runs = runs
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.memory_bytes = payload_bytes + OVERHEAD_PER_MESSAGE * len(payloads)  # as `memory_of`
        self.end = BatchEnd.COMPLETE
        self.problem: str | None = None
        self.resume_offset: int | None = None
        self.needed: int | None = None
        self.log = UNKNOWN_LOG
        if ending:
            self._ended(**ending)

    def _ended(
        self,
        end: BatchEnd = BatchEnd.COMPLETE,
        problem: str | None = None,
        resume_offset: int | None = None,
        needed: int | None = None,
    ) -> None:
        self.end, self.problem, self.resume_offset, self.needed = end, problem, resume_offset, needed

    @property
    def payloads(self) -> Sequence[_Payload]:
        """All payloads, in order."""
        return self._payloads

    def __len__(self) -> int:
        return len(self._payloads)

    def __iter__(self) -> Iterator[_Payload]:
        return iter(self._payloads)

    @overload
    def __getitem__(self, position: int) -> _Payload: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[_Payload]: ...
    def __getitem__(self, position: int | slice) -> _Payload | Sequence[_Payload]:
        return self._payloads[position]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(self)} messages, offsets {self.start_offset} to "
            f"{self.next_offset}, {self.end.value}>"
        )

    def messages_as(self, make: Callable[[tuple[Any, ...]], _Made], *before: object, first: int = 0) -> Iterator[_Made]:
        """As `messages`, of what `make` makes of each one's fields, with `before` in front of them.

        Begins with message number `first`; those before it are not made.
        """
        return chain.from_iterable(self._pieces(make, list(map(repeat, before)), first))

    def column_buffers(self, first: int, stop: int, most: int, *, wide: bool) -> ColumnBuffers | None:
        """The messages from number `first` to `stop` as Arrow buffers; None where they are objects.

        Payloads have at most `most` bytes, and so have keys; both have 64-bit offsets if `wide`. Raises IndexError, and
        OverflowError where they have more bytes.
        """
        return None

    def message_lists(
        self, kind: type[Any], partition: object, first: int, stop: int, most: int
    ) -> Iterator[list[Any]] | None:
        """The messages from number `first` to `stop` in lists of at most `most`; None where they are objects.

        They are what the class `kind` of named tuples makes of `partition` and their fields, and cost much less. Raises
        IndexError.
        """
        return None

    def fitting(self, first: int, stop: int, size: int) -> tuple[int, int] | None:
        """The number behind the messages from `first` to `stop` whose payloads have at most `size` bytes, and their
        bytes; None where they are objects.
        """
        return None

    @abstractmethod
    def _pieces(
        self, make: Callable[[tuple[Any, ...]], _Made], before: Sequence[Iterator[object]], first: int
    ) -> Iterator[Iterator[_Made]]:
        """`messages_as`, in pieces."""

    def prefix(self, count: int) -> int:
        """The position to commit when the first `count` messages are handled: a boundary of the outer set.

        0 gives `start_offset`, all of them `next_offset`. Raises ValueError for a count that the batch has not.
        """
        if not 0 <= count <= len(self):
            raise ValueError(f"a prefix of {count} messages of a batch of {len(self)}")
        if count == len(self):
            return self.next_offset
        return self._inside(count) if count else self.start_offset

    @abstractmethod
    def _inside(self, count: int) -> int:
        """`prefix` of some of the messages, but not all."""
