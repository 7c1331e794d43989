"""Messages of one partition handled concurrently, with the order of each key kept.

Strategy: a batch is divided among lanes by a hash of the keys, so all messages with one key are in one lane, in order;
lanes run concurrently, each through the handler with its policy of retries. What counts as handled is the contiguous
prefix over all lanes: a message that is handled before a slower one ahead of it may come again after a crash, and
nothing is lost. Lanes end with their batch: the next one is divided when all of it was handled, so a lane holds no
more than its share, and no key overtakes itself from one batch to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from consumerd.base.errors import HandlerFailedError, HandlerLoadError, leaves
from consumerd.handlers.api import Handler, HandlerStage, keeps_positions
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.giving_up import GivingUp
from consumerd.handlers.loading import plain_handler
from consumerd.handlers.messages import Batch, Message, payload_size
from consumerd.handlers.sparse_content import SparseContent
from consumerd.wire.crc import crc32

#: Messages, and bytes of their payloads, that are divided at once: one compressed message may hold millions.
_PIECE: Final = 10_000
_PIECE_BYTES: Final = 8 << 20


class KeyLanes(HandlerStage):
    """Hands batches to `inner` by up to `concurrency` calls at once for each partition.

    The key is that of the message; of a handler that has a method `key(message)`, which returns bytes, text or None, it
    is what that returns; where it raises, the message is given up (`giving_up`) by itself. Messages without a key are
    in no order among each other. `inner` has its retry policy around
    it; `plugin` is the handler itself. Raises HandlerLoadError for a sink that keeps the positions of partitions.
    """

    def __init__(
        self,
        inner: Handler,
        concurrency: int,
        *,
        plugin: Handler,
        name: str = "handler",
        giving_up: GivingUp | None = None,
    ) -> None:
        if keeps_positions(plain_handler(plugin)):
            raise HandlerLoadError(
                f"handler {name!r} keeps the positions of partitions, so it needs their messages in order: "
                'set handler.order = "partition" and handler.concurrency = 1.'
            )
        super().__init__(inner)
        self._concurrency = concurrency
        self._name = name
        self._giving_up = giving_up or GivingUp(name, "stop", None, HandlerCounts())
        self._key: Callable[[Message], bytes | str | None] | None = getattr(plain_handler(plugin), "key", None)

    async def handle(self, batch: Batch) -> None:
        """Return when all of `batch` is handled; handled messages are marked from its front on meanwhile."""
        if self._key is None and batch.keys is None:
            raise HandlerFailedError(no_keys(self._name))
        for piece in in_chunks(batch.messages(), _PIECE, _PIECE_BYTES, payload_size):
            await self._handle_piece(batch, piece)

    async def _handle_piece(self, batch: Batch, piece: Sequence[Message]) -> None:
        before = batch.handled
        lanes, failed = self._by_lane(piece)
        shares = [_Share(batch, piece, numbers) for numbers in lanes if numbers]
        keyless = {number: _Share(batch, piece, [number]) for number in failed}

        def progressed() -> None:
            unhandled = [share.first_unhandled for share in (*shares, *keyless.values())]
            first = min((number for number in unhandled if number is not None), default=None)
            batch.mark(max(batch.handled, before + (len(piece) if first is None else first)))

        for share in (*shares, *keyless.values()):
            share.progressed = progressed
        try:
            async with asyncio.TaskGroup() as group:
                for share in shares:
                    group.create_task(self._inner.handle(share))
                for number, share in keyless.items():
                    group.create_task(self._give_up(share, failed[number]))
        except BaseExceptionGroup as errors:
            raise _first_of(errors) from errors
        batch.mark(before + len(piece))

    async def _give_up(self, share: _Share, error: BaseException) -> None:
        """Give up a message whose key is not known: which messages it must follow is not known either."""
        await self._giving_up.give_up(share, error, 1, what=f"key() of handler {self._name!r} failed")
        share.mark(len(share))

    def _by_lane(self, piece: Sequence[Message]) -> tuple[list[list[int]], dict[int, BaseException]]:
        """The numbers of the messages of each lane; and of those without one, with the error of the handler."""
        lanes: list[list[int]] = [[] for _ in range(self._concurrency)]
        failed: dict[int, BaseException] = {}
        for number, message in enumerate(piece):
            try:
                key = message.key if self._key is None else self._key(message)
                lane = number if key is None else crc32(key.encode() if isinstance(key, str) else key)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit, and a panic of a library in Rust
                failed[number] = error
            else:
                lanes[lane % self._concurrency].append(number)
        return lanes, failed


class _Share(Batch):
    """The part of a piece that one lane has: reports its progress."""

    __slots__ = ("_numbers", "progressed")

    def __init__(self, whole: Batch, piece: Sequence[Message], numbers: list[int]) -> None:
        content = SparseContent([piece[number] for number in numbers], log=whole.log, decoded=whole.decoded)
        super().__init__(whole.partition, content)
        self._numbers = numbers
        self.progressed: Callable[[], None] = lambda: None

    @property
    def first_unhandled(self) -> int | None:
        """The number in the piece; None when all is handled."""
        return self._numbers[self.handled] if self.handled < len(self) else None

    def mark(self, handled: int) -> None:
        super().mark(handled)
        self.progressed()


def has_key(plugin: Handler) -> bool:
    """Whether a handler defines the keys of messages itself."""
    return getattr(plain_handler(plugin), "key", None) is not None


def no_keys(name: str) -> str:
    """Return the sentence of the error: there is no order by keys on 0.7."""
    return (
        f'handler.order = "key" needs keys, and messages of Kafka 0.7 have none: give the handler {name!r} a method '
        '`key(message)`, or set handler.order = "partition".'
    )


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """One error for several lanes: what stops the daemon counts most."""
    found = list(leaves(errors))
    return next((leaf for leaf in found if isinstance(leaf, HandlerFailedError)), found[0])
