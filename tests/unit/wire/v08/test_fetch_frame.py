"""Frames of FETCH requests of the usual shape: the same bytes as from the codec of all APIs, or none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base import native
from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.codec import codec_of
from consumerd.wire.v08.fetch_frame import (
    FIRST_VERSION,
    FetchLimits,
    fetch_fields,
    fetch_frame,
    fetch_parts,
    session_frame,
)
from consumerd.wire.v08.fetch_session import PartitionFetch, SessionRequest
from consumerd.wire.v08.headers import RequestHeader, ResponseHeader, read_response_header
from consumerd.wire.v08.messages import (
    RequestMessage,
    ResponseMessage,
    decode_response,
    decode_response_body,
    encode_request,
    encode_request_message,
    encode_response,
)

LAST_VERSION = FETCH.versions[1]
INT32, INT64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (32, 64))
PARTITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "partition": INT32,
            "current_leader_epoch": INT32,
            "fetch_offset": INT64,
            "partition_max_bytes": INT32,
            "last_fetched_epoch": INT32,
        }
    ),
    max_size=3,
)
TOPICS = st.lists(
    st.fixed_dictionaries(
        {"topic": st.text(max_size=30), "topic_id": st.binary(min_size=16, max_size=16), "partitions": PARTITIONS}
    ),
    max_size=3,
)
BODIES = st.fixed_dictionaries(
    {
        "max_wait_ms": INT32,
        "min_bytes": INT32,
        "max_bytes": INT32,
        "isolation_level": st.integers(0, 1),
        "session_id": INT32,
        "session_epoch": INT32,
        "topics": TOPICS,
    },
    optional={"rack_id": st.text(max_size=20)},
)
VERSIONS = st.integers(FIRST_VERSION, LAST_VERSION)
ENTRY = {
    "partition": 3,
    "current_leader_epoch": 1,
    "fetch_offset": 8,
    "partition_max_bytes": 100,
    "last_fetched_epoch": 0,
}


def body(
    *entries: dict[str, Any], topic: str = "t", topic_id: bytes | None = b"i" * 16, **fields: Any
) -> dict[str, Any]:
    usual = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 100, "isolation_level": 0, "session_id": 7}
    topics = [{"topic": topic, "topic_id": topic_id, "partitions": list(entries)}]
    return usual | {"session_epoch": 2, "topics": topics} | fields


def written(version: int, body: dict[str, Any], correlation_id: int, client_id: str | None) -> bytes:
    """By the codec."""
    header = RequestHeader(FETCH.key, version, correlation_id, client_id)
    return encode_request_message(FETCH, RequestMessage(header, body))


@given(VERSIONS, BODIES, INT32, st.text(max_size=20))
def test_frame_is_that_of_the_codec(version: int, body: dict[str, Any], correlation_id: int, client_id: str) -> None:
    frame = fetch_frame(version, body, correlation_id, client_id)
    assert frame == written(version, body, correlation_id, client_id)
    assert encode_request(FETCH, version, body, correlation_id=correlation_id, client_id=client_id) == frame


@pytest.mark.parametrize(
    "other",
    [
        body(ENTRY, rack_id="r" * 200),
        body(ENTRY, forgotten_topics_data=[]),
        body(ENTRY | {"log_start_offset": 5}),
        body(*[ENTRY] * 200),
        body(ENTRY, topic="t" * 200, topic_id=b""),
        body(ENTRY | {"partition": 1 << 31}),
        body(ENTRY, max_bytes=None),
        body(ENTRY, topic_id=None),
    ],
    ids=["long rack", "forgets", "a follower", "many", "long name", "does not fit", "not a number", "no id"],
)
def test_any_other_body_is_left_to_the_codec(other: dict[str, Any]) -> None:
    for version in (FIRST_VERSION, LAST_VERSION):
        frame = fetch_frame(version, other, 5, "me")
        try:
            expected = written(version, other, 5, "me")
        except EncodeError:
            assert frame is None
            with pytest.raises(EncodeError):
                encode_request(FETCH, version, other, correlation_id=5, client_id="me")
        else:
            assert frame in (None, expected)
            assert encode_request(FETCH, version, other, correlation_id=5, client_id="me") == expected


@pytest.mark.parametrize(("version", "client_id"), [(FIRST_VERSION - 1, "me"), (FIRST_VERSION, None)])
def test_older_versions_and_no_client_id_are_left_to_the_codec(version: int, client_id: str | None) -> None:
    assert fetch_frame(version, body(ENTRY), 5, client_id) is None


ENTRIES = st.lists(st.tuples(INT32, INT64, INT32, INT32, INT32), max_size=3)


@given(VERSIONS, ENTRIES, st.tuples(INT32, INT32, INT32, st.integers(0, 1)), INT32, st.text(max_size=20))
def test_frame_of_a_session_is_that_of_its_fields(
    version: int, entries: list[tuple[int, ...]], limits: tuple[int, int, int, int], number: int, rack: str
) -> None:
    named = [
        PartitionFetch("t", partition, offset, size, epoch, b"i" * 16, last)
        for partition, offset, size, epoch, last in entries
    ]
    request = SessionRequest(number, 2, named, (), {})
    names = "partition", "fetch_offset", "partition_max_bytes", "current_leader_epoch", "last_fetched_epoch"
    fields = body(*(dict(zip(names, entry, strict=True)) for entry in entries), session_id=number, session_epoch=2)
    fields |= dict(zip(FetchLimits._fields, limits, strict=True)) | {"rack_id": rack}
    if not entries:
        fields["topics"] = []
    frame = session_frame(version, request, FetchLimits(*limits), rack, 5, "me")
    assert frame == written(version, fields, 5, "me")


@pytest.mark.parametrize("case", ["two topics", "two ids", "forgotten", "many", "large", "old", "no client id"])
def test_any_other_request_of_a_session_is_left_to_the_codec(case: str) -> None:
    entry, client_id = PartitionFetch("t", 0, 5, 100, 4, b"i" * 16, 3), "me"
    others = {
        "two topics": [entry._replace(topic="u")],
        "two ids": [entry._replace(topic_id=b"j" * 16)],
        "many": [entry] * 200,
        "large": [entry._replace(max_bytes=1 << 31)],
    }
    request = SessionRequest(7, 2, [entry, *others.get(case, [])], [entry] * (case == "forgotten"), {})
    version = FIRST_VERSION - (case == "old")
    limits = FetchLimits(500, 1, 100, 0)
    assert session_frame(version, request, limits, "", 5, None if case == "no client id" else client_id) is None


NUMBERS = {"high_watermark": INT64, "last_stable_offset": INT64, "log_start_offset": INT64}
ANSWERED = st.fixed_dictionaries(
    {
        "partition_index": INT32,
        "error_code": st.integers(-(1 << 15), (1 << 15) - 1),
        "preferred_read_replica": INT32,
        "records": st.none() | st.binary(max_size=300),
        "aborted_transactions": st.sampled_from([None, [], [{"producer_id": 1, "first_offset": 2}]]),
        "diverging_epoch": st.sampled_from([None, None, {"epoch": 1, "end_offset": 2}]),
        **NUMBERS,
    }
)
ANSWERS = st.fixed_dictionaries(
    {
        "throttle_time_ms": INT32,
        "error_code": st.integers(0, 100),
        "session_id": INT32,
        "responses": st.lists(
            st.fixed_dictionaries(
                {
                    "topic": st.text(max_size=150),
                    "topic_id": st.binary(min_size=16, max_size=16),
                    "partitions": st.lists(ANSWERED, max_size=3),
                }
            ),
            max_size=3,
        ),
    }
)
ANY_VERSION = st.integers(FIRST_VERSION - 1, LAST_VERSION)


def answered(version: int, fields: dict[str, Any]) -> bytes:
    """A response, without its size."""
    name = "topic" if version < 13 else "topic_id"
    topics = [{name: topic[name], "partitions": topic["partitions"]} for topic in fields["responses"]]
    if version < 12:
        for topic in topics:
            topic["partitions"] = [part | {"diverging_epoch": None} for part in topic["partitions"]]
    message = ResponseMessage(ResponseHeader(5), fields | {"responses": topics})
    return encode_response(FETCH, version, message)[4:]


def read_by_codec(version: int, data: bytes | memoryview) -> Any:
    """What the codec reads; an error as its text."""
    codec, budget = codec_of(FETCH, "response", version), [1000]
    try:
        header, position = read_response_header(data, int(version >= FIRST_VERSION), budget)
        body, position = codec.read(data, position, budget)
    except FrameError as error:
        return str(error)
    return (header, body) if position == len(data) else "more"


@given(ANY_VERSION, ANSWERS, st.booleans())
def test_fields_of_a_response_are_those_that_the_codec_reads(version: int, fields: Any, views: bool) -> None:
    data: bytes | memoryview = answered(version, fields)
    data = memoryview(data) if views else data
    header, body = read_by_codec(version, data)
    found = decode_response(FETCH, version, data)
    assert (found.header, found.body) == (header, body)
    assert decode_response_body(FETCH, version, data) == body
    for topic, expected in zip(decode_response_body(FETCH, version, data)["responses"], body["responses"], strict=True):
        for part, other in zip(topic["partitions"], expected["partitions"], strict=True):
            assert type(part["records"]) is type(other["records"])
    direct = fetch_fields(version, data)
    unusual = any(
        part["aborted_transactions"] or (part["diverging_epoch"] and version >= FIRST_VERSION)
        for topic in fields["responses"]
        for part in topic["partitions"]
    )
    assert (direct is None) == (version < FIRST_VERSION or unusual)


@given(VERSIONS, ANSWERS, st.data())
def test_damaged_responses_are_read_or_refused_as_by_the_codec(version: int, fields: Any, data: st.DataObject) -> None:
    frame = bytearray(answered(version, fields))
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.integers(4, len(frame))) :]
    direct = fetch_fields(version, bytes(frame))
    if direct is not None:
        header, body = read_by_codec(version, bytes(frame))
        assert direct == body
        assert header.tags == {}


@given(ANY_VERSION, ANSWERS, st.binary(max_size=8000), st.booleans(), st.booleans(), st.data())
def test_both_codecs_read_the_same_of_each_partition(
    native_codec: native.NativeCodec,
    version: int,
    fields: Any,
    large: bytes,
    committed: bool,
    views: bool,
    data: st.DataObject,
) -> None:
    for topic in fields["responses"][:1]:
        for part in topic["partitions"][:1]:
            part["records"] = large
    frame = bytearray(answered(version, fields))
    for _ in range(data.draw(st.integers(0, 2))):
        frame[data.draw(st.integers(0, min(len(frame) - 1, 120)))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.sampled_from([len(frame), len(frame) - 1, 4])) :]
    response = bytes(frame)
    pure = fetch_parts(version, response, committed, views)
    found = native_codec.fetch_parts(version, response, committed, views)
    assert found == pure
    assert (pure is None) == (fetch_fields(version, response) is None)
    if found is not None and pure is not None:
        assert [type(part[-1]) for part in found[-1]] == [type(part[-1]) for part in pure[-1]]
