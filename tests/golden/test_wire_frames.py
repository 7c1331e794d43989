"""The recorded frames of the real 0.7.2 broker and clients: decoded, judged, and encoded again to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.wire import CorruptMessageError, FrameError, InvalidTopicError, OversizeMessageError
from consumerd.wire.v07 import (
    BatchEnd,
    DecodeLimits,
    ErrorCode,
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    Request,
    check_produced_set,
    decode_batch,
    decode_fetch_response,
    decode_multifetch_response,
    decode_offsets_response,
    decode_request,
    validate_topic,
)

#: Settings of the recorded broker that decide over produce requests.
MAX_MESSAGE_SIZE = 2000
PARTITIONS = {"four": 4}
#: Names of cases whose frame is well-formed but whose encoding is not unique: bytes after the request.
TRAILING = {"produce_setsize_smaller", "fetch_trailing_junk"}
#: Negative max sizes: the real broker answers a broken frame and closes.
BROKEN_ANSWERS = {"fetch_size_negative_100", "multifetch_size_negative"}


def cases(golden: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((golden / "kafka-0.7.2" / "wire" / "cases.json").read_text())["cases"]
    return found


def frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Bodies of the whole frames in `data`, and what is left."""
    bodies = []
    while len(data) >= 4 and 0 < (size := int.from_bytes(data[:4], signed=True)) <= len(data) - 4:
        bodies.append(data[4 : 4 + size])
        data = data[4 + size :]
    return bodies, data


