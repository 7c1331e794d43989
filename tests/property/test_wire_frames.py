"""Requests and responses: there and back, and whatever else may come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from consumerd.wire import FrameError
from consumerd.wire.v07 import (
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    MultiProduceRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    Request,
    decode_fetch_response,
    decode_multifetch_response,
    decode_offsets_response,
    decode_request,
)

Value = TypeVar("Value")

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TOPICS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FETCHES = st.builds(FetchRequest, TOPICS, INT32, INT64, INT32)
PRODUCES = st.builds(ProduceRequest, TOPICS, INT32, st.binary(max_size=50))
REQUESTS: st.SearchStrategy[Request] = st.one_of(
    FETCHES,
    PRODUCES,
    st.builds(OffsetsRequest, TOPICS, INT32, INT64, INT32),
    st.builds(MultiFetchRequest, st.lists(FETCHES, max_size=5).map(tuple)),
    st.builds(MultiProduceRequest, st.lists(PRODUCES, max_size=5).map(tuple)),
)
FETCHED = st.builds(FetchResponse, st.sampled_from(ErrorCode), st.binary(max_size=50))


@given(REQUESTS, st.binary(max_size=10))
def test_reads_the_requests_it_wrote(request: Request, junk: bytes) -> None:
    frame = request.encode()
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert decode_request(frame[4:]) == request
    assert decode_request(memoryview(frame[4:] + junk)) == request


@given(REQUESTS, st.data())
def test_truncated_request_is_a_frame_error(request: Request, data: st.DataObject) -> None:
    body = request.encode()[4:]
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    assert declared(decode_request, cut) is None


@given(REQUESTS, st.data())
def test_flipped_bit_is_another_request_or_a_frame_error(request: Request, data: st.DataObject) -> None:
    body = bytearray(request.encode()[4:])
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    other = declared(decode_request, bytes(body))
    assert other != request


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda rest: b"\0" + rest[:1] + b"\0" + rest[1:])))
def test_any_bytes_are_a_request_or_a_frame_error(body: bytes) -> None:
    request = declared(decode_request, body)
    if request is not None and "\ufffd" not in repr(request):
        assert body.startswith(request.encode()[4:])


@given(FETCHED)
def test_reads_the_fetch_responses_it_wrote(response: FetchResponse) -> None:
    frame = response.encode()
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert decode_fetch_response(frame[4:]) == response


@given(st.lists(FETCHED, max_size=5))
def test_reads_the_multifetch_responses_it_wrote(entries: list[FetchResponse]) -> None:
    response = MultiFetchResponse(ErrorCode.NONE, tuple(entries))
    frame = response.encode()
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert decode_multifetch_response(frame[4:], len(entries)) == response
    assert frame[6:] == b"".join(entry.encode() for entry in entries)


@given(st.sampled_from(ErrorCode), st.lists(INT64, max_size=10))
def test_reads_the_offsets_responses_it_wrote(error: ErrorCode, offsets: list[int]) -> None:
    response = OffsetsResponse(error, tuple(offsets))
    frame = response.encode()
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert decode_offsets_response(frame[4:]) == response


@given(st.binary(max_size=80), st.integers(0, 5))
def test_any_bytes_are_a_response_or_a_frame_error(body: bytes, count: int) -> None:
    declared(decode_fetch_response, body)
    declared(lambda data: decode_multifetch_response(data, count), b"\0\0" + body)
    declared(lambda data: decode_multifetch_response(data, count), body)
    offsets = declared(decode_offsets_response, body)
    if offsets is not None and body[:2] == b"\0\0":
        assert offsets.encode()[4:] == body


def declared(decode: Callable[[bytes], Value], body: bytes) -> Value | None:
    """The value, or None where the declared error came; any other fails the test."""
    try:
        return decode(body)
    except FrameError:
        return None
