"""Reading the target: answers that are not its messages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumerd.client import BrokerRelease, BrokerVersions, ClientSettings, ClusterClient
from consumerd.clock import SystemClock
from consumerd.errors import BrokerError
from consumerd.forward.target_log import TargetLog
from consumerd.wire.v08.apis import APIS, METADATA
from consumerd.wire.v08.records import encode_record_batch

pytestmark = pytest.mark.asyncio

PART = {"partition": 0, "error_code": 0, "high_watermark": 2}


class Target:
    """Opener, channel and broker in one: answers each FETCH with the next of `answers`."""

    address, closed, in_flight = "h:9", False, 0
    versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {key: api.versions for key, api in APIS.items()})

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.offsets: list[int] = []

    async def open(self, host: str, port: int) -> Any:
        return self

    async def call(self, api: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if api is METADATA:
            part = {"partition_error_code": 0, "partition_id": 0, "leader": 1, "replicas": [], "isr": []}
            topic = {"topic_error_code": 0, "topic": "t", "partition_metadata": [part]}
            return {"brokers": [{"node_id": 1, "host": "h", "port": 9}], "topic_metadata": [topic]}
        self.offsets.append(body["topics"][0]["partitions"][0]["fetch_offset"])
        return self.answers.pop(0)

    async def close(self) -> None:
        """Nothing is open."""


def answer(*parts: dict[str, Any], silence: int = 0) -> dict[str, Any]:
    return {"throttle_time_ms": silence, "responses": [{"topic": "t", "partition_responses": list(parts)}]}


async def values(target: Target) -> list[bytes | None]:
    opener: Any = target
    settings = ClientSettings(retry_backoff_min=0.001, retry_timeout=0.01)
    client = ClusterClient([("h", 9)], opener, settings, clock=SystemClock(), rng=random.Random(1))
    return [record.payload for part in [_ async for _ in TargetLog(client).read("t", 0, 0, 2)] for record in part]


async def test_asks_again_after_an_answer_over_a_quota() -> None:
    data = encode_record_batch([b"a", b"b"])
    target = Target(answer(silence=5), answer(silence=5), answer(PART | {"record_set": data}))
    assert await values(target) == [b"a", b"b"]
    assert target.offsets == [0, 0, 0]


async def test_answer_without_the_partition_is_an_error() -> None:
    with pytest.raises(BrokerError, match="left t/0 out"):
        await values(Target(answer(), answer(), answer(), answer(), answer(), answer(), answer(), answer()))
