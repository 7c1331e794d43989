"""A fetch response's message set -> `MessageBatch`.

Strategy: runs of plain messages by `walk`, everything else one by one. Nothing is raised for what the bytes say: the
batch holds what could be read and says why it ends. A wrapper counts as a whole or not at all, because a position
between its leaves cannot be committed. A large one makes a batch of its own, whose payloads stay packed.

All of it goes in steps, for whoever has a loop to look after (`decode_steps`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consumerd.wire.batch import BatchEnd, memory_of
from consumerd.wire.compression import Codec
from consumerd.wire.errors import CorruptMessageError, TooLargeError
from consumerd.wire.v07.batch import MessageBatch, Run
from consumerd.wire.v07.constants import DEFAULT_LIMITS, Limits
from consumerd.wire.v07.outer import Tail, plausible_after, read_outer
from consumerd.wire.v07.packed import pack_steps
from consumerd.wire.v07.unwrap import unwrap
from consumerd.wire.v07.walk import LAYOUTS, walk

if TYPE_CHECKING:
    from collections.abc import Generator

    from consumerd.wire.v07.outer import OuterMessage
    from consumerd.wire.v07.packed import PackedPayloads

#: A wrapper that decompresses to more than this is large.
LARGE_WRAPPER = 1 << 22
#: Bytes that come out of wrappers, and bytes of plain messages, in one step.
_STEP_EXPANDED, _STEP_PLAIN = 1 << 20, 1 << 22


def decode_batch(data: bytes | bytearray | memoryview, offset: int, *, limits: Limits = DEFAULT_LIMITS) -> MessageBatch:
    """Decode the message set `data` whose first byte has log offset `offset`.

    Never raises for bad bytes: it stops there and says so. The batch copies what it needs and does not keep `data`
    alive. Sources: spec 000 (Message, Fetch), golden notes 1 and 2.
    """
    steps = decode_steps(data, offset, limits=limits)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        batch: MessageBatch = end.value
        return batch


def decode_steps(
    data: bytes | bytearray | memoryview, offset: int, *, limits: Limits = DEFAULT_LIMITS
) -> Generator[None, None, MessageBatch]:
    """As `decode_batch`, in steps of a few milliseconds; one step where nothing is large."""
    return (yield from _Decoder(bytes(data), offset, limits).decode())


class _Decoder:
    """One decode: the state that the steps share."""

    __slots__ = (
        "data",
        "expanded",
        "limits",
        "magic",
        "offset",
        "payload_bytes",
        "payloads",
        "position",
        "runs",
        "small",
        "step",
    )

    def __init__(self, data: bytes, offset: int, limits: Limits) -> None:
        self.data = data
        self.offset = offset
        self.limits = limits
        #: As `limits`, for wrappers that are not large.
        self.small = limits
        if limits.max_decompressed_bytes > LARGE_WRAPPER:
            self.small = replace(limits, max_decompressed_bytes=LARGE_WRAPPER)
        self.payloads: list[bytes] = []
        self.runs: list[Run] = []
        self.position = 0
        self.payload_bytes = 0
        self.expanded = 0
        self.magic = 1
        #: `expanded` where the present step began.
        self.step = 0

    def decode(self) -> Generator[None, None, MessageBatch]:
        data, end, append = self.data, len(self.data), self.payloads.append
        while self.position < end:
            layout = LAYOUTS[self.magic]
            first, start = len(self.payloads), self.position
            if end - start <= _STEP_PLAIN:
                self.position = walk(data, start, append, layout)
            else:
                self.position += walk(memoryview(data)[start : start + _STEP_PLAIN], 0, append, layout)
                yield
            if self.position > start:
                self._plain(first, start, layout.overhead)
            item = read_outer(data, self.position, self.offset + self.position, self.limits.max_message_bytes)
            if isinstance(item, Tail):
                return self._cut(item)
            if not item.valid or item.codec is None:
                return self._corrupt(item, f"has {item.problem}", certain=False)
            if item.codec is Codec.NONE:
                append(item.payload)
                start, self.position = self.position, self.position + 4 + item.size
                self.magic = item.magic
                self._plain(len(self.payloads) - 1, start, LAYOUTS[item.magic].overhead)
                continue
            ended = yield from self._open(item, item.codec)
            if ended is not None:
                return ended
        return self._batch(BatchEnd.COMPLETE)

    def _open(self, item: OuterMessage, codec: Codec) -> Generator[None, None, MessageBatch | None]:
        """Add the leaves of a wrapper, or return the batch that ends with it, or before it."""
        if self._is_full():
            return self._batch(BatchEnd.PARTIAL, needed=4 + item.size)
        try:
            leaves, expanded = unwrap(codec, item.payload, limits=self.small)
        except TooLargeError as error:
            if self.small is self.limits:
                return self._corrupt(item, f"cannot be opened: {error}", certain=True)
            if self.position:  # it begins the next batch
                return self._batch(BatchEnd.PARTIAL, needed=4 + item.size)
            return (yield from self._pack(item, codec))
        except CorruptMessageError as error:
            return self._corrupt(item, f"cannot be opened: {error}", certain=True)
        self._wrapper(item, leaves, expanded)
        if self.expanded - self.step >= _STEP_EXPANDED:
            self.step = self.expanded
            yield
        return None

    def _pack(self, item: OuterMessage, codec: Codec) -> Generator[None, None, MessageBatch]:
        yield
        try:
            packed = yield from pack_steps(codec, item.payload, limits=self.limits)
        except CorruptMessageError as error:
            return self._corrupt(item, f"cannot be opened: {error}", certain=True)
        return self._large(item, packed)

    def _large(self, item: OuterMessage, packed: PackedPayloads) -> MessageBatch:
        """The batch of a large wrapper, with which the data begins."""
        after = 4 + item.size
        return MessageBatch(
            packed,
            [Run(0, item.offset, 0)],
            self.offset,
            self.offset + after,
            packed.memory_bytes,
            end=BatchEnd.COMPLETE if after == len(self.data) else BatchEnd.PARTIAL,
        )

    def _is_full(self) -> bool:
        memory = memory_of(len(self.payloads), self.payload_bytes)
        return memory >= self.limits.max_batch_bytes or self.expanded >= self.limits.max_decompressed_bytes

    def _plain(self, first: int, start: int, overhead: int) -> None:
        """Account for the plain messages from number `first` on, which stood at `start` and after."""
        self.payload_bytes += self.position - start - overhead * (len(self.payloads) - first)
        if not self.runs or self.runs[-1].overhead != overhead:
            self.runs.append(Run(first, self.offset + start, overhead))

    def _wrapper(self, item: OuterMessage, leaves: list[bytes], expanded: int) -> None:
        self.runs.append(Run(len(self.payloads), item.offset, 0))
        self.payloads += leaves
        self.payload_bytes += sum(map(len, leaves))
        self.expanded += expanded
        self.position += 4 + item.size

    def _cut(self, tail: Tail) -> MessageBatch:
        if tail.problem is None:
            return self._batch(BatchEnd.PARTIAL, needed=tail.needed)
        return self._batch(BatchEnd.CORRUPT, problem=f"the message at offset {tail.offset} has {tail.problem}")

    def _corrupt(self, item: OuterMessage, what: str, *, certain: bool) -> MessageBatch:
        """End at a message that is whole but bad. Its length counts if `certain`, or if another could follow it."""
        after = self.position + 4 + item.size
        believed = certain or plausible_after(self.data, after, self.limits.max_message_bytes)
        return self._batch(
            BatchEnd.CORRUPT,
            problem=f"the message at offset {item.offset} {what}",
            resume_offset=item.next_offset if believed else None,
        )

    def _batch(
        self,
        end: BatchEnd,
        *,
        problem: str | None = None,
        resume_offset: int | None = None,
        needed: int | None = None,
    ) -> MessageBatch:
        return MessageBatch(
            self.payloads,
            self.runs,
            self.offset,
            self.offset + self.position,
            self.payload_bytes,
            end=end,
            problem=problem,
            resume_offset=resume_offset,
            needed=needed,
        )
