"""A fetch response's message set -> `MessageBatch`.

Strategy: runs of plain messages by `walk`, everything else one by one; or, with the native codec, all that is whole and
intact at once, and only the rest one by one. Nothing is raised for what the bytes say: the batch holds what could be
read and says why it ends. A wrapper counts as a whole or not at all, because a position between its leaves cannot be
committed. A large one makes a batch of its own, whose payloads stay packed.

Decoding can run in steps, so that callers on an event loop can yield (`decode_steps`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import lru_cache
from typing import Unpack

from consumerd.base.native import NativeCodec, NativeLimits
from consumerd.base.native import codec as native_codec
from consumerd.wire.batch import BatchEnd, BatchEnding, memory_of
from consumerd.wire.compression import Codec, at_once
from consumerd.wire.errors import CorruptMessageError, TooLargeError
from consumerd.wire.v07.batch import MessageBatch, MessageRun
from consumerd.wire.v07.constants import DEFAULT_LIMITS, DecodeLimits
from consumerd.wire.v07.outer import HEADER_SIZE, MessageSetTail, OuterMessage, plausible_after, read_outer
from consumerd.wire.v07.packed import PackedPayloads, pack_steps
from consumerd.wire.v07.unwrap import unwrap
from consumerd.wire.v07.walk import LAYOUTS, layouts_up_to, walk

#: A wrapper that decompresses to more than this is large.
LARGE_WRAPPER = 1 << 22
#: Bytes that come out of wrappers, and bytes of plain messages, in one step.
_STEP_EXPANDED, _STEP_PLAIN = 1 << 20, 1 << 22
#: Positions of the native codec's index have 32 bits: input and output must stay below.
NATIVE_BYTES = 0xFFFFFFFF - LARGE_WRAPPER


def decode_batch(
    data: bytes | bytearray | memoryview, offset: int, *, limits: DecodeLimits = DEFAULT_LIMITS
) -> MessageBatch:
    """Decode the message set `data` whose first byte has log offset `offset`.

    Never raises for bad bytes: it stops there and says so. The batch keeps `data` alive only where its `memory_bytes`
    cover that. Sources: spec 000 (Message, Fetch), golden notes 1 and 2.
    """
    return at_once(decode_steps(data, offset, limits=limits))


def decode_steps(
    data: bytes | bytearray | memoryview, offset: int, *, limits: DecodeLimits = DEFAULT_LIMITS
) -> Generator[None, None, MessageBatch]:
    """As `decode_batch`, in steps of a few milliseconds; one step where nothing is large."""
    native = native_codec()
    if native is not None and len(data) + limits.max_decompressed_bytes <= NATIVE_BYTES:
        if not (
            isinstance(data, memoryview) and isinstance(data.obj, bytes) and data.contiguous and data.format == "B"
        ):
            data = bytes(data)
        return (yield from _NativeDecoder(data, offset, limits, native).decode())
    return (yield from _Decoder(bytes(data), offset, limits).decode())


class _Decoder:
    """One decode: the state that the steps share."""

    def __init__(self, data: bytes | memoryview, offset: int, limits: DecodeLimits) -> None:
        self.data = data
        self.offset = offset
        self.limits = limits
        #: As `limits`, for wrappers that are not large.
        self.small = _small(limits) if limits.max_decompressed_bytes > LARGE_WRAPPER else limits
        self.layouts = layouts_up_to(limits.max_message_bytes + HEADER_SIZE[1])
        self.payloads: list[bytes] = []
        self.runs: list[MessageRun] = []
        self.position = 0
        self.payload_bytes = 0
        self.expanded = 0
        self.magic = 1
        #: `expanded` where the present step began.
        self.step = 0

    def decode(self) -> Generator[None, None, MessageBatch]:
        end = len(self.data)
        while self.position < end:
            start = self.position
            if self._advance():
                yield
                if self.position > start:
                    continue
            if self.position == end:
                break
            item = self._look()
            if isinstance(item, MessageSetTail):
                return self._cut(item)
            if not item.valid or item.codec is None:
                return self._corrupt(item, f"has {item.problem}", certain=False)
            if item.codec is Codec.NONE:
                self._single(item)
                continue
            ended = yield from self._open(item, item.codec)
            if ended is not None:
                return ended
        return self._batch(end=BatchEnd.COMPLETE)

    def _look(self) -> OuterMessage | MessageSetTail:
        """Read the message, or the tail, at the position."""
        return read_outer(self.data, self.position, self.offset + self.position, self.limits.max_message_bytes)

    def _advance(self) -> bool:
        """Take what goes fast, if anything; whether that was enough for a step."""
        data, start, layout = self.data, self.position, self.layouts[self.magic]
        first = len(self.payloads)
        long = len(data) - start > _STEP_PLAIN
        if long:
            self.position += walk(memoryview(data)[start : start + _STEP_PLAIN], 0, self.payloads.append, layout)
        else:
            self.position = walk(data, start, self.payloads.append, layout)
        if self.position > start:
            self._plain(first, start, layout.overhead)
        return long

    def _single(self, item: OuterMessage) -> None:
        """Take a plain message by itself."""
        self.payloads.append(item.payload)
        start, self.position = self.position, self.position + 4 + item.size
        self.magic = item.magic
        self._plain(len(self.payloads) - 1, start, self.layouts[item.magic].overhead)

    def _open(self, item: OuterMessage, codec: Codec) -> Generator[None, None, MessageBatch | None]:
        """Add the leaves of a wrapper, or return the batch that ends with it, or before it."""
        if self._is_full():
            return self._batch(end=BatchEnd.PARTIAL, needed=4 + item.size)
        try:
            leaves, expanded = unwrap(codec, item.payload, limits=self.small)
        except TooLargeError as error:
            if self.small is self.limits:
                return self._corrupt(item, f"cannot be decompressed: {error}", certain=True)
            if self.position:  # it begins the next batch
                return self._batch(end=BatchEnd.PARTIAL, needed=4 + item.size)
            return (yield from self._pack(item, codec))
        except CorruptMessageError as error:
            return self._corrupt(item, f"cannot be decompressed: {error}", certain=True)
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
            return self._corrupt(item, f"cannot be decompressed: {error}", certain=True)
        return self._large(item, packed)

    def _large(self, item: OuterMessage, packed: PackedPayloads) -> MessageBatch:
        """The batch of a large wrapper, with which the data begins."""
        after = 4 + item.size
        return MessageBatch(
            packed,
            [MessageRun(0, item.offset, 0)],
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
            self.runs.append(MessageRun(first, self.offset + start, overhead))

    def _wrapper(self, item: OuterMessage, leaves: list[bytes], expanded: int) -> None:
        self.runs.append(MessageRun(len(self.payloads), item.offset, 0))
        self.payloads += leaves
        self.payload_bytes += sum(map(len, leaves))
        self.expanded += expanded
        self.position += 4 + item.size

    def _cut(self, tail: MessageSetTail) -> MessageBatch:
        if tail.problem is None:
            return self._batch(end=BatchEnd.PARTIAL, needed=tail.needed)
        return self._batch(end=BatchEnd.CORRUPT, problem=f"the message at offset {tail.offset} has {tail.problem}")

    def _corrupt(self, item: OuterMessage, what: str, *, certain: bool) -> MessageBatch:
        """End at a message that is whole but bad. Its length counts if `certain`, or if another could follow it."""
        after = self.position + 4 + item.size
        believed = certain or plausible_after(self.data, after, self.limits.max_message_bytes)
        return self._batch(
            end=BatchEnd.CORRUPT,
            problem=f"the message at offset {item.offset} {what}",
            resume_offset=item.next_offset if believed else None,
        )

    def _batch(self, **ending: Unpack[BatchEnding]) -> MessageBatch:
        return MessageBatch(
            self.payloads,
            self.runs,
            self.offset,
            self.offset + self.position,
            self.payload_bytes,
            **ending,
        )


class _NativeDecoder(_Decoder):
    """One decode in which the native codec takes all that is whole and intact.

    Everything else stops it, and is judged by the pure code, whose verdicts and words therefore are the only ones.
    """

    def __init__(self, data: bytes | memoryview, offset: int, limits: DecodeLimits, native: NativeCodec) -> None:
        super().__init__(data, offset, limits)
        self.index = native.Payloads(data)
        self.native_limits = native_limits(native, limits)

    def _look(self) -> OuterMessage | MessageSetTail:
        item = super()._look()
        # The decompressors accept bytes only.
        return item if isinstance(item, MessageSetTail) else item._replace(payload=bytes(item.payload))

    def _advance(self) -> bool:
        self.position, due = self.index.read(self.position, self.native_limits)
        return due

    def _single(self, item: OuterMessage) -> None:
        self.index.append(self.position, item.payload, LAYOUTS[item.magic].overhead)
        self.position += 4 + item.size

    def _wrapper(self, item: OuterMessage, leaves: list[bytes], expanded: int) -> None:
        self.index.extend(self.position, leaves, expanded)
        self.position += 4 + item.size

    def _is_full(self) -> bool:
        return self.index.is_full(self.native_limits)

    def _batch(self, **ending: Unpack[BatchEnding]) -> MessageBatch:
        self.index.settle()
        return MessageBatch(
            self.index,
            [MessageRun(first, self.offset + position, overhead) for first, position, overhead in self.index.runs],
            self.offset,
            self.offset + self.position,
            self.index.payload_bytes,
            **ending,
        )


@lru_cache(maxsize=16)
def _small(limits: DecodeLimits) -> DecodeLimits:
    return replace(limits, max_decompressed_bytes=LARGE_WRAPPER)


@lru_cache(maxsize=16)
def native_limits(native: NativeCodec, limits: DecodeLimits) -> NativeLimits:
    """Return the limits as the native codec reads them, which leaves large wrappers to the pure one."""
    return native.Limits(
        max_message_bytes=limits.max_message_bytes,
        max_wrapper_bytes=min(limits.max_decompressed_bytes, LARGE_WRAPPER),
        max_decompressed_bytes=limits.max_decompressed_bytes,
        max_batch_bytes=limits.max_batch_bytes,
        max_depth=limits.max_depth,
        max_pieces=limits.max_pieces,
    )
