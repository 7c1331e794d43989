"""Frames of FETCH requests of the usual shape: the same bytes as from the codec of all APIs, or none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.wire.errors import EncodeError
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.fetch_frame import FIRST_VERSION, fetch_frame
from consumerd.wire.v08.headers import RequestHeader
from consumerd.wire.v08.messages import RequestMessage, encode_request, encode_request_message

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
    }
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
        body(ENTRY, rack_id="r"),
        body(ENTRY, forgotten_topics_data=[]),
        body(ENTRY | {"log_start_offset": 5}),
        body(*[ENTRY] * 200),
        body(ENTRY, topic="t" * 200, topic_id=b""),
        body(ENTRY | {"partition": 1 << 31}),
        body(ENTRY, max_bytes=None),
        body(ENTRY, topic_id=None),
    ],
    ids=["rack", "forgets", "a follower", "many", "long name", "does not fit", "not a number", "no id"],
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
