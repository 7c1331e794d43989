"""Every request and response recorded from brokers 0.8.2.2 and 0.10.1.1 is read, and encoded to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.wire import FrameError
from consumerd.wire.v08 import (
    APIS,
    UnsupportedVersionError,
    answered_version,
    decode_body,
    decode_request,
    decode_response,
    encode_request_message,
    encode_response,
    read_api,
)

#: Requests that were sent to see what a broker does with them: not in the version that they claim, or cut off.
MADE_UP = {"unsupported-Metadata-v3", "unsupported-ListOffsets-v0"}
#: The guide's last version: 0.10.1.1 answers in it when a request has a version that it does not know.
LAST_FETCH = 3


@pytest.fixture(scope="module")
def captures(golden: Path) -> list[dict[str, Any]]:
    folder = golden / "kafka-0.8-0.10"
    return [capture for path in sorted(folder.glob("*.json")) for capture in json.loads(path.read_text())]


def known(captures: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], bytes, bytes | None]]:
    """Captures of versions that exist, with the bytes of request and response."""
    for capture in captures:
        if capture["api_version"] != 99 and capture["api_key"] != 99:
            response = capture["response_hex"]
            yield capture, bytes.fromhex(capture["request_hex"]), bytes.fromhex(response) if response else None


def test_reads_the_requests_it_wrote(captures: list[dict[str, Any]]) -> None:
    versions = set()
    for capture, frame, _ in known(captures):
        if capture["label"] in MADE_UP:
            continue
        api = APIS[capture["api_key"]]
        message = decode_request(api, frame[4:])
        assert message.header[:3] == (capture["api_key"], capture["api_version"], capture["correlation_id"])
        assert encode_request_message(api, message) == frame, capture["label"]
        versions.add((capture["api_key"], capture["api_version"]))
    assert {key for key, _ in versions} == set(range(21))
    assert len(versions) == 37


def test_reads_the_responses_it_wrote(captures: list[dict[str, Any]]) -> None:
    count = 0
    for capture, _, frame in known(captures):
        if frame is None:
            continue
        api, version = APIS[capture["api_key"]], capture["api_version"]
        message = decode_response(api, version, frame[4:])
        assert message.header.correlation_id == capture["correlation_id"]
        assert encode_response(api, version, message) == frame, capture["label"]
        assert decode_response(api, version, memoryview(frame)[4:]) == message
        assert errors(message.body) >= set(capture.get("errors") or ()), capture["label"]
        count += 1
    assert count > 800


def errors(body: Any) -> set[int]:
    """All error codes of a message."""
    if isinstance(body, dict):
        own = {value for name, value in body.items() if name.endswith("error_code")}
        return own.union(*(errors(value) for value in body.values()))
    return set().union(*(errors(value) for value in body)) if isinstance(body, list) else set()


def test_controlled_shutdown_of_version_0_has_no_client_id(captures: list[dict[str, Any]]) -> None:
    frames = {capture["api_version"]: frame for capture, frame, _ in known(captures) if capture["api_key"] == 7}
    assert len(frames[0]) == 4 + 8 + 4
    assert decode_request(APIS[7], frames[0][4:]).header.client_id is None
    assert decode_request(APIS[7], frames[1][4:]).header.client_id == "golden"


def test_rejects_versions_that_no_broker_has(captures: list[dict[str, Any]]) -> None:
    frames = [bytes.fromhex(capture["request_hex"]) for capture in captures if capture["api_version"] == 99]
    assert len(frames) > 4
    for frame in frames:
        key, version = read_api(frame[4:])
        with pytest.raises(UnsupportedVersionError, match="version 99 of"):
            decode_request(APIS[key], frame[4:])
        assert version == 99


def test_invented_bytes_are_a_frame_error(captures: list[dict[str, Any]]) -> None:
    frames = [(capture, frame) for capture, frame, _ in known(captures) if capture["label"] in MADE_UP]
    assert len(frames) == 2
    for capture, frame in frames:
        with pytest.raises(FrameError, match=f"version {capture['api_version']}"):
            decode_request(APIS[capture["api_key"]], frame[4:])


def test_reads_responses_to_unsupported_versions(captures: list[dict[str, Any]]) -> None:
    answers = {
        capture["api_key"]: bytes.fromhex(capture["response_hex"])
        for capture in captures
        if capture["api_version"] == 99 and capture["response_hex"]
    }
    assert set(answers) == {1, 18}
    versions = answers[18][4:]
    assert answered_version(APIS[18], 3, versions) == 0
    assert decode_response(APIS[18], 3, versions).body == {"error_code": 35, "api_keys": []}
    assert encode_response(APIS[18], 0, decode_response(APIS[18], 3, versions)) == answers[18]
    fetched = decode_body(APIS[1], "response", LAST_FETCH, answers[1][8:])
    assert errors(fetched) == {3}
