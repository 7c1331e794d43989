from __future__ import annotations

from array import array
from itertools import pairwise
from typing import cast

import pytest

from consumerd.base import native
from consumerd.base.native import NativePayloads
from consumerd.wire import compress
from consumerd.wire.v07 import (
    Codec,
    MessageBatch,
    MessageLeaf,
    PackedPayloads,
    decode_batch,
    encode_message,
    encode_message_set,
)
from consumerd.wire.v07.batch import MessageRun
from consumerd.wire.v07.packed import pack_steps

pytestmark = pytest.mark.usefixtures("either_codec")

PLAIN = encode_message_set([b"a", b"bb", b"ccc", b"dddd"])
OLD = encode_message_set([b"a", b"bb"], magic=0)
GZIPPED = encode_message_set([b"x", b"y", b"z"], codec=Codec.GZIP)


def test_length_and_iteration_are_those_of_payloads() -> None:
    batch = decode_batch(PLAIN, 0)
    assert len(batch) == 4
    assert not batch.keyed
    assert list(batch) == [b"a", b"bb", b"ccc", b"dddd"]
    assert repr(batch) == "<MessageBatch of 4 messages, offsets 0 to 50, complete>"


def test_computes_the_prefix_of_plain_messages() -> None:
    batch = decode_batch(PLAIN, 1000)
    assert [batch.prefix(n) for n in range(5)] == [1000, 1011, 1023, 1036, 1050]


def test_prefix_agrees_with_the_messages_in_any_order_of_asking() -> None:
    batch = decode_batch(PLAIN + GZIPPED + OLD + PLAIN, 77)
    expected = [77] + [m.next_offset for m in batch.messages()]
    for count in (5, 13, 2, 3, 3, 0, 12, 9, 10, 1, 4, 8, 7, 6, 11):
        assert batch.prefix(count) == expected[count]


