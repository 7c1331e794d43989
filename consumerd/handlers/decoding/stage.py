"""Decodes batches ahead of the handler, and meets what cannot be decoded with the failure policy.

Strategy: this stage stands in front of lanes and retries, since keys may be taken from decoded values. A batch is
delivered as runs of a bounded size, of messages that could be decoded. Between two runs may stand one that could not,
and it is given up before the next run begins: so order is kept, the handler sees no message twice because of another
one, and nothing that is behind a message is committed before the message is done with.

    a b c X d e   ->   handle(a b c), give up X, handle(d e)

Decoding takes turns with the other tasks of the loop. A message is decoded once however often it is retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast, overload

from consumerd.handlers.api import Handler, HandlerStage
from consumerd.handlers.contents import Source
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.decoding.api import Decoder, NotReadyError
from consumerd.handlers.giving_up import GivingUp
from consumerd.handlers.messages import Batch, Message
from consumerd.handlers.tracebacks import brief
from consumerd.net.schemas.errors import DecodeError

_Made = TypeVar("_Made")

#: Messages, and bytes of their payloads, whose values are held at once. A compressed message may hold millions.
#: A run may have twice as many where that spares a compressed message from being divided.
RUN: Final = 10_000
RUN_BYTES: Final = 4 << 20
#: Seconds after which others have their turn.
_TURN: Final = 0.02


class Decoding(HandlerStage):
    """Delivers decoded batches to `inner`, which has its retry policy around it. `name` is that of the decoder."""

    def __init__(
        self, inner: Handler, decoder: Decoder, giving_up: GivingUp, counts: HandlerCounts, *, name: str = "decoder"
    ) -> None:
        super().__init__(inner)
        self._decode = decoder.decode
        self._giving_up = giving_up
        self._counts = counts
        self._name = name

    async def start(self, context: HandlerContext) -> None:
        self._clock = context.clock
        await super().start(context)

    async def handle(self, batch: Batch) -> None:
        """Return when every message of `batch` was handled, or given up by the policy."""
        begin, size, turn = 0, 0, time.monotonic()
        values: list[Any] = []
        for number, message in enumerate(batch.messages()):
            try:
                try:
                    value = self._value(message)
                except NotReadyError as error:
                    await self._handle_run(batch, begin, values)
                    begin, size, values = number, 0, []
                    value = await self._value_later(message, error)
                values.append(value)
            except DecodeError as error:
                await self._handle_run(batch, begin, values)
                await self._give_up(batch.part(number, 1), error)
                batch.mark(number + 1)
                begin, size, values = number + 1, 0, []
                continue
            size += len(cast("bytes | None", message.payload) or b"")
            if _full(len(values), size, boundary=message.next_offset > message.offset):
                await self._handle_run(batch, begin, values)
                begin, size, values = number + 1, 0, []
            if time.monotonic() - turn > _TURN:
                await asyncio.sleep(0)
                turn = time.monotonic()
        await self._handle_run(batch, begin, values)
        batch.mark(len(batch))

    def _value(self, message: Message) -> Any:
        payload: bytes | None = message.payload
        if payload is None:  # a tombstone has no value, in any format
            return None
        try:
            return self._decode(message)
        except (DecodeError, NotReadyError, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit, and a panic of a library in Rust
            raise DecodeError(brief(error)) from error

    async def _value_later(self, message: Message, error: NotReadyError) -> Any:
        """The value of a message that was not ready to be decoded. Raises DecodeError."""
        while True:
            await error.load(self._clock)
            try:
                return self._value(message)
            except NotReadyError as again:
                error = again

    async def _handle_run(self, batch: Batch, first: int, values: list[Any]) -> None:
        """Deliver the messages of `batch` from number `first` on that have these values."""
        if values:
            part = batch.part(first, len(values))
            contiguous = _is_boundary(batch, first) and _is_boundary(batch, first + len(values))
            await self._inner.handle(_Run(batch, first, DecodedContent(part, values, contiguous=contiguous)))
            batch.mark(first + len(values))

    async def _give_up(self, failed: Batch, error: DecodeError) -> None:
        self._counts.undecodable[failed.topic] += 1
        await self._giving_up.give_up(failed, error, 1, what=f"decoder {self._name!r} failed")


def _full(messages: int, size: int, *, boundary: bool) -> bool:
    """Whether a run ends here: if one comes soon, at a boundary of outermost messages: only they have positions."""
    fullness = max(messages / RUN, size / RUN_BYTES)
    return fullness >= (1 if boundary else 2)


def _is_boundary(batch: Batch, number: int) -> bool:
    """Whether an outermost message ends before message `number`, and not a part of a compressed one alone."""
    return number == 0 or batch.prefix(number) > batch.prefix(number - 1)


class _Run(Batch):
    """Consecutive messages of `whole` from number `first` on, which it tells how far they are handled."""

    __slots__ = ("_before", "_whole")

    def __init__(self, whole: Batch, first: int, content: DecodedContent) -> None:
        super().__init__(whole.partition, content)
        self._whole = whole
        self._before = first

    def mark(self, handled: int) -> None:
        super().mark(handled)
        self._whole.mark(self._before + handled)


class DecodedContent:
    """The messages of `part` with their values, as the content of a batch.

    It is `contiguous` unless it has only a part of a compressed message: no range of offsets says which one.
    """

    def __init__(self, part: Batch, values: list[Any], *, contiguous: bool = True) -> None:
        self._part = part
        self.contiguous = contiguous
        self.values = values
        self.start_offset = part.start_offset
        self.log = part.log
        self.next_offset = part.next_offset
        self.keyed = part.keyed

    @property
    def keys(self) -> list[bytes | None] | None:
        """As `Batch.keys`, made when asked for."""
        return self._part.keys

    @property
    def payloads(self) -> Sequence[bytes | None]:
        """As `Content`."""
        return self._part.payloads

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self._part)

    @overload
    def __getitem__(self, position: int) -> bytes | None: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[bytes | None]: ...
    def __getitem__(self, position: int | slice) -> bytes | Sequence[bytes | None] | None:
        return self._part[position]

    def messages_as(self, make: Callable[[tuple[Any, ...]], _Made], *before: object, first: int = 0) -> Iterator[_Made]:
        """As `Content`."""
        return self._part.messages_as(make, *before, first=first)

    def sources(self, first: int, stop: int) -> Iterator[Source]:
        """As `sources_of`."""
        return self._part.sources(first, stop)

    def prefix(self, count: int, /) -> int:
        """As `Content`."""
        return self._part.prefix(count)
