"""Messages of one partition that need not follow one another, as the content of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

from consumerd.base.partition import NO_BROKER, UNKNOWN_LOG, LogId
from consumerd.handlers.messages import KeyedMessage, Message

_Made = TypeVar("_Made")


class SparseContent:
    """`messages`, at least one, in the order of the log. There may be others between them, which are not meant, unless
    they are `contiguous`. They bring their values where they are `decoded`.
    """

    def __init__(
        self,
        messages: Sequence[Message | KeyedMessage],
        *,
        log: LogId = UNKNOWN_LOG,
        contiguous: bool = False,
        decoded: bool = False,
    ) -> None:
        self._messages = messages
        self.log = log
        self.contiguous = contiguous
        self.payloads: list[bytes | None] = [message.payload for message in messages]
        self.start_offset = messages[0].offset
        self.next_offset = messages[-1].next_offset
        self.keyed = messages[0].partition.broker == NO_BROKER
        if self.keyed:
            self.keys = [message.key for message in messages]
        if decoded:
            self.values = [message.value for message in messages]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.payloads)

    @overload
    def __getitem__(self, position: int) -> bytes | None: ...
    @overload
    def __getitem__(self, position: slice) -> list[bytes | None]: ...
    def __getitem__(self, position: int | slice) -> bytes | list[bytes | None] | None:
        return self.payloads[position]

    def messages_as(self, make: Callable[[tuple[Any, ...]], _Made], *before: object, first: int = 0) -> Iterator[_Made]:
        """As `Content`; the partition in `before` is that of the messages."""
        return (make((*before, *message[1:])) for message in self._messages[first:])

    def prefix(self, count: int, /) -> int:
        """As `Content`, for words in errors and logs; the code that picked them decides what may be committed."""
        return self.next_offset if count >= len(self._messages) else self._messages[count].offset
