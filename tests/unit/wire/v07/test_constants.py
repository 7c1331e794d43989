"""Numbers that other programs know (spec 000; golden notes, 1 and 8), and what the limits permit."""

from __future__ import annotations

import gzip

from consumerd.wire.v07 import (
    DEFAULT_LIMITS,
    EARLIEST,
    LATEST,
    PRODUCE_LIMITS,
    BatchEnd,
    Codec,
    ErrorCode,
    RequestType,
    decode_batch,
    encode_message,
)


def test_numbers_are_those_of_the_protocol() -> None:
    assert [(kind.name, kind.value) for kind in RequestType] == [
        ("PRODUCE", 0),
        ("FETCH", 1),
        ("MULTIFETCH", 2),
        ("MULTIPRODUCE", 3),
        ("OFFSETS", 4),
    ]
    assert [code.value for code in ErrorCode] == [-1, 0, 1, 2, 3, 4]
    assert (LATEST, EARLIEST) == (-1, -2)


def test_largest_message_by_default_is_what_a_broker_s_request_may_hold() -> None:
    """max.socket.request.bytes is 100 MiB by default."""
    for payload, end in ((100 << 20, BatchEnd.PARTIAL), ((100 << 20) + 1, BatchEnd.CORRUPT)):
        assert decode_batch((payload + 6).to_bytes(4) + b"\x01", 0).end is end


def test_default_depth_is_sixteen_wrappers() -> None:
    data = encode_message(b"")
    for depth in range(1, 18):
        data = encode_message(gzip.compress(data), codec=Codec.GZIP)
        assert decode_batch(data, 0).end is (BatchEnd.COMPLETE if depth <= 16 else BatchEnd.CORRUPT)


def test_a_broker_limits_what_consumers_do_not() -> None:
    assert (DEFAULT_LIMITS.max_leaves_per_byte, PRODUCE_LIMITS.max_leaves_per_byte) == (None, 4)
    assert (DEFAULT_LIMITS.max_depth, PRODUCE_LIMITS.max_depth) == (16, 8)
    for limits in (DEFAULT_LIMITS, PRODUCE_LIMITS):
        assert limits.max_decompressed_bytes == 64 << 20
        assert limits.max_batch_bytes == 16 << 20
        assert limits.max_pieces == 1 << 14
        assert limits.free_leaves == 1 << 17
