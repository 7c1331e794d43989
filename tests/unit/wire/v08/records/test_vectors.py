"""Messages and batches spelled out byte by byte."""

from __future__ import annotations

import struct
import zlib

import pytest
from google_crc32c import value as crc32c

from consumerd.wire.v08.records import (
    BatchEnd,
    TimestampType,
    decode_records,
    encode_message_set,
    encode_record_batch,
)

pytestmark = pytest.mark.usefixtures("either_codec")

#: Offset 7, size 16, CRC, magic 0, attributes 0, key "k", value "v".
MAGIC_0 = bytes.fromhex("0000000000000007" "00000010") + bytes.fromhex("1fecd70a") + bytes.fromhex(
    "00" "00" "00000001" "6b" "00000001" "76"
)  # fmt: skip
#: Offset 7, size 23, CRC, magic 1, attributes 0, timestamp 258, no key, value "v".
BODY_1 = bytes.fromhex("01000000000000000102ffffffff0000000176")
MAGIC_1 = bytes.fromhex("000000000000000700000017") + zlib.crc32(BODY_1).to_bytes(4) + BODY_1


def body_2() -> bytes:
    first = "16000000026b027602026801"
    second = "0e00030201027700"  # 7 bytes: -2 ms, +1, no key, "w", no headers
    fields = "00100000000100000000000001020000000000000103000000000000000500060000000700000002"
    return bytes.fromhex(fields + first + second)


def batch_2() -> bytes:
    body = body_2()
    return struct.pack(">qiibI", 7, 9 + len(body), 3, 2, crc32c(body)) + body


def test_decodes_magic_0() -> None:
    assert zlib.crc32(MAGIC_0[16:]) == struct.unpack_from(">I", MAGIC_0, 12)[0]
    found = decode_records(MAGIC_0, 7)
    (record,) = found.messages()
    assert record == (7, 0, 8, b"v", b"k", -1, TimestampType.NONE, ())
    assert encode_message_set([b"v"], magic=0, keys=[b"k"], base_offset=7) == MAGIC_0


def test_encodes_magic_1() -> None:
    (record,) = decode_records(MAGIC_1, 7).messages()
    assert record == (7, 0, 8, b"v", None, 258, TimestampType.CREATE_TIME, ())
    assert encode_message_set([b"v"], timestamps=258, base_offset=7) == MAGIC_1


def test_decodes_magic_2() -> None:
    found = decode_records(batch_2(), 7)
    assert (found.end, found.problem) == (BatchEnd.COMPLETE, None)
    first, second = found.messages()
    assert first == (7, 0, 8, b"v", b"k", 258, TimestampType.CREATE_TIME, (("h", None),))
    assert second == (8, 0, 9, b"w", None, 256, TimestampType.CREATE_TIME, ())


def test_encodes_magic_2() -> None:
    written = encode_record_batch(
        [b"v", b"w"],
        keys=[b"k", None],
        timestamps=[258, 256],
        headers={0: (("h", None),)},
        base_offset=7,
        leader_epoch=3,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
        transactional=True,
    )
    # The highest timestamp is that of the records.
    body = body_2().replace(bytes.fromhex("0000000000000103"), bytes.fromhex("0000000000000102"))
    assert written[21:] == body
    assert written[:17] == batch_2()[:17]


def test_decodes_all_formats_in_one_response() -> None:
    """A topic whose format was raised: older messages stay as they are."""
    later = encode_record_batch([b"z"], base_offset=30)
    data = (
        MAGIC_0 + encode_message_set([b"x", b"y"], base_offset=8) + later + encode_message_set([b"!"], base_offset=31)
    )
    found = decode_records(data, 0)
    assert (found.end, found.offsets) == (BatchEnd.COMPLETE, [7, 8, 9, 30, 31])
    assert found.payloads == [b"v", b"x", b"y", b"z", b"!"]
    kinds = [TimestampType.NONE, *[TimestampType.CREATE_TIME] * 4]
    assert [record.timestamp_type for record in found.messages()] == kinds
    assert [found.prefix(count) for count in range(6)] == [0, 8, 9, 10, 31, 32]
