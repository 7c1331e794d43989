"""Whole frames: which header stands where, what is refused, and the answer to a version that a broker does not know."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from consumerd.wire import EncodeError, FrameError
from consumerd.wire.v08 import (
    APIS,
    RequestHeader,
    RequestMessage,
    ResponseHeader,
    ResponseMessage,
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
    encode_request_message,
    encode_response,
    read_api,
    read_correlation_id,
    request_header_version,
    response_header_version,
)

HEARTBEAT = APIS[12]
VERSIONS = APIS[18]
SHUTDOWN = APIS[7]


def test_encodes_request_headers_of_every_version() -> None:
    plain = encode_request(APIS[16], 0, {}, correlation_id=7, client_id="me")
    assert plain.hex(" ") == "00 00 00 0c 00 10 00 00 00 00 00 07 00 02 6d 65"
    flexible = encode_request(APIS[16], 3, {}, correlation_id=7, client_id="me")
    assert flexible.hex(" ") == "00 00 00 0e 00 10 00 03 00 00 00 07 00 02 6d 65 00 00"
    nobody = encode_request(APIS[16], 0, {}, correlation_id=-1, client_id=None)
    assert nobody.hex(" ") == "00 00 00 0a 00 10 00 00 ff ff ff ff ff ff"


def test_first_controlled_shutdown_has_no_client_id() -> None:
    assert (request_header_version(SHUTDOWN, 0), request_header_version(SHUTDOWN, 1)) == (0, 1)
    frame = encode_request(SHUTDOWN, 0, {"broker_id": 3}, correlation_id=1, client_id="left out")
    assert frame.hex() == "0000000c" + "00070000" + "00000001" + "00000003"
    assert decode_request(SHUTDOWN, frame[4:]).header == RequestHeader(7, 0, 1, None)


def test_api_versions_responses_have_no_tagged_fields_in_the_header() -> None:
    assert [response_header_version(VERSIONS, version) for version in range(5)] == [0, 0, 0, 0, 0]
    assert [request_header_version(VERSIONS, version) for version in range(5)] == [1, 1, 1, 2, 2]
    assert [response_header_version(HEARTBEAT, version) for version in range(5)] == [0, 0, 0, 0, 1]


def test_keeps_tagged_fields_of_headers() -> None:
    request: RequestMessage[Any] = RequestMessage(RequestHeader(16, 3, 1, None, {5: b"x"}), {})
    frame = encode_request_message(APIS[16], request)
    assert decode_request(APIS[16], frame[4:]) == request
    response = ResponseMessage(ResponseHeader(1, {0: b"", 9: b"yz"}), {"throttle_time_ms": 0, "error_code": 0})
    frame = encode_response(HEARTBEAT, 4, response)
    assert decode_response(HEARTBEAT, 4, frame[4:]) == response
    assert read_correlation_id(frame[4:]) == 1


@pytest.mark.parametrize("data", [b"", b"\x00\x0c\x00\x00\x00\x00\x00", b"\x00\x0c\x00\x00" + bytes(4) + b"\x00\x05ab"])
def test_rejects_requests_truncated_within_the_header(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_request(HEARTBEAT, data)


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00", bytes(4), bytes(4) + b"\x01\x05\x09"])
def test_rejects_responses_truncated_within_the_header(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_response(HEARTBEAT, 4, data)


def test_rejects_a_request_of_an_unknown_api() -> None:
    frame = encode_request(
        HEARTBEAT, 0, {"group_id": "", "generation_id": 0, "member_id": ""}, correlation_id=1, client_id=None
    )
    assert read_api(frame[4:]) == (12, 0)
    with pytest.raises(FrameError, match="a request has API key 12, not 18"):
        decode_request(VERSIONS, frame[4:])


def test_rejects_headers_that_do_not_fit() -> None:
    with pytest.raises(EncodeError, match="numbers of a request header do not fit"):
        encode_request(VERSIONS, 0, {}, correlation_id=1 << 31, client_id=None)
    with pytest.raises(EncodeError, match="client_id: a string of 40000 is too long"):
        encode_request(VERSIONS, 0, {}, correlation_id=1, client_id="x" * 40000)
    with pytest.raises(EncodeError, match="is not a correlation id"):
        encode_response(HEARTBEAT, 0, ResponseMessage(ResponseHeader(1 << 31), {"error_code": 0}))


def test_reads_version_0_of_an_unsupported_api_versions_response() -> None:
    """It answers in version 0, whatever was asked for; newer brokers say what they know of this one API."""
    data = bytes.fromhex("00000001 0023 00000001 0012 0000 0003")
    expected = {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 3}]}
    for version in (0, 1, 3, 4, 99):
        assert decode_response(VERSIONS, version, data).body == expected
    other = bytes.fromhex("00000001 0000 00000000 00000000")
    assert decode_response(VERSIONS, 1, other).body["throttle_time_ms"] == 0
    with pytest.raises(UnsupportedVersionError, match="version 99 of ApiVersions"):
        decode_response(VERSIONS, 99, other)


def test_wire_does_not_import_the_schemas() -> None:
    """Executors of a data pipeline import `consumerd.wire` for 0.7 alone."""
    script = "import sys, consumerd.wire, consumerd.wire.v07; print([n for n in sys.modules if '.v08' in n])"
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == "[]\n"
