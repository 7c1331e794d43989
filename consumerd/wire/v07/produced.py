"""How a broker judges the message set of a PRODUCE request before it stores it.

Strategy: two passes, as the real broker makes them, because the first thing found decides what happens: over the outer
messages in order (CRC, size), then into the wrappers. A set is stored whole or not at all, but for a cut-off
message at its end, which is dropped silently (golden notes, 1; golden wire/cases.json, `produce_*`).
"""

from __future__ import annotations

from typing import NamedTuple

from consumerd.wire.compression import Codec
from consumerd.wire.errors import CorruptMessageError, OversizeMessageError
from consumerd.wire.v07.constants import DEFAULT_LIMITS, Limits
from consumerd.wire.v07.outer import OuterMessage, Tail, read_outer
from consumerd.wire.v07.unwrap import unwrap
from consumerd.wire.v07.walk import LAYOUTS, verify

_ANY_SIZE = 0x7FFFFFFF


class CheckedSet(NamedTuple):
    """A set that may be stored: its first `valid_bytes` bytes, which hold `outer_count` messages.

    `leaf_count` counts inner messages instead of wrappers: that is what log.flush.interval counts (golden notes, 3).
    """

    valid_bytes: int
    outer_count: int
    leaf_count: int


def check_produced_set(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> CheckedSet:
    """Judge `data`, the messages of one PRODUCE entry; `limits.max_message_bytes` is the broker's max.message.size.

    Raises CorruptMessageError (the real broker closes the connection) or OversizeMessageError (it drops the set and
    keeps the connection), whichever it would meet first. An empty set, or up to 3 stray bytes, passes with 0 valid
    bytes.
    """
    position, end = 0, len(data)
    outer_count = 0
    wrappers: list[OuterMessage] = []
    while position < end:
        position, count = verify(data, position, limits.max_message_bytes, LAYOUTS[1])
        outer_count += count
        item = read_outer(data, position, position, _ANY_SIZE)
        if isinstance(item, Tail):
            if item.problem is not None:
                raise CorruptMessageError(f"the produced set has, at byte {position}, {item.problem}")
            if position == 0 and item.needed is not None:
                raise CorruptMessageError("the produced set holds nothing but a part of a message")
            break
        if not item.valid:
            raise CorruptMessageError(f"the message at byte {position} of the produced set has {item.problem}")
        if len(item.payload) > limits.max_message_bytes:
            raise OversizeMessageError(
                f"a message has a payload of {len(item.payload)} bytes, more than max.message.size = "
                f"{limits.max_message_bytes}"
            )
        outer_count += 1
        position = item.next_offset
        if item.codec is not Codec.NONE:
            wrappers.append(item)
    leaf_count = outer_count - len(wrappers)
    for item in wrappers:
        assert item.codec is not None
        leaf_count += len(unwrap(item.codec, item.payload, limits=limits)[0])
    return CheckedSet(position, outer_count, leaf_count)
