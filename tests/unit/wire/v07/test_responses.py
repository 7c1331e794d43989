from __future__ import annotations

import pytest

from consumerd.wire import EncodeError, FrameError
from consumerd.wire.v07 import (
    ErrorCode,
    FetchResponse,
    MultiFetchResponse,
    OffsetsResponse,
    decode_fetch_response,
    decode_multifetch_response,
    decode_offsets_response,
    fetch_response_header,
    multifetch_response_header,
)

# Written by hand from spec 000 and 003: every length counts the error code after it.
FETCHES = [
    (FetchResponse(ErrorCode.NONE, b""), "00000002 0000"),
    (FetchResponse(ErrorCode.NONE, b"abc"), "00000005 0000 616263"),
    (FetchResponse(ErrorCode.UNKNOWN, b""), "00000002 ffff"),
    (FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b""), "00000002 0001"),
    (FetchResponse(ErrorCode.INVALID_MESSAGE, b""), "00000002 0002"),
    (FetchResponse(ErrorCode.WRONG_PARTITION, b""), "00000002 0003"),
    (FetchResponse(ErrorCode.INVALID_FETCH_SIZE, b""), "00000002 0004"),
]
MULTIFETCH = MultiFetchResponse(ErrorCode.NONE, (FETCHES[1][0], FETCHES[3][0], FETCHES[0][0]))
MULTIFETCH_FRAME = "00000017 0000 00000005 0000 616263 00000002 0001 00000002 0000"


@pytest.mark.parametrize(("response", "frame"), FETCHES)
def test_decodes_fetch(response: FetchResponse, frame: str) -> None:
    data = bytes.fromhex(frame)
    assert response.encode() == data
    assert decode_fetch_response(data[4:]) == response
    assert decode_fetch_response(memoryview(data)[4:]) == response
    assert fetch_response_header(response.error, len(response.data)) == data[:6]


@pytest.mark.parametrize("number", [5, 77, -2, 32767])
def test_maps_a_missing_error_code_to_unknown(number: int) -> None:
    assert decode_fetch_response(number.to_bytes(2, signed=True)).error is ErrorCode.UNKNOWN


@pytest.mark.parametrize("body", [b"", b"\0"])
def test_rejects_a_response_without_an_error_code(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_fetch_response(body)
    with pytest.raises(FrameError):
        decode_multifetch_response(body, 0)


def test_decodes_multifetch() -> None:
    data = bytes.fromhex(MULTIFETCH_FRAME)
    assert MULTIFETCH.encode() == data
    assert decode_multifetch_response(data[4:], 3) == MULTIFETCH
    assert decode_multifetch_response(memoryview(data)[4:], 3) == MULTIFETCH
    assert multifetch_response_header([3, 0, 0]) == data[:6]


def test_decodes_a_multifetch_without_entries() -> None:
    empty = MultiFetchResponse(ErrorCode.NONE, ())
    assert empty.encode() == bytes.fromhex("00000002 0000")
    assert decode_multifetch_response(b"\0\0", 0) == empty


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_decodes_a_multifetch_of_empty_entries(count: int) -> None:
    nothing = MultiFetchResponse(ErrorCode.NONE, (FetchResponse(ErrorCode.NONE, b""),) * count)
    body = nothing.encode()[4:]
    assert decode_multifetch_response(body, count) == nothing
    assert decode_multifetch_response(memoryview(body), count) == nothing
    assert decode_multifetch_response(body[:-1] + b"\1", count).entries[-1].error == ErrorCode.OFFSET_OUT_OF_RANGE
    for other in (count - 1, count + 1):
        with pytest.raises(FrameError):
            decode_multifetch_response(body, other)


def test_empty_entries_of_a_multifetch_share_one_object() -> None:
    """As most polls of idle partitions are answered, a thousand of them at a time."""
    nothing = MultiFetchResponse(ErrorCode.NONE, (FetchResponse(ErrorCode.NONE, b""),) * 3)
    first, *others = decode_multifetch_response(nothing.encode()[4:], 3).entries
    assert all(other is first for other in others)


def test_overall_error_has_no_entries() -> None:
    body = bytes.fromhex("ffff 00000002 0000")
    assert decode_multifetch_response(body, 3) == MultiFetchResponse(ErrorCode.UNKNOWN, ())


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_rejects_another_number_of_entries_than_asked_for(count: int) -> None:
    with pytest.raises(FrameError):
        decode_multifetch_response(bytes.fromhex(MULTIFETCH_FRAME)[4:], count)


def test_detects_truncation_of_a_multifetch_response_at_every_byte() -> None:
    body = bytes.fromhex(MULTIFETCH_FRAME)[4:]
    for end in range(len(body)):
        with pytest.raises(FrameError):
            decode_multifetch_response(body[:end], 3)


@pytest.mark.parametrize("size", [-1, 0, 1, 0x7FFFFFFF])
def test_rejects_an_entry_with_an_impossible_size(size: int) -> None:
    body = b"\0\0" + size.to_bytes(4, signed=True) + b"\0\0abc"
    with pytest.raises(FrameError, match=f"claims {size} bytes"):
        decode_multifetch_response(body, 1)


def test_negative_size_makes_the_broken_frame_of_the_real_broker() -> None:
    assert fetch_response_header(0, -100) == bytes.fromhex("ffffff9e 0000")
    assert fetch_response_header(0, -1) == bytes.fromhex("00000001 0000")


@pytest.mark.parametrize(
    ("response", "frame"),
    [
        (OffsetsResponse(ErrorCode.NONE, ()), "00000006 0000 00000000"),
        (OffsetsResponse(ErrorCode.NONE, (1 << 40, 0)), "00000016 0000 00000002 0000010000000000 0000000000000000"),
        (OffsetsResponse(ErrorCode.UNKNOWN, (-1,)), "0000000e ffff 00000001 ffffffffffffffff"),
    ],
)
def test_reports_offsets_that_are_wrong(response: OffsetsResponse, frame: str) -> None:
    data = bytes.fromhex(frame)
    assert response.encode() == data
    assert decode_offsets_response(data[4:]) == response
    assert decode_offsets_response(memoryview(data)[4:]) == response


@pytest.mark.parametrize(
    "body", ["", "0000", "0000 000000", "0000 ffffffff", "0000 00000001", "0000 00000000 00", "0000 7fffffff"]
)
def test_rejects_an_offsets_count_that_contradicts_the_size(body: str) -> None:
    with pytest.raises(FrameError):
        decode_offsets_response(bytes.fromhex(body))


def test_rejects_values_that_do_not_fit() -> None:
    with pytest.raises(EncodeError):
        fetch_response_header(0, 1 << 31)
    with pytest.raises(EncodeError):
        multifetch_response_header([1 << 30, 1 << 30])
    with pytest.raises(EncodeError):
        OffsetsResponse(ErrorCode.NONE, (1 << 63,)).encode()
