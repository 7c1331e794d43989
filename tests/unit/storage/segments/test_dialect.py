from __future__ import annotations

import pytest

from consumerd.storage.segments.dialect import SegmentDialect, recognise
from consumerd.wire.v07 import Codec
from consumerd.wire.v07 import encode_message_set as encode_old_set
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch

V07 = {
    "magic 0": bytes.fromhex("0000000a 00 3610a686") + b"hello",
    "magic 1": encode_old_set([b"a" * 100]),
    "gzip": encode_old_set([b"a", b"b"], codec=Codec.GZIP),
}
V08 = {
    "magic 0": encode_message_set([b"a"], magic=0),
    "magic 1": encode_message_set([b"a"], magic=1, codec=RecordCodec.GZIP),
    "magic 2": encode_record_batch([b"a"]),
    # The first bytes of such an offset are a length that a message of 0.7 may have.
    "offset beyond 32 bits": encode_record_batch([b"a"], base_offset=(5 << 32) + 7),
    "offset beyond 32 bits, magic 0": encode_message_set([b"abc"], magic=0, base_offset=(200 << 32) + (1 << 24)),
}


@pytest.mark.parametrize("name", V07)
def test_segments_of_07(name: str) -> None:
    assert recognise(V07[name]) is SegmentDialect.V07
    assert recognise(V07[name][:12]) is SegmentDialect.V07
    damaged = bytearray(V07[name] + V07[name])
    damaged[len(V07[name]) - 1] ^= 1
    assert recognise(bytes(damaged)) is SegmentDialect.V07


@pytest.mark.parametrize("name", V08)
def test_segments_of_08(name: str) -> None:
    assert recognise(V08[name]) is SegmentDialect.V08
    damaged = bytearray(V08[name] + V08[name])
    damaged[len(V08[name]) - 1] ^= 1
    assert recognise(bytes(damaged)) is SegmentDialect.V08 or name.startswith("offset beyond")


def test_large_first_batch_is_recognised_by_its_header() -> None:
    assert recognise(encode_record_batch([b"x" * 5000])[:100]) is SegmentDialect.V08


@pytest.mark.parametrize("data", [b"", b"\0", bytes(100), b"\xff" * 100, b"hello, world, this is a text file\n" * 5])
def test_other_bytes_are_unknown(data: bytes) -> None:
    assert recognise(data) is None
