"""What holds for each reader of the bytes of 0.8 and later; for mangled bytes and for coverage-guided fuzzing."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Final

from consumerd.wire import DecompressionError, FrameError
from consumerd.wire.lz4 import lz4_decompress
from consumerd.wire.v08 import (
    APIS,
    MessageLimits,
    UnsupportedVersionError,
    answered_version,
    decode_request,
    decode_response,
    encode_request_message,
    encode_response,
)
from consumerd.wire.v08.records import BatchEnd, DecodeLimits, decode_records
from consumerd.wire.zstd import zstd_decompress

LIMITS: Final = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)
MESSAGE_LIMITS: Final = MessageLimits(max_elements=10_000)
START: Final = 1000


def exercise_records(data: bytes) -> BatchEnd:
    """Only a verdict, and the laws of record sets."""
    found = decode_records(data, START, limits=LIMITS, aborted=[(-1, START)])
    offsets = found.offsets
    assert len(offsets) == len(found.payloads) == len(found.keys) == len(found.timestamps)
    assert all(before < after for before, after in pairwise(offsets))
    ends = [START, *(record.next_offset for record in found.messages()), found.next_offset]
    assert ends == sorted(ends)
    assert [found.prefix(count) for count in range(len(found))] == ends[: len(found)]
    assert all(number < len(found) for number in found.headers)
    assert (found.end is BatchEnd.CORRUPT) == (found.problem is not None)
    assert found.resume_offset is None or found.resume_offset > found.next_offset
    assert sum(map(len, filter(None, found.payloads))) <= len(data) + 2 * LIMITS.max_decompressed_bytes
    for decompress in (lz4_decompress, zstd_decompress):
        with suppress(DecompressionError):
            assert len(decompress(data, limit=1 << 16)) <= 1 << 16
    return found.end


def exercise_request(key: int, data: bytes) -> bool:
    """Read `data` as a request of the API `key`; whether it is one. What was read is read again from its encoding."""
    api = APIS[key]
    try:
        request = decode_request(api, data, limits=MESSAGE_LIMITS)
    except (FrameError, UnsupportedVersionError):
        return False
    assert decode_request(api, encode_request_message(api, request)[4:], limits=MESSAGE_LIMITS) == request
    return True


def exercise_response(key: int, version: int, data: bytes) -> bool:
    """Read `data` as the response to a request of `version`; as `exercise_request`."""
    api = APIS[key]
    version = answered_version(api, version, data)
    try:
        response = decode_response(api, version, data, limits=MESSAGE_LIMITS)
    except FrameError:
        return False
    again = encode_response(api, version, response)[4:]
    assert decode_response(api, version, again, limits=MESSAGE_LIMITS) == response
    return True
