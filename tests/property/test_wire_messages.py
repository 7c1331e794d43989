"""Message sets of any shape, against a model that knows from the making what must come out."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.storage.log.dump import LogEntry, read_entries
from consumerd.wire import CorruptMessageError
from consumerd.wire.v07 import (
    BatchEnd,
    Codec,
    DecodeLimits,
    MessageBatch,
    MessageLeaf,
    check_produced_set,
    decode_batch,
    encode_message_set,
    iter_outer,
)

pytestmark = pytest.mark.usefixtures("either_codec")

LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20, max_depth=5)


def frame(payload: bytes, magic: int, attributes: int) -> bytes:
    """One message, assembled here and not by the code under test."""
    head = bytes([magic]) if magic == 0 else bytes([magic, attributes])
    body = head + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">I", len(body)) + body


def squeeze(codec: Codec, data: bytes, bare: bool) -> bytes:
    if codec is Codec.GZIP:
        return gzip.compress(data, mtime=0)
    if bare:
        return bytes(snappy.compress(data))
    blocks = [bytes(snappy.compress(data[at : at + 100])) for at in range(0, len(data), 100)]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


@dataclass
class Made:
    """A message as made: its bytes and the leaves that must come out of it."""

    data: bytes
    leaves: list[bytes] = field(default_factory=list)
    wrapper: bool = False


@st.composite
def plain(draw: st.DrawFn) -> Made:
    payload = draw(st.binary(max_size=40))
    magic = draw(st.sampled_from([0, 1, 1, 1]))
    return Made(frame(payload, magic, draw(st.sampled_from([0, 0, 0, 0x04, 0xFC]))), [payload])


@st.composite
def wrapped(draw: st.DrawFn, inside: st.SearchStrategy[list[Made]]) -> Made:
    parts = draw(inside)
    data = b"".join(part.data for part in parts)
    if parts:  # a set that only holds a cut message is corrupt, one that ends in such is not
        data += draw(st.sampled_from([b"", b"\0", b"\0\0\0", b"\0\0\0\x0b\x01\0", b"\x7f\xff\xff\xff\x01"]))
    codec = draw(st.sampled_from([Codec.GZIP, Codec.SNAPPY]))
    payload = squeeze(codec, data, draw(st.booleans()))
    attributes = codec | draw(st.sampled_from([0, 0xF0]))
    return Made(frame(payload, 1, attributes), [leaf for part in parts for leaf in part.leaves], wrapper=True)


def sets(messages: st.SearchStrategy[Made], size: int) -> st.SearchStrategy[list[Made]]:
    return st.lists(messages, max_size=size)


MESSAGES = st.recursive(plain(), lambda inner: st.one_of(plain(), wrapped(sets(inner, 4))), max_leaves=8)
ROWS = sets(MESSAGES, 12)
OFFSETS = st.integers(0, 1 << 62)


def expected_messages(made: Iterable[Made], offset: int) -> list[MessageLeaf]:
    found = []
    for part in made:
        end = offset + len(part.data)
        last = len(part.leaves) - 1
        for index, payload in enumerate(part.leaves):
            found.append(MessageLeaf(offset, index, end if index == last else offset, payload))
        offset = end
    return found


def boundaries(made: Iterable[Made], offset: int = 0) -> list[int]:
    ends = [offset]
    for part in made:
        ends.append(ends[-1] + len(part.data))
    return ends


def joined(made: Iterable[Made]) -> bytes:
    return b"".join(part.data for part in made)


def assert_laws(batch: MessageBatch) -> None:
    """Properties that hold for every batch, whatever the bytes were."""
    messages = list(batch.messages())
    assert [m.payload for m in messages] == batch.payloads == list(batch)
    assert len(batch) == len(messages)
    identities = [(m.offset, m.index) for m in messages]
    assert identities == sorted(set(identities))
    ends = [batch.start_offset, *(m.next_offset for m in messages), batch.next_offset]
    assert ends == sorted(ends)
    assert [batch.prefix(count) for count in range(len(batch))] == ends[: len(batch)]
    assert batch.prefix(len(batch)) == batch.next_offset
    assert batch.memory_bytes == sum(map(len, batch.payloads)) + 48 * len(batch)
    assert (batch.problem is None) is (batch.end is not BatchEnd.CORRUPT)
    assert batch.resume_offset is None or batch.resume_offset > batch.next_offset
    assert batch.needed is None or batch.end is BatchEnd.PARTIAL


@given(ROWS, OFFSETS)
def test_decodes_what_was_encoded(made: list[Made], offset: int) -> None:
    batch = decode_batch(joined(made), offset, limits=LIMITS)
    assert list(batch.messages()) == expected_messages(made, offset)
    assert (batch.end, batch.next_offset) == (BatchEnd.COMPLETE, boundaries(made, offset)[-1])
    assert_laws(batch)


@given(ROWS, OFFSETS)
def test_prefix_is_a_boundary_of_the_outer_set(made: list[Made], offset: int) -> None:
    ends = boundaries(made, offset)
    batch = decode_batch(joined(made), offset, limits=LIMITS)
    for count in range(len(batch) + 1):
        position = batch.prefix(count)
        assert position in ends
        # Read again from there: exactly the leaves of messages that were not handled whole come again.
        rest = decode_batch(joined(made)[position - offset :], position, limits=LIMITS)
        assert len(rest) >= len(batch) - count
        assert rest.payloads == batch.payloads[len(batch) - len(rest) :]


@given(ROWS, OFFSETS)
def test_outer_messages_tile_the_set(made: list[Made], offset: int) -> None:
    outer = list(iter_outer(joined(made), offset, limits=LIMITS))
    assert all(message.valid for message in outer)
    assert [message.next_offset for message in outer] == boundaries(made, offset)[1:]
    assert [message.offset for message in outer] == boundaries(made, offset)[:-1]
    assert [message.codec is not Codec.NONE for message in outer] == [part.wrapper for part in made]


@given(ROWS, st.data())
def test_truncation_loses_only_what_is_cut(made: list[Made], data: st.DataObject) -> None:
    whole = joined(made)
    cut = data.draw(st.integers(0, len(whole)))
    batch = decode_batch(whole[:cut], 0, limits=LIMITS)
    ends = boundaries(made)
    last = max(end for end in ends if end <= cut)
    assert batch.next_offset == last
    assert batch.end is (BatchEnd.COMPLETE if last == cut else BatchEnd.PARTIAL)
    if batch.end is BatchEnd.PARTIAL and cut - last >= 4:
        assert batch.needed == min(end for end in ends if end > cut) - last
    rest = decode_batch(whole[last:], last, limits=LIMITS)
    assert [*batch.messages(), *rest.messages()] == expected_messages(made, 0)
    assert_laws(batch)


@given(ROWS, st.integers(1, 60))
def test_fetching_in_pieces_equals_the_whole(made: list[Made], size: int) -> None:
    whole = joined(made)
    found: list[MessageLeaf] = []
    offset, asked = 0, size
    while offset < len(whole):
        batch = decode_batch(whole[offset : offset + asked], offset, limits=LIMITS)
        found += batch.messages()
        asked = size if batch.next_offset > offset else max(batch.needed or 0, 2 * asked)
        offset = batch.next_offset
    assert found == expected_messages(made, 0)


@given(ROWS.filter(bool), st.data())
def test_flipped_bit_changes_nothing_before_it_and_raises_nothing(made: list[Made], data: st.DataObject) -> None:
    whole = bytearray(joined(made))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    ends = boundaries(made)
    hit = max(index for index, end in enumerate(ends) if end <= at)
    batch = decode_batch(bytes(whole), 0, limits=LIMITS)
    assert_laws(batch)
    before = expected_messages(made[:hit], 0)
    assert list(batch.messages())[: len(before)] == before
    part = made[hit]
    if at - ends[hit] >= len(part.data) - len(payload_of(part)):
        # In the payload: the CRC notices every single bit.
        assert (batch.end, batch.next_offset, len(batch)) == (BatchEnd.CORRUPT, ends[hit], len(before))
        if batch.resume_offset is not None:
            assert batch.resume_offset == ends[hit + 1]
            rest = decode_batch(bytes(whole[ends[hit + 1] :]), ends[hit + 1], limits=LIMITS)
            assert list(rest.messages()) == expected_messages(made, 0)[len(before) + len(part.leaves) :]


def payload_of(part: Made) -> bytes:
    return part.data[9 if part.data[4] == 0 else 10 :]


@given(ROWS, st.binary(max_size=60), OFFSETS)
def test_reads_good_messages_before_garbage(made: list[Made], garbage: bytes, offset: int) -> None:
    batch = decode_batch(joined(made) + garbage, offset, limits=LIMITS)
    expected = expected_messages(made, offset)
    assert list(batch.messages())[: len(expected)] == expected
    assert_laws(batch)


@given(ROWS, st.binary(max_size=12))
def test_accepted_set_decodes(made: list[Made], tail: bytes) -> None:
    data = joined(made) + tail
    try:
        checked = check_produced_set(data, limits=LIMITS)
    except CorruptMessageError:
        assert tail  # good messages alone are always taken
        return
    batch = decode_batch(data[: checked.valid_bytes], 0, limits=DecodeLimits(max_depth=5))
    assert (batch.end, batch.next_offset) == (BatchEnd.COMPLETE, checked.valid_bytes)
    assert len(batch) == checked.leaf_count
    assert checked.valid_bytes >= len(joined(made))


@given(st.lists(st.binary(max_size=50)), st.sampled_from(list(Codec)), st.sampled_from([0, 1]))
def test_decodes_what_it_encodes(payloads: list[bytes], codec: Codec, magic: int) -> None:
    data = encode_message_set(payloads, magic=magic, codec=codec)
    batch = decode_batch(data, 0)
    assert (batch.payloads, batch.end) == (payloads, BatchEnd.COMPLETE)
    assert check_produced_set(data).leaf_count == len(payloads)


@settings(max_examples=50)
@given(ROWS, st.binary(max_size=30), st.integers(1, 80))
def test_entries_tile_a_file_in_any_window(made: list[Made], garbage: bytes, window: int) -> None:
    data = joined(made) + garbage + joined(made[:2])

    def read(size: int) -> list[LogEntry]:
        return list(read_entries(io.BytesIO(data), 7, limits=LIMITS, window=size))

    entries = read(1 << 20)
    ends = [7, *(entry.next_offset for entry in entries)]
    assert [entry.offset for entry in entries] == ends[:-1]
    assert ends[-1] == 7 + len(data)
    leaves = [leaf for part in made for leaf in part.leaves]
    assert [payload for entry in entries for payload in entry.payloads][: len(leaves)] == leaves
    assert read(window) == entries
