from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers import Batch
from consumerd.handlers.batching import cut, join, joinable
from consumerd.handlers.builtin.records import encode_pieces, encode_records
from consumerd.wire.v07 import Codec, MessageBatch, decode_batch, encode_message_set
from consumerd.wire.v08.records import RecordSet, decode_records, encode_record_batch

TP = TopicPartition("t", 0, 0)

#: Plain payloads, and lists of them as compressed messages, empty ones too.
messages = st.lists(st.one_of(st.binary(max_size=8), st.lists(st.binary(max_size=8), max_size=5)), max_size=12)
settings = st.builds(HandlerSection, max_batch=st.none() | st.integers(1, 9), max_bytes=st.none() | st.integers(1, 30))


def decoded(entries: list[Any], start: int = 0) -> MessageBatch:
    data = b"".join(
        encode_message_set([each]) if isinstance(each, bytes) else encode_message_set(each, codec=Codec.GZIP)
        for each in entries
    )
    return decode_batch(data, start)


def joined(contents: list[Any]) -> Batch:
    return Batch(TP, join(contents))


def wrappers(batch: Batch) -> list[int]:
    """The sizes of the outermost messages, by their offsets."""
    offsets = [message.offset for message in batch.messages()]
    return [offsets.count(offset) for offset in dict.fromkeys(offsets)]


@pytest.mark.parametrize("first", [0, 2])
def test_lines_of_a_part_end_with_the_part(first: int) -> None:
    """Also where lines are written from the buffer of the whole batch."""
    batch = Batch(TP, decoded([b"%d" % number for number in range(9)]))
    lines = b"".join(encode_pieces(batch.part(first, 4), 100, 1 << 20)).splitlines()
    assert lines == b"".join(encode_records(batch)).splitlines()[first : first + 4]


@given(messages, settings)
def test_parts_are_the_whole_and_end_at_boundaries(entries: list[Any], size: HandlerSection) -> None:
    batch = Batch(TP, decoded(entries, start=50))
    parts = list(cut(batch, size))
    assert [m for part in parts for m in part.messages()] == list(batch.messages())
    assert [p for part in parts for p in part] == list(batch) == [p for part in parts for p in part.payloads]
    boundaries = {50, batch.next_offset, *(message.next_offset for message in batch.messages())}
    for before, after in pairwise(parts):
        assert before.next_offset == after.start_offset
        assert before.next_offset in boundaries
        # Nothing of one outermost message is in two parts.
        assert list(before.messages())[-1].offset < next(iter(after.messages())).offset
    if parts:
        assert (parts[0].start_offset, parts[-1].next_offset) == (batch.start_offset, batch.next_offset)
    for part in parts:
        outer = wrappers(part)
        assert size.max_batch is None or len(part) <= size.max_batch or len(outer) == 1
        assert size.max_bytes is None or sum(map(len, part)) <= size.max_bytes or len(outer) == 1
        for count in range(len(part) + 1):
            assert part.prefix(count) in boundaries


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_what_is_joined_is_as_if_it_had_been_fetched_at_once(sets: list[list[Any]], data: st.DataObject) -> None:
    contents, start = [], 7
    for entries in sets:
        contents.append(decoded(entries, start))
        start = contents[-1].next_offset
    whole, batch = Batch(TP, decoded([each for entries in sets for each in entries], 7)), joined(contents)
    assert list(batch) == list(whole)
    assert list(batch.messages()) == list(whole.messages())
    assert (batch.start_offset, batch.next_offset, batch.keys) == (7, whole.next_offset, None)
    first = data.draw(st.integers(0, len(whole)))
    assert list(batch.rest(first).messages()) == list(whole.rest(first).messages())
    count = data.draw(st.integers(0, len(whole)))
    # Between a compressed message without messages and what is before it, either side may be committed.
    ends = {whole.prefix(count), *(each.start_offset for each in contents), *(each.next_offset for each in contents)}
    assert batch.prefix(count) in ends


def records(first: int, count: int) -> RecordSet:
    data = encode_record_batch(
        [b"v%d" % n for n in range(count)], keys=[b"k%d" % n for n in range(count)], base_offset=first
    )
    return decode_records(data, first)


def test_messages_with_keys_are_joined_and_cut_too() -> None:
    batch = joined([records(10, 3), records(13, 4)])
    assert batch.keys == [b"k0", b"k1", b"k2", b"k0", b"k1", b"k2", b"k3"]
    parts = list(cut(batch, HandlerSection(max_batch=2)))
    assert [part.keys for part in parts] == [[b"k0", b"k1"], [b"k2", b"k0"], [b"k1", b"k2"], [b"k3"]]
    assert [(part.start_offset, part.next_offset) for part in parts] == [(10, 12), (12, 14), (14, 16), (16, 17)]
    assert [message.key for part in parts for message in part.messages()] == batch.keys


def test_a_part_can_be_marked_and_cut_further() -> None:
    batch = Batch(TP, decoded([b"a", b"b", b"c", b"d", b"e"]))
    part = batch.part(1, 3)
    assert list(part.rest(1)) == [b"c", b"d"]
    assert (part[0], part[-1], part[0:9]) == (b"b", b"d", [b"b", b"c", b"d"])
    assert part.rest(1).next_offset == part.next_offset == part.prefix(3)
    with pytest.raises(IndexError):
        part[3]


def test_a_compressed_message_of_many_is_cut_out_quickly() -> None:
    batch = Batch(TP, decoded([b"a", [b""] * 300_000, b"b"]))
    assert [len(part) for part in cut(batch, HandlerSection(max_batch=10))] == [1, 300_000, 1]


def test_what_went_backwards_is_not_joined() -> None:
    first, second = decoded([b"a"], 0), decoded([b"b"], 11)
    assert joinable(first, second)
    assert not joinable(second, first)


def test_joins_packed_payloads_without_making_them() -> None:
    first = decoded([b"a", b"b"], 0)
    batch = joined([first, decoded([[b"x"] * 400_000], first.next_offset)])
    assert (len(batch), batch[1], batch[2], batch[-1], batch[1:4]) == (400_002, b"b", b"x", b"x", [b"b", b"x", b"x"])
    assert list(batch.part(1, 3)) == [b"b", b"x", b"x"]


def test_limits_are_positive() -> None:
    for wrong in ({"max_batch": 0}, {"max_bytes": 0}, {"linger": -1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a"):
            HandlerSection(**wrong)
