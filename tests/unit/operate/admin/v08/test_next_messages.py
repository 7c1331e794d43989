"""When the messages at positions were made: what leaders are asked, and what stays unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.v08 import next_messages
from consumerd.operate.admin.v08.next_messages import next_timestamps
from consumerd.wire.v08.apis import APIS
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.records import encode_message_set, encode_record_batch
from consumerd.wire.v08.records.crc32c import crc32c
from consumerd.wire.v08.schema import NO_UUID
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

T0, T1, T2 = (TopicPartition.numbered("t", number) for number in range(3))


class Leaders:
    """Client and channel in one: partitions 0 and 1 have leader 1, others none. Batches, by partition and offset."""

    address = "h:9"
    versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {key: api.versions for key, api in APIS.items()})

    def __init__(self) -> None:
        self.batches: dict[tuple[int, int], bytes | ErrorCode] = {}
        #: Partition and offset of all entries of each request, and the bytes that each of them asks for.
        self.asked: list[list[tuple[int, int]]] = []
        self.sizes: list[int] = []
        self.trouble: BrokerError | None = None
        self.metadata = SimpleNamespace(
            leader=lambda _topic, number: SimpleNamespace(id=1) if number < 2 else None, topic_id=lambda _topic: NO_UUID
        )

    async def node_channel(self, _node_id: int) -> Leaders:
        return self

    async def call(self, _api: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if self.trouble is not None:
            raise self.trouble
        entries = body["topics"][0]["partitions"]
        self.asked.append([(each["partition"], each["fetch_offset"]) for each in entries])
        self.sizes.append(entries[0]["partition_max_bytes"])
        parts = []
        for each in entries:
            found = self.batches.get((each["partition"], each["fetch_offset"]), b"")
            data = b"" if isinstance(found, ErrorCode) or len(found) > each["partition_max_bytes"] else found
            code = found if isinstance(found, ErrorCode) else 0
            part = {"partition_index": each["partition"], "error_code": code, "high_watermark": 99, "records": data}
            parts.append(part)
        topic = {"topic": "t", "topic_id": NO_UUID, "partitions": parts}
        return {"throttle_time_ms": 0, "error_code": 0, "responses": [topic]}

    async def timestamps(self, *positions: tuple[TopicPartition, int]) -> dict[tuple[TopicPartition, int], int]:
        client: Any = self
        return await next_timestamps(client, positions)


async def test_reads_the_message_at_the_position_and_not_the_first_of_its_batch() -> None:
    leaders = Leaders()
    leaders.batches[0, 11] = encode_record_batch([b"a", b"b", b"c"], base_offset=10, timestamps=[100, 200, 300])
    leaders.batches[1, 5] = encode_message_set([b"a"], base_offset=7, magic=1, timestamps=400)  # 5 was compacted
    assert await leaders.timestamps((T0, 11), (T1, 5), (T2, 1)) == {(T0, 11): 200, (T1, 5): 400}
    assert leaders.asked == [[(0, 11), (1, 5)]]


async def test_asks_once_for_each_partition_in_a_request() -> None:
    leaders = Leaders()
    for at in (1, 2, 3):
        leaders.batches[0, at] = encode_record_batch([b"a"], base_offset=at, timestamps=at)
    leaders.batches[1, 1] = encode_record_batch([b"a"], base_offset=1, timestamps=9)
    found = await leaders.timestamps((T0, 1), (T1, 1), (T0, 2), (T0, 3))
    assert found == {(T0, 1): 1, (T1, 1): 9, (T0, 2): 2, (T0, 3): 3}
    assert leaders.asked == [[(0, 1), (1, 1)], [(0, 2)], [(0, 3)]]


async def test_asks_for_more_where_the_first_batch_is_larger() -> None:
    leaders = Leaders()
    leaders.batches[0, 0] = encode_record_batch([b"x" * 50_000], timestamps=1)
    leaders.batches[1, 0] = encode_record_batch([b"x" * 900_000], timestamps=2)
    assert await leaders.timestamps((T0, 0), (T1, 0)) == {(T0, 0): 1, (T1, 0): 2}
    assert leaders.asked == [[(0, 0), (1, 0)], [(0, 0), (1, 0)], [(1, 0)]]
    assert leaders.sizes == [4096, 65536, (1 << 20) + 4096]


async def test_reads_on_after_the_marker_of_a_transaction() -> None:
    leaders = Leaders()
    marker = bytearray(encode_record_batch([bytes(6)], keys=[bytes(4)], base_offset=4, timestamps=1))
    marker[22] |= 1 << 5  # a control batch
    marker[17:21] = crc32c(bytes(marker[21:])).to_bytes(4, "big")
    leaders.batches[0, 4] = bytes(marker)
    leaders.batches[0, 5] = encode_record_batch([b"a"], base_offset=5, timestamps=2)
    leaders.batches[1, 4] = bytes(marker)  # and nothing after it
    assert await leaders.timestamps((T0, 4), (T1, 4)) == {(T0, 4): 2}


async def test_messages_without_timestamps_and_refused_partitions_are_unknown() -> None:
    leaders = Leaders()
    leaders.batches[0, 0] = encode_message_set([b"a"], magic=0)
    leaders.batches[1, 0] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert await leaders.timestamps((T0, 0), (T1, 0)) == {}
    assert len(leaders.asked) == 1  # neither of them is asked for again
    leaders.trouble = BrokerError("gone")
    assert await leaders.timestamps((T0, 0)) == {}


async def test_reads_no_more_of_a_leader_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_messages, "_MOST_BYTES", 3 * 4096)
    leaders = Leaders()
    for at in range(9):
        leaders.batches[0, at] = encode_record_batch([b"x" * 3000], base_offset=at, timestamps=at)
    found = await leaders.timestamps(*((T0, at) for at in range(9)))
    assert found == {(T0, at): at for at in range(3)}
