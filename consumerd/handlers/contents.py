"""The contents of batches: decoded messages, whichever codec they are from, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from consumerd.base.partition import LogId

_Made = TypeVar("_Made")


class Content(Protocol):
    """The content of a batch: `consumerd.wire.v07.MessageBatch`, or `consumerd.wire.v08.records.RecordSet`."""

    @property
    def payloads(self) -> Sequence[bytes | None]:
        """The messages' payloads, in order, all of them made."""
        ...

    @property
    def keyed(self) -> bool:
        """Whether the messages are `KeyedMessage`s, and there is a list `keys`."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes | None]: ...

    @overload
    def __getitem__(self, position: int) -> bytes | None: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[bytes | None]: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def log(self) -> LogId:
        """The log that the messages were read from, as far as it is known."""
        ...

    def messages_as(self, make: Callable[[tuple[Any, ...]], _Made], *before: object, first: int = 0) -> Iterator[_Made]:
        """Yield `make` of `before` and the fields of `Message` (of `KeyedMessage`, if it is `keyed`) after its
        partition, for every leaf in order from number `first` on.
        """
        ...

    def prefix(self, count: int, /) -> int:
        """The position to commit after the first `count` leaves."""
        ...


class Source(NamedTuple):
    """The messages of `content` from number `first` to `stop`."""

    content: Content
    first: int
    stop: int


def sources_of(content: Content, first: int, stop: int) -> Iterator[Source]:
    """Yield the contents that hold the messages of `content` from number `first` to `stop`: itself, or those of which
    it is made.
    """
    inner: Callable[[int, int], Iterator[Source]] | None = getattr(content, "sources", None)
    if inner is None:
        yield Source(content, first, stop)
    else:
        yield from inner(first, stop)


def known_timestamp(number: int) -> int | None:
    """The `timestamp` of a message; None where there is none, or none that has 64 bits, as hostile records may."""
    return number if 0 <= number < 1 << 63 else None
