"""Reading the target: its messages, and answers that are none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumerd.base.errors import BrokerError, CorruptDataError
from consumerd.handlers.forward.target_log import LogBounds, TargetLog
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.client.settings import ClientSettings
from consumerd.testing.clock import FakeClock
from consumerd.wire.v07 import LATEST
from consumerd.wire.v08.apis import APIS, METADATA
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.records import encode_record_batch
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

PART = {"partition_index": 0, "error_code": 0, "high_watermark": 2}


class Target:
    """Opener, channel and broker in one: answers each FETCH and LIST_OFFSETS with the next of `answers`."""

    address, closed, in_flight = "h:9", False, 0
    versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {key: api.versions for key, api in APIS.items()})

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        #: What was asked of the partition.
        self.asked: list[dict[str, Any]] = []
        self.refreshed = 0
        self.numbers = [1, 0]

    async def open(self, host: str, port: int) -> Any:
        return self

    async def call(self, api: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if api is METADATA:
            self.refreshed += 1
            parts = [
                {"error_code": 0, "partition_index": number, "leader_id": 1, "replica_nodes": [], "isr_nodes": []}
                for number in self.numbers
            ]
            topic = {"error_code": 0, "name": "t", "partitions": parts}
            wanted = body["topics"] is None or "t" in [each["name"] for each in body["topics"]]
            return {
                "brokers": [{"node_id": 1, "host": "h", "port": 9}],
                "topics": [topic] if wanted else [],
            }
        self.asked.append(body["topics"][0]["partitions"][0])
        return self.answers.pop(0)

    @property
    def offsets(self) -> list[int]:
        return [each["fetch_offset"] for each in self.asked]

    async def close(self) -> None:
        """Nothing is open."""


def answer(*parts: dict[str, Any], silence: int = 0, error: int = 0) -> dict[str, Any]:
    topics = [{"topic": "t", "topic_id": bytes(16), "partitions": list(parts)}]
    return {"throttle_time_ms": silence, "error_code": error, "responses": topics}


def log_of(target: Target, **options: Any) -> TargetLog:
    opener: Any = target
    settings = ClientSettings(retry_timeout=5.0)
    return TargetLog(
        ClusterClient([("h", 9)], opener, settings, clock=FakeClock(auto=True), rng=random.Random(1)), **options
    )


async def pieces(target: Target, start: int = 0, end: int = 2, **options: Any) -> list[list[bytes | None]]:
    read = log_of(target, **options).read("t", 0, start, end)
    return [[record.payload for record in piece] async for piece in read]


async def values(target: Target) -> list[bytes | None]:
    return [value for piece in await pieces(target) for value in piece]


async def test_asks_again_after_an_answer_over_a_quota() -> None:
    data = encode_record_batch([b"a", b"b"])
    whole = answer(PART | {"records": data}, silence=5)
    target = Target(*[answer(silence=5)] * 50, whole)  # for as long as the broker demands
    assert await values(target) == [b"a", b"b"]
    assert target.offsets == [0] * 51


async def test_answer_without_the_partition_is_an_error() -> None:
    with pytest.raises(BrokerError, match="left t/0 out"):
        await values(Target(*[answer()] * 50))


def stored(*payloads: bytes, at: int = 0) -> dict[str, Any]:
    return answer(PART | {"records": encode_record_batch(payloads, base_offset=at)})


async def test_reads_up_to_the_end_and_no_further() -> None:
    target = Target(stored(b"a", b"b"), stored(b"c", b"d", b"e", at=2))
    assert await pieces(target, end=4) == [[b"a", b"b"], [b"c", b"d"]]
    assert target.offsets == [0, 2]
    target = Target(stored(b"a", b"b", b"c"))
    assert await pieces(target, start=1, end=3) == [[b"b", b"c"]]
    target = Target(stored(b"c", at=2), stored(b"e", at=4))  # compaction took the others away
    assert await pieces(target, end=4) == [[b"c"]]
    assert await pieces(Target(), start=3, end=3) == []


async def test_fetches_a_message_that_is_larger_than_the_fetch_in_its_size() -> None:
    whole = encode_record_batch([b"x" * 5000])
    cut = answer(PART | {"records": whole[:100]})
    target = Target(cut, stored(b"x" * 5000), stored(b"b", at=1))
    assert await pieces(target, fetch_bytes=100) == [[b"x" * 5000], [b"b"]]
    assert [each["partition_max_bytes"] for each in target.asked] == [100, len(whole), 100]
    nothing = answer(PART | {"records": whole[:10]})  # which does not tell the size
    target = Target(nothing, nothing, cut, stored(b"x" * 5000), stored(b"b", at=1))
    await pieces(target, fetch_bytes=100)
    assert [each["partition_max_bytes"] for each in target.asked] == [100, 200, 400, len(whole), 100]


async def test_fetches_no_more_than_a_quarter_of_a_gigabyte_at_once() -> None:
    target = Target(*[answer(PART | {"records": b""})] * 3)
    with pytest.raises(CorruptDataError, match="returned no records at t/0 offset 0, although its log has some"):
        await pieces(target, fetch_bytes=100 << 20)
    assert [each["partition_max_bytes"] >> 20 for each in target.asked] == [100, 200, 256]
    target = Target(answer(PART | {"records": b""}), stored(b"a", b"b"))
    await pieces(target)
    assert [each["partition_max_bytes"] >> 20 for each in target.asked] == [1, 2]


async def test_bytes_that_are_not_records_are_an_error() -> None:
    target = Target(answer(PART | {"records": b"\x00" * 16 + b"\x07" * 60}))
    with pytest.raises(CorruptDataError, match="the target has no records at t/0 offset 0"):
        await pieces(target)


@pytest.mark.parametrize(
    "refusal",
    [
        answer(PART | {"error_code": ErrorCode.NOT_LEADER_FOR_PARTITION, "records": b""}),
        answer(error=ErrorCode.NOT_LEADER_FOR_PARTITION),
    ],
)
async def test_looks_for_the_leader_again_when_a_broker_is_not_it(refusal: dict[str, Any]) -> None:
    target = Target(refusal, stored(b"a", b"b"))
    assert await values(target) == [b"a", b"b"]
    assert target.refreshed == 2
    offsets = Target(offset(-1, error=ErrorCode.NOT_LEADER_FOR_PARTITION), offset(3), offset(9))
    assert await log_of(offsets).bounds("t", 0) == LogBounds(3, 9)
    assert offsets.refreshed == 2


async def test_offset_that_is_gone_is_an_error_at_once() -> None:
    target = Target(answer(PART | {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE, "records": b""}))
    with pytest.raises(BrokerRefusedError, match="refuses to tell of t/0"):
        await values(target)
    assert target.refreshed == 1


def offset(value: int, error: int = 0) -> dict[str, Any]:
    part = {"partition_index": 0, "error_code": error, "timestamp": -1, "offset": value}
    return {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": [part]}]}


class Leaders(Target):
    """Two brokers that lead the partitions in turns, and answer for all that they are asked."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.numbers = list(range(partitions))
        self.requests: list[list[int]] = []

    async def call(self, api: Any, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        if api is METADATA:
            answer = await super().call(api, body, **options)
            answer["brokers"] = [{"node_id": node, "host": "h", "port": node} for node in (1, 2)]
            for part in answer["topics"][0]["partitions"]:
                part["leader_id"] = 1 + part["partition_index"] % 2
            return answer
        asked = body["topics"][0]["partitions"]
        self.requests.append([each["partition_index"] for each in asked])
        parts = [
            {
                "partition_index": each["partition_index"],
                "error_code": 0,
                "timestamp": -1,
                "offset": each["partition_index"] + (100 if each["timestamp"] == LATEST else 0),
            }
            for each in asked
        ]
        return {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": parts}]}


@pytest.mark.parametrize(("partitions", "requests"), [(1, 2), (100, 4), (1000, 4)])
async def test_asks_each_leader_twice_for_the_bounds_of_all_its_partitions(partitions: int, requests: int) -> None:
    leaders = Leaders(partitions)
    found = await log_of(leaders).all_bounds("t", range(partitions))
    assert found == {number: LogBounds(number, number + 100) for number in range(partitions)}
    assert len(leaders.requests) == requests
    assert {number % 2 for number in leaders.requests[0]} == {0}


async def test_bounds_are_those_of_the_present_log() -> None:
    target = Target(offset(3), offset(9))
    assert await log_of(target).bounds("t", 0) == LogBounds(3, 9)
    assert [each["timestamp"] for each in target.asked] == [-2, -1]


@pytest.mark.parametrize("said", [offset(-1), {"throttle_time_ms": 0, "topics": []}])
async def test_answer_without_an_offset_is_an_error(said: dict[str, Any]) -> None:
    with pytest.raises(BrokerError, match="returned no offset of t/0"):
        await log_of(Target(*[said] * 50)).bounds("t", 0)


async def test_lists_the_partitions_that_a_topic_has_now() -> None:
    target = Target()
    log = log_of(target)
    assert await log.partitions("t") == [0, 1]
    target.numbers = [2, 0, 1]
    assert await log.partitions("t") == [0, 1, 2]
    assert await log.partitions("missing") == []
