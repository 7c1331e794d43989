from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumerd.wire import EncodeError
from consumerd.wire.v08.records import RecordCodec, decode_records, encode_message_set, encode_record_batch
from consumerd.wire.v08.records.message_set import read_message

pytestmark = pytest.mark.usefixtures("either_codec")

BOTH = pytest.mark.parametrize("encode", [encode_message_set, encode_record_batch])


@BOTH
@pytest.mark.parametrize("codec", [RecordCodec.NONE, RecordCodec.GZIP])
def test_writes_no_bytes_without_payloads(encode: Callable[..., bytes], codec: RecordCodec) -> None:
    assert encode([], codec=codec) == b""


@BOTH
@pytest.mark.parametrize("columns", [{"keys": [b"k"]}, {"timestamps": [1]}, {"timestamps": [1, 2, 3]}])
def test_rejects_columns_of_different_lengths(encode: Callable[..., bytes], columns: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match="the numbers of keys, timestamps and payloads differ"):
        encode([b"a", b"b"], **columns)


@BOTH
@pytest.mark.parametrize(
    "options", [{"timestamps": 1 << 63}, {"timestamps": [0, -(1 << 64)]}, {"base_offset": 1 << 63}]
)
def test_rejects_values_that_do_not_fit(encode: Callable[..., bytes], options: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match=r"cannot be written|further apart"):
        encode([b"a", b"b"], **options)


def test_encodes_timestamps_far_apart() -> None:
    with pytest.raises(EncodeError, match="further apart than one batch can hold"):
        encode_record_batch([b"a", b"b"], timestamps=[-(1 << 62), 1 << 62])
    times = [0, (1 << 63) - 1, -(1 << 62)]
    assert decode_records(encode_message_set([b""] * 3, timestamps=times), 0).timestamps == times
    times = [0, (1 << 62), -(1 << 62) + 1]
    assert decode_records(encode_record_batch([b""] * 3, timestamps=times), 0).timestamps == times


def test_rejects_a_header_name_that_is_not_utf_8() -> None:
    with pytest.raises(EncodeError, match=r"the header name 'k\\udcff' cannot be sent: not UTF-8"):
        encode_record_batch([b"a"], headers={0: (("k\udcff", b"v"),)})


@pytest.mark.parametrize("magic", [-1, 2])
def test_rejects_sets_of_other_magics(magic: int) -> None:
    with pytest.raises(EncodeError, match=f"magic {magic} has no message sets; encode a record batch"):
        encode_message_set([b"a"], magic=magic)


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_zstd_in_message_sets(magic: int) -> None:
    with pytest.raises(EncodeError, match=f"magic {magic} has no zstd"):
        encode_message_set([b"a"], magic=magic, codec=RecordCodec.ZSTD)


@pytest.mark.parametrize(("magic", "checksum"), [(0, 0x1A), (1, 0x82)])
def test_frames_lz4_as_readers_of_each_magic_expect_it(magic: int, checksum: int) -> None:
    wrapper = read_message(encode_message_set([b"a", b"b"], magic=magic, codec=RecordCodec.LZ4, timestamps=[5, 4]), 0)
    assert wrapper.value is not None
    assert wrapper.value[6] == checksum
    assert (wrapper.offset, wrapper.attributes, wrapper.key) == (1, 3, None)
    assert wrapper.timestamp == (5 if magic else -1)


def test_wrapper_has_the_offset_of_its_last_message() -> None:
    for magic, first in ((0, 40), (1, 0)):
        wrapper = read_message(encode_message_set([b"a", b"b"], magic=magic, codec=RecordCodec.GZIP, base_offset=40), 0)
        assert wrapper.offset == 41
        inside = encode_message_set([b"a", b"b"], magic=magic, base_offset=first)
        assert decode_records(inside, 0).offsets == [first, first + 1]


def test_writes_the_producer_id_epoch_and_sequence() -> None:
    plain, ours = (encode_record_batch([b"a"], producer_id=number) for number in (-1, 77))
    assert (plain[43:51], ours[43:51]) == (b"\xff" * 8, (77).to_bytes(8))


def test_finds_the_timestamp_of_the_first_record_from_an_offset_on() -> None:
    batches = [
        encode_record_batch([b"a", b"b"], timestamps=[10, 20], base_offset=5),
        encode_message_set([b"c"], timestamps=30, base_offset=9),
        encode_message_set([b"d", b"e"], magic=0, base_offset=11),
    ]
    found = decode_records(b"".join(batches), 5)
    stamps = {5: 10, 6: 20, 7: 30, 8: 30, 9: 30, 10: None, 11: None, 12: None, 13: None}
    assert {offset: found.timestamp_from(offset) for offset in stamps} == stamps


def test_finds_the_timestamp_of_each_record() -> None:
    large = b"x" * (1 << 17)
    batches = [
        encode_record_batch([b"a", large], keys=[b"k", None], timestamps=[10, 20], base_offset=5),
        encode_message_set([b"c"], timestamps=30, base_offset=9),
        encode_message_set([b"d", b"e"], magic=0, base_offset=11),
        encode_record_batch([b"f"], timestamps=-2, base_offset=20),
        encode_record_batch([b"g"], log_append_time=1 << 62, base_offset=21),
    ]
    found = decode_records(b"".join(batches), 5)
    assert [found.timestamp_at(number) for number in range(7)] == [10, 20, 30, None, None, None, 1 << 62]
    assert found.runs  # of which the same is read
    assert [found.timestamp_at(number) for number in range(7)] == [10, 20, 30, None, None, None, 1 << 62]