def test_prefix_between_plain_messages_with_empty_wrappers_between_them() -> None:
    empty = encode_message(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1", codec=Codec.SNAPPY)
    batch = decode_batch(PLAIN + empty + PLAIN, 0)
    assert [batch.prefix(n) for n in range(3, 7)] == [36, 50, 50 + len(empty) + 11, 50 + len(empty) + 23]


def test_prefix_inside_a_wrapper_is_its_start() -> None:
    batch = decode_batch(GZIPPED + GZIPPED, 0)
    size = len(GZIPPED)
    assert [batch.prefix(n) for n in range(7)] == [0, 0, 0, size, size, size, 2 * size]


@pytest.mark.parametrize("count", [-1, 5])
def test_rejects_a_prefix_beyond_the_batch(count: int) -> None:
    with pytest.raises(ValueError, match=f"a prefix of {count} messages of a batch of 4"):
        decode_batch(PLAIN, 0).prefix(count)


@pytest.mark.parametrize("leaves", [1, 1023, 1024, 1025, 2048, 3000])
def test_numbers_long_runs_and_long_wrappers(leaves: int) -> None:
    payloads = [b"." * (number % 7) for number in range(leaves)]
    plain, packed = encode_message_set(payloads), encode_message_set(payloads, codec=Codec.GZIP)
    messages = list(decode_batch(plain + packed + plain, 50).messages())
    offset, expected = 50, []
    for turn in range(3):
        for number, payload in enumerate(payloads):
            if turn == 1:
                after = offset + len(packed) if number == leaves - 1 else offset
                expected.append((offset, number, after, payload))
            else:
                after = offset + 10 + len(payload)
                expected.append((offset, 0, after, payload))
            offset = after
    assert messages == expected
    assert messages[-1].next_offset == 50 + 2 * len(plain) + len(packed)


def test_messages_from_any_number_on_are_the_end_of_all_messages() -> None:
    batch = decode_batch(PLAIN + GZIPPED + OLD + PLAIN + GZIPPED, 77)
    messages = list(batch.messages())
    for first in range(len(messages) + 1):
        assert list(batch.messages_as(MessageLeaf._make, first=first)) == messages[first:]


def column(values: bytes, kind: str) -> list[int]:
    return array(kind, values).tolist()


@pytest.mark.parametrize("wide", [False, True])
def test_column_buffers_hold_the_messages_of_the_native_codec(native_codec: native.NativeCodec, wide: bool) -> None:
    with native.using(native_codec):
        batch = decode_batch(PLAIN + GZIPPED + OLD, 77)
    messages = list(batch.messages())
    for first, stop in ((0, 9), (2, 6), (5, 7), (8, 9), (3, 3)):
        buffers = batch.column_buffers(first, stop, 99, wide=wide)
        assert buffers is not None
        assert buffers.index is not None
        ends = column(buffers.payload.offsets, "q" if wide else "i")
        found = zip(
            column(buffers.offset, "q"),
            column(buffers.index, "i"),
            column(buffers.next_offset, "q"),
            (bytes(buffers.payload.data[begin:end]) for begin, end in pairwise(ends)),
            strict=True,
        )
        assert list(found) == messages[first:stop]
        assert not buffers.payload.validity  # no payload is null
    with pytest.raises(OverflowError):
        batch.column_buffers(0, 9, 15, wide=wide)  # payloads have 16 bytes
    with pytest.raises(IndexError):
        batch.column_buffers(0, 10, 99, wide=wide)


def test_counts_the_messages_that_fit_where_the_native_codec_holds_them(native_codec: native.NativeCodec) -> None:
    with native.using(native_codec):
        batch = decode_batch(PLAIN + GZIPPED, 0)  # payloads of 1, 2, 3, 4, 1, 1 and 1 bytes
    assert batch.fitting(0, 7, 99) == (7, 13)
    assert batch.fitting(0, 7, 6) == (3, 6)
    assert batch.fitting(1, 4, 8) == (3, 5)
    assert batch.fitting(3, 7, 3) == (3, 0)


def test_payloads_that_are_objects_have_no_buffers() -> None:
    with native.using(None):
        pure = decode_batch(PLAIN, 0)
    objects = decode_batch(PLAIN, 0)
    assert list(objects.payloads) == [b"a", b"bb", b"ccc", b"dddd"]  # makes them objects
    payloads = packed(PLAIN)
    for batch in (pure, objects, MessageBatch(payloads, [MessageRun(0, 0, 0)], 0, 50, payloads.memory_bytes)):
        assert batch.buffer is None
        assert batch.column_buffers(0, 4, 99, wide=False) is None
        assert batch.fitting(0, 4, 99) is None


class Measured:
    """Payloads of ten bytes that note which of them are measured."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.measured: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self._number

    def size_between(self, first: int, stop: int) -> int:
        self.measured.append((first, stop))
        return 10 * (stop - first)


def test_prefix_continues_from_the_prefix_before_it() -> None:
    """Else a consumer that commits after each message would measure the whole batch each time."""
    payloads = Measured(9)
    batch = MessageBatch(cast("NativePayloads", payloads), [MessageRun(0, 100, 10)], 100, 280, 90)
    assert [batch.prefix(count) for count in (2, 5, 5, 8)] == [140, 200, 200, 260]
    assert payloads.measured == [(0, 2), (2, 5), (5, 5), (5, 8)]
    assert batch.prefix(3) == 160
    assert payloads.measured[-1] == (0, 3)


def packed(data: bytes) -> PackedPayloads:
    steps = pack_steps(Codec.GZIP, compress(Codec.GZIP, data))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("PackedPayloads", end.value)


def test_packed_payloads_count_as_the_memory_that_is_held_for_them() -> None:
    payloads = packed(PLAIN)
    batch = MessageBatch(payloads, [MessageRun(0, 0, 0)], 0, 50, payloads.memory_bytes)
    assert batch.memory_bytes == payloads.memory_bytes == len(PLAIN) + 4 * 8
