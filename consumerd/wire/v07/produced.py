"""The check of the message set of a PRODUCE request before a broker stores it.

Strategy: two passes, as the real broker makes them, because the first thing found decides what happens: over the outer
messages in order (CRC, size), then into the wrappers. A set is stored whole or not at all, but for a cut-off
message at its end, which is dropped silently (golden notes, 1; golden wire/cases.json, `produce_*`).

A few hundred bytes can be made to keep a reader busy for minutes. So the passes go in steps, for a broker that has
others to serve, nothing of what is decompressed is kept, and what no honest producer writes is refused
(`PRODUCE_LIMITS`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from consumerd.base.native import codec as native_codec
from consumerd.wire.compression import STEP, Codec, at_once
from consumerd.wire.errors import CorruptMessageError, OversizeMessageError
from consumerd.wire.v07.constants import PRODUCE_LIMITS, DecodeLimits
from consumerd.wire.v07.outer import MessageSetTail, OuterMessage, read_outer
from consumerd.wire.v07.packed import PIECE, open_steps, work_of
from consumerd.wire.v07.unwrap import allowance_of
from consumerd.wire.v07.walk import ANY_LENGTH, LAYOUTS, verify

#: Bytes of plain messages that the native codec checks at once; the pure one checks `PIECE`.
_NATIVE_PIECE = 1 << 20


class CheckedSet(NamedTuple):
    """A set that may be stored: its first `valid_bytes` bytes, which hold `outer_count` messages.

    `leaf_count` counts inner messages instead of wrappers: that is what log.flush.interval counts (golden notes, 3).
    """

    valid_bytes: int
    outer_count: int
    leaf_count: int


def check_produced_set(data: bytes, *, limits: DecodeLimits = PRODUCE_LIMITS) -> CheckedSet:
    """Judge `data`, the messages of one PRODUCE entry; `limits.max_message_bytes` is the broker's max.message.size.

    Raises CorruptMessageError (the real broker closes the connection) or OversizeMessageError (it drops the set and
    keeps the connection), whichever it would meet first. An empty set, or up to 3 stray bytes, passes with 0 valid
    bytes.
    """
    return at_once(check_steps(data, limits=limits))


def check_steps(data: bytes, *, limits: DecodeLimits = PRODUCE_LIMITS) -> Generator[None, None, CheckedSet]:
    """As `check_produced_set`, in steps of a millisecond or two; one step where the set is small.

    `data` may also be a memoryview of bytes, which must stay as they are until the end; nothing of it is kept.
    """
    outer = yield from _outer_steps(data, limits)
    leaf_count = outer.messages - len(outer.wrappers)
    work = outer.work
    for codec, payload in outer.wrappers:
        leaves = _Leaves(payload, limits)
        yield from open_steps(codec, payload, leaves.note, allowance_of(payload, limits), limits.max_depth)
        leaf_count += leaves.count
        work += work_of(len(payload), 0) + min(STEP, leaves.count << 4)
        if work >= STEP:
            work = 0
            yield
    return CheckedSet(outer.end, outer.messages, leaf_count)


def check_plain_set(data: bytes, *, limits: DecodeLimits = PRODUCE_LIMITS) -> CheckedSet | None:
    """Judge the usual set: plain, whole, intact messages, few enough for one step. None: `check_steps` must judge."""
    if len(data) > _piece():
        return None
    position, count = verify(data, 0, limits.max_message_bytes, LAYOUTS[1], last=True)
    return CheckedSet(position, count, count) if position == len(data) else None


def _piece() -> int:
    return PIECE if native_codec() is None else _NATIVE_PIECE


class _Outer(NamedTuple):
    """What the first pass found: the end of the last whole message, the number of messages, the wrappers among them.

    `work` is that of the step that has begun.
    """

    end: int
    messages: int
    wrappers: list[tuple[Codec, bytes]]
    work: int


def _outer_steps(data: bytes, limits: DecodeLimits) -> Generator[None, None, _Outer]:
    """The first pass."""
    position, end = 0, len(data)
    outer_count = work = 0
    wrappers: list[tuple[Codec, bytes]] = []
    view, piece = memoryview(data), _piece()
    while position < end:
        start, stop = position, min(end, position + piece)
        used, count = verify(view[start:stop], 0, limits.max_message_bytes, LAYOUTS[1], last=True)
        position += used
        outer_count += count
        if position < stop:
            item = read_outer(data, position, position, ANY_LENGTH)
            if isinstance(item, MessageSetTail):
                if item.problem is not None:
                    raise CorruptMessageError(f"the produced set has, at byte {position}, {item.problem}")
                if position == 0 and item.needed is not None:
                    raise CorruptMessageError("the produced set holds nothing but a part of a message")
                break
            codec = _judged(item, position, limits)
            if codec is not Codec.NONE:
                wrappers.append((codec, bytes(item.payload)))
            outer_count += 1
            position = item.next_offset
        work += work_of(position - start, count)
        if work >= STEP:
            work = 0
            yield
    return _Outer(position, outer_count, wrappers, work)


def _judged(item: OuterMessage, position: int, limits: DecodeLimits) -> Codec:
    """Return the codec of a message at `position`. Raises CorruptMessageError, OversizeMessageError."""
    if not item.valid or item.codec is None:
        raise CorruptMessageError(f"the message at byte {position} of the produced set has {item.problem}")
    if len(item.payload) > limits.max_message_bytes:
        raise OversizeMessageError(
            f"a message has a payload of {len(item.payload)} bytes, more than max.message.size = "
            f"{limits.max_message_bytes}"
        )
    return item.codec


class _Leaves:
    """Counts the leaves of one wrapper. Raises CorruptMessageError when they are more than a producer would write."""

    __slots__ = ("count", "most")

    def __init__(self, payload: bytes, limits: DecodeLimits) -> None:
        self.count = 0
        self.most: int | None = None
        if limits.max_leaves_per_byte is not None:
            self.most = max(limits.free_leaves, limits.max_leaves_per_byte * len(payload))

    def note(self, _data: bytes | bytearray, _start: int, _end: int, count: int) -> None:
        self.count += count
        if self.most is not None and self.count > self.most:
            raise CorruptMessageError(
                f"a compressed message holds more than {self.most} messages, which is more than its size allows"
            )
