from __future__ import annotations

import io

import pytest

from consumerd.storage.log.archive import read_indexed
from consumerd.storage.log.archive_items import (
    DEFAULT_EXPANSION,
    FREE_EXPANSION,
    MAX_SEGMENT_BYTES,
    MESSAGE_FLAWS,
    ArchivedRun,
    Flaw,
    FlawKind,
    IndexedMessages,
)
from consumerd.wire.v07 import Codec, encode_message, encode_message_set

START = 1000
NEW = encode_message(b"hello")
OLD = bytes.fromhex("0000000a 00 3610a686") + b"hello"
GZIPPED = encode_message_set([b"one", b"two", b"three"], codec=Codec.GZIP)
SNAPPY = encode_message_set([b"four"], codec=Codec.SNAPPY)
PIECES = [NEW * 2, OLD * 3, GZIPPED, SNAPPY, OLD, NEW]
KINDS = [
    *[(1, Codec.NONE)] * 2,
    *[(0, Codec.NONE)] * 3,
    *[(1, Codec.GZIP)] * 3,
    (1, Codec.SNAPPY),
    (0, Codec.NONE),
    (1, Codec.NONE),
]


@pytest.fixture
def indexed(native_codec: object) -> IndexedMessages:
    (found,) = read_indexed(io.BytesIO(b"".join(PIECES)), START)
    assert isinstance(found, IndexedMessages)
    return found


def test_indexed_messages_as_runs_with_their_offsets_magic_and_codec(indexed: IndexedMessages) -> None:
    ends = [START]
    for piece in PIECES:
        ends.append(ends[-1] + len(piece))
    expected = [
        ArchivedRun(ends[0], ends[1], 1, Codec.NONE, [b"hello"] * 2),
        ArchivedRun(ends[1], ends[2], 0, Codec.NONE, [b"hello"] * 3),
        ArchivedRun(ends[2], ends[3], 1, Codec.GZIP, [b"one", b"two", b"three"]),
        ArchivedRun(ends[3], ends[4], 1, Codec.SNAPPY, [b"four"]),
        ArchivedRun(ends[4], ends[5], 0, Codec.NONE, [b"hello"]),
        ArchivedRun(ends[5], ends[6], 1, Codec.NONE, [b"hello"]),
    ]
    assert [run._replace(payloads=list(run.payloads)) for run in indexed.as_runs()] == expected
    assert [run.first for run in expected] == [0] * 6


def test_counts_the_kinds_of_any_part_of_indexed_messages(indexed: IndexedMessages) -> None:
    for first in range(len(KINDS) + 1):
        for stop in range(first, len(KINDS) + 1):
            found = list(indexed.kinds(first, stop))
            assert all(count for count, _, _ in found)
            taken_apart = [(magic, codec) for count, magic, codec in found for _ in range(count)]
            assert taken_apart == KINDS[first:stop]


def test_attributes_beside_the_codec_mean_nothing(native_codec: object) -> None:
    marked = bytearray(GZIPPED)
    marked[5] |= 0xFC
    (found,) = read_indexed(io.BytesIO(marked), START)
    assert isinstance(found, IndexedMessages)
    assert list(found.kinds(0, 3)) == [(3, 1, Codec.GZIP)]


def test_limits_of_segments_and_of_what_they_are_decompressed_to() -> None:
    """An int32 and one message set may fill a segment; a wrapper of zeros must not exhaust memory."""
    assert MAX_SEGMENT_BYTES == 2 * 2**31
    assert (DEFAULT_EXPANSION, FREE_EXPANSION) == (200, 2**30)


def test_flaws_of_messages_and_of_other_stretches() -> None:
    assert {kind.value for kind in MESSAGE_FLAWS} == {
        "bad-crc", "unknown-magic", "short-header", "unknown-codec", "unreadable-wrapper"
    }  # fmt: skip
    assert {kind.value for kind in set(FlawKind) - MESSAGE_FLAWS} == {
        "nonsense-block", "torn-tail", "damaged-archive", "oversize-segment", "offset-order", "leader-epoch-order"
    }  # fmt: skip


def test_flaw_without_a_message_has_neither_a_payload_nor_a_checked_crc() -> None:
    assert Flaw(FlawKind.TORN, 5, 9, "torn")[4:8] == (None, None, False, b"")