def requests(golden: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    for case in cases(golden):
        for body in frames(bytes.fromhex(case["request_hex"]))[0]:
            if len(body) <= 100_000:  # the recorded broker's max.socket.request.bytes
                yield case, body


def test_encodes_recorded_requests_to_the_same_bytes(golden: Path) -> None:
    seen = 0
    for case, body in requests(golden):
        try:
            request = decode_request(body)
        except FrameError:
            continue
        encoded = request.encode()[4:]
        assert body.startswith(encoded)
        assert (encoded == body) is (case["name"] not in TRAILING), case["name"]
        seen += 1
    assert seen >= 95


def test_rejects_what_closed_the_connection(golden: Path) -> None:
    refused = set()
    for case, body in requests(golden):
        try:
            decode_request(body)
        except FrameError:
            assert case["connection_closed"] == "fin", case["name"]
            assert case["response_hex"] == ""
            refused.add(case["name"])
    assert len(refused) == 8


def produce_entries(request: Request) -> tuple[ProduceRequest, ...]:
    if isinstance(request, ProduceRequest):
        return (request,)
    return request.produces if isinstance(request, MultiProduceRequest) else ()


def test_checks_produced_sets_as_the_real_broker(golden: Path) -> None:
    seen = {"stored": 0, "dropped": 0, "refused": 0}
    limits = DecodeLimits(max_message_bytes=MAX_MESSAGE_SIZE)
    for case, body in requests(golden):
        if not case["name"].startswith("produce_"):
            continue
        stored = 0
        try:
            (entry,) = produce_entries(decode_request(body))
            validate_topic(entry.topic)
            verdict = "refused"
            if -1 <= entry.partition < PARTITIONS.get(entry.topic, 2):
                stored = check_produced_set(entry.messages, limits=limits).valid_bytes
                verdict = "stored"
        except (FrameError, InvalidTopicError, CorruptMessageError):
            verdict = "refused"
        except OversizeMessageError:
            verdict = "dropped"
        assert case["connection_closed"] == ("fin" if verdict == "refused" else None), case["name"]
        assert grown_by(case) == stored, case["name"]
        seen[verdict] += 1
    assert seen["dropped"] == 2
    assert seen["stored"] >= 25
    assert seen["refused"] >= 20


def grown_by(case: dict[str, Any]) -> int:
    """Bytes that the topic's segments gained; there are none of a topic whose name was refused."""
    before, after = (
        sum(sum(files.values()) for files in case.get(key, {}).values())
        for key in ("log_files_before", "log_files_after")
    )
    return after - before


def fetches(request: Request) -> tuple[FetchRequest, ...]:
    if isinstance(request, FetchRequest):
        return (request,)
    return request.fetches if isinstance(request, MultiFetchRequest) else ()


def test_encodes_recorded_responses_to_the_same_bytes(golden: Path) -> None:
    seen = 0
    for case in cases(golden):
        if case["name"] in BROKEN_ANSWERS:
            continue
        asked = [body for c, body in requests(golden) if c["name"] == case["name"]]
        answered, rest = frames(bytes.fromhex(case["response_hex"]))
        assert rest == b"", case["name"]
        if not answered:
            continue
        for ask, answer in zip(asked, answered, strict=True):
            request = decode_request(ask)
            if isinstance(request, FetchRequest):
                fetched = decode_fetch_response(answer)
                again = fetched.encode()
                assert len(fetched.data) <= request.max_size
            elif isinstance(request, MultiFetchRequest):
                several = decode_multifetch_response(answer, len(request.fetches))
                again = several.encode()
                assert several.error is ErrorCode.NONE
            else:
                assert isinstance(request, OffsetsRequest)
                offsets = decode_offsets_response(answer)
                again = offsets.encode()
                assert list(offsets.offsets) == sorted(offsets.offsets, reverse=True)
            assert again[4:] == answer, case["name"]
            seen += 1
    assert seen >= 37


def test_broken_responses_are_frame_errors(golden: Path) -> None:
    for case in cases(golden):
        if case["name"] == "multifetch_size_negative":
            # The length announces more than comes; what came already contradicts itself.
            with pytest.raises(FrameError):
                decode_multifetch_response(bytes.fromhex(case["response_hex"])[4:], 2)
            return
    pytest.fail("the case is gone")


def test_decodes_recorded_error_codes(golden: Path) -> None:
    expected = {
        "fetch_beyond_end": ErrorCode.OFFSET_OUT_OF_RANGE,
        "fetch_offset_minus2": ErrorCode.OFFSET_OUT_OF_RANGE,
        "fetch_partition_too_big": ErrorCode.WRONG_PARTITION,
        "fetch_partition_neg": ErrorCode.WRONG_PARTITION,
        "fetch_unknown_topic": ErrorCode.NONE,
        "fetch_at_end": ErrorCode.NONE,
        "fetch_size_smaller_than_message": ErrorCode.NONE,
        "fetch_mid_message": ErrorCode.NONE,
    }
    found = {
        case["name"]: decode_fetch_response(bytes.fromhex(case["response_hex"])[4:]).error
        for case in cases(golden)
        if case["name"] in expected
    }
    assert found == expected
    (several,) = (case for case in cases(golden) if case["name"] == "multifetch_all_errors")
    response = decode_multifetch_response(bytes.fromhex(several["response_hex"])[4:], 4)
    assert [entry.error for entry in response.entries] == [-1, 3, 1, 0]


def captured(golden: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every frame between the real clients and a broker, with what the recorder understood of it."""
    for event in json.loads((golden / "kafka-0.7.2" / "wire" / "client_captures.json").read_text()):
        if "frame" in event:
            yield event, bytes.fromhex(event["frame"])


def test_decodes_requests_of_the_real_clients(golden: Path) -> None:
    kinds: dict[str, int] = {}
    for event, frame in captured(golden):
        if event["dir"] != "c2s":
            continue
        request = decode_request(frame[4:])
        assert request.encode() == frame
        kinds[event["decoded"]["type"]] = kinds.get(event["decoded"]["type"], 0) + 1
        for entry in produce_entries(request):
            assert check_produced_set(entry.messages).valid_bytes == len(entry.messages)
        if isinstance(request, ProduceRequest):
            shallow = event["decoded"]["messages"]
            assert (request.topic, request.partition) == (event["decoded"]["topic"], event["decoded"]["partition"])
            assert len(decode_batch(request.messages, 0)) >= len(shallow)
            if all(message["attr"] == 0 for message in shallow):
                assert [p.hex() for p in decode_batch(request.messages, 0)] == [m["payload_hex"] for m in shallow]
    assert kinds.keys() == {"PRODUCE", "MULTIPRODUCE", "MULTIFETCH", "OFFSETS"}


def test_decodes_responses_to_the_real_clients(golden: Path) -> None:
    waiting: dict[int, list[Request]] = {}
    answers = 0
    for event, frame in captured(golden):
        queue = waiting.setdefault(event["conn"], [])
        if event["dir"] == "c2s":
            request = decode_request(frame[4:])
            if not produce_entries(request):
                queue.append(request)
            continue
        answers += 1
        request = queue.pop(0)
        if isinstance(request, MultiFetchRequest):
            response = decode_multifetch_response(frame[4:], len(request.fetches))
            assert response.encode() == frame
            for fetch, entry in zip(request.fetches, response.entries, strict=True):
                batch = decode_batch(entry.data, fetch.offset)
                # Some of these consumers were made to start inside a message.
                misaligned = fetch.offset == 7
                assert batch.end is (BatchEnd.CORRUPT if misaligned else BatchEnd.COMPLETE)
                assert batch.next_offset == fetch.offset + (0 if misaligned else len(entry.data))
                assert (len(batch) > 0) is (len(entry.data) > 0 and not misaligned)
        else:
            assert isinstance(request, OffsetsRequest)
            assert decode_offsets_response(frame[4:]).encode() == frame
    assert answers >= 45
