"""Templates of PRODUCE requests and responses: the same bytes and fields as from the codec of all APIs."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.wire import EncodeError
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, decode_response, encode_request, encode_response
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.produce_template import FIRST_VERSION, LAST_WITH_NAMES, ProduceTemplate
from consumerd.wire.v08.records import RecordCodec, encode_record_batch
from consumerd.wire.v08.schema import NO_UUID
from consumerd.wire.v08.throttle import silence

pytestmark = pytest.mark.usefixtures("either_codec")
VERSIONS = pytest.mark.parametrize("version", range(FIRST_VERSION, PRODUCE.versions[1] + 1))
COLUMNS: dict[str, dict[str, Any]] = {
    "plain": {"payloads": [b"a", b"", b"xyz"], "timestamps": [5, 5, 7]},
    "one time": {"payloads": [b"a" * 100] * 20, "timestamps": 1_700_000_000_000},
    "numbered": {
        "payloads": [b"a"], "timestamps": [3], "producer_id": 1 << 40, "producer_epoch": 3, "base_sequence": 77,
    },
    "nulls and keys": {"payloads": [None, b"v"], "keys": [b"k", None], "timestamps": [9, -4]},
    "headers": {"payloads": [b"a", b"b"], "timestamps": [1, 1], "headers": {1: (("h", None),)}},
    "no bytes": {"payloads": [bytearray(b"a")], "timestamps": [1]},
    "compressed": {"payloads": [b"a" * 500], "timestamps": [1], "codec": RecordCodec.GZIP},
    "large": {"payloads": [b"x" * 3_000_000], "timestamps": [1]},
}  # fmt: skip


def named(version: int, topic: str = "events") -> dict[str, Any]:
    """How a request and a response name a topic."""
    return {"name": topic} if version <= LAST_WITH_NAMES else {"topic_id": topic.encode().rjust(16)}


def template(version: int, topic: str = "events", acks: int = 1) -> ProduceTemplate:
    return ProduceTemplate(version, acks, 1500, topic, 3, named(version, topic).get("topic_id", NO_UUID))


@VERSIONS
@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_a_batch_in_a_template_is_the_request_that_the_codec_writes(version: int, columns: dict[str, Any]) -> None:
    ours = template(version, acks=-1)
    body = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1500,
        "topic_data": [
            {**named(version), "partition_data": [{"index": 3, "records": encode_record_batch(**columns)}]},
        ],
    }
    for correlation_id, client_id in ((0, "me"), ((1 << 31) - 1, "me"), (5, None), (6, "\u00e4")):
        around = ours.around(correlation_id, client_id)
        frame = encode_record_batch(**columns, around=around)
        assert frame == encode_request(PRODUCE, version, body, correlation_id=correlation_id, client_id=client_id)


@VERSIONS
def test_what_cannot_be_sent_is_an_error_with_a_template_too(version: int) -> None:
    with pytest.raises(EncodeError, match="not UTF-8"):
        template(version).around(1, "\udcff")
    around = template(version).around(1, "me")
    with pytest.raises(EncodeError, match="further apart"):
        encode_record_batch([b"a", b"b"], timestamps=[-(1 << 62), 1 << 62], around=around)
    with pytest.raises(EncodeError, match="cannot be written"):
        encode_record_batch([b"a"], producer_epoch=1 << 15, around=around)


def response(version: int, topic: str = "events", **fields: Any) -> bytes:
    throttle = fields.pop("throttle_time", 0)
    part = {"index": 3, "error_code": 0, "base_offset": 12, "log_append_time_ms": -1, "log_start_offset": 2, **fields}
    body = {"responses": [{**named(version, topic), "partition_responses": [part]}], "throttle_time_ms": throttle}
    return encode_response(PRODUCE, version, ResponseMessage(ResponseHeader(9), body))[4:]


def numbers_of(version: int, data: bytes) -> tuple[int, int, float]:
    """Those of a response to one batch, as the codec reads them."""
    body = decode_response(PRODUCE, version, data).body
    ((part,),) = [topic["partition_responses"] for topic in body["responses"]]
    return part["base_offset"], part["log_append_time_ms"], silence(PRODUCE, version, body)


@VERSIONS
@pytest.mark.parametrize("offset", [0, 0x0102030405060708, (1 << 63) - 1])
@pytest.mark.parametrize("timestamp", [-1, 1_700_000_000_000])
def test_the_usual_response_has_the_numbers_that_the_codec_reads(version: int, offset: int, timestamp: int) -> None:
    data = response(version, base_offset=offset, log_append_time_ms=timestamp, log_start_offset=7)
    assert template(version).decode(data) == (offset, timestamp, 0) == numbers_of(version, data)
    other = response(version, base_offset=1)
    assert template(version).decode(other) == (1, -1, 0) == numbers_of(version, other)


@VERSIONS
def test_every_other_response_is_left_to_the_codec(version: int) -> None:
    ours, usual = template(version), response(version)
    assert ours.decode(usual) is not None
    others = [
        response(version, error_code=6),
        response(version, index=2),
        response(version, topic="evenly"),
        response(version, throttle_time=5),
        usual + b"\0",
        *(usual[:size] for size in range(len(usual))),
    ]
    assert [ours.decode(data) for data in others] == [None] * len(others)
