"""What real brokers make of messages and batches: other formats for older readers, and times of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from consumerd.client import error_of
from consumerd.wire.v08.apis import CREATE_TOPICS, FETCH, PRODUCE
from consumerd.wire.v08.records import (
    BatchEnd,
    Codec,
    RecordSet,
    TimestampType,
    decode_records,
    encode_message_set,
    encode_record_batch,
)
from consumerd.wire.v08.records.message_set import read_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.client import ClusterClient

pytestmark = pytest.mark.interop
COUNT = 60
VALUES = [None if n % 17 == 5 else b"value %d " % n * (n % 40) for n in range(COUNT)]
KEYS = [None if n % 3 else b"key" * (n % 30) for n in range(COUNT)]
TIMES = [1_700_000_000_000 + n * n for n in range(COUNT)]
HEADERS = {n: (("name", b"v%d" % n), ("empty", None)) for n in range(0, COUNT, 7)}
#: The magic that brokers give to readers of this version of FETCH at most.
MAGIC_OF_FETCH = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}


class Topic:
    """One partition of a broker."""

    def __init__(self, client: ClusterClient, name: str) -> None:
        self.client = client
        self.name = name

    async def create(self, **config: str) -> None:
        request: dict[str, Any] = {
            "topic": self.name,
            "num_partitions": 1,
            "replication_factor": 1,
            "replica_assignment": [],
            "configs": [{"config_key": key.replace("_", "."), "config_value": value} for key, value in config.items()],
        }

        async def made() -> None:
            body = {"create_topic_requests": [request], "timeout": 10_000}
            answer = await self.client.call_controller(CREATE_TOPICS, body, version=0)
            code = answer["topic_error_codes"][0]["error_code"]
            # A broker that has just come up is not counted at once.
            if error := error_of(5 if code == 38 else code, self.name):
                raise error

        await self.client.retrying("create the topic", made)

        async def led() -> object:
            await self.client.refresh([self.name])
            return await self.client.leader(self.name, 0)

        await self.client.retrying("find the topic", led)

    async def produce(self, magic: int, codec: Codec) -> None:
        columns: dict[str, Any] = {"codec": codec, "keys": KEYS, "timestamps": TIMES}
        if magic == 2:
            data = encode_record_batch(VALUES, headers=HEADERS, **columns)
        else:
            data = encode_message_set(VALUES, magic=magic, **columns)
        partition = {"partition": 0, "record_set": data}
        body = {"acks": -1, "timeout": 5000, "topic_data": [{"topic": self.name, "data": [partition]}]}

        async def send() -> None:
            node = await self.client.leader(self.name, 0)
            answer = await self.client.call_node(node.id, PRODUCE, body, version=(0, 2, 7)[magic])
            code = answer["responses"][0]["partition_responses"][0]["error_code"]
            if error := error_of(code, f"magic {magic}, {codec.name}"):
                raise error

        await self.client.retrying("produce", send)

    async def fetch(self, version: int, offset: int = 0) -> bytes:
        partition = {"partition": 0, "fetch_offset": offset, "max_bytes": 1 << 24}
        body: dict[str, Any] = {
            "replica_id": -1,
            "max_wait_time": 100,
            "min_bytes": 1,
            "topics": [{"topic": self.name, "partitions": [partition]}],
        }
        if version >= 3:
            body["max_bytes"] = 1 << 24
        node = await self.client.leader(self.name, 0)
        answer = await self.client.call_node(node.id, FETCH, body, version=version)
        (told,) = answer["responses"][0]["partition_responses"]
        assert told["error_code"] == 0
        return bytes(told["record_set"])

    async def whole(self, version: int, count: int, see: Callable[[bytes], None]) -> list[RecordSet]:
        """Everything, in as many fetches as it takes; `see` gets the data of each."""
        found: list[RecordSet] = []
        offset = 0
        while offset < count:
            data = await self.fetch(version, offset)
            see(data)
            found.append(decode_records(data, offset))
            assert found[-1].end is not BatchEnd.CORRUPT, found[-1].problem
            assert found[-1].next_offset > offset
            offset = found[-1].next_offset
        return found


@pytest.mark.asyncio
@pytest.mark.parametrize("release", ["0.10.1.1", "3.9.1"])
async def test_older_readers_get_older_formats(release: str, kafka: Any, cluster_client: Any) -> None:
    """Among them lz4 with the broken header of 0.8 and 0.9, where it was right when it was sent."""
    modern = release.startswith("3")
    sent = [(magic, codec) for magic in (0, 1) for codec in list(Codec)[:4]]
    sent += [(2, codec) for codec in list(Codec)[:4] if modern]
    async with cluster_client(await kafka(release)) as client:
        topic = Topic(client, "converted")
        await topic.create()
        for magic, codec in sent:
            await topic.produce(magic, codec)
        total = COUNT * len(sent)
        for version in range(5 if modern else 4):
            magics: set[int] = set()
            broken: list[bool] = []

            def see(data: bytes, magics: set[int] = magics, broken: list[bool] = broken) -> None:
                magics.add(data[16])
                if data[16] < 2 and data[17] & 7 == Codec.LZ4:
                    value = read_message(data, 0).value
                    assert value is not None
                    # Blocks of 64 KiB, no checksums: what the right header ends with.
                    broken.append(value[4:7] != b"\x60\x40\x82")

            sets = await topic.whole(version, total, see)
            values = [value for found in sets for value in found.payloads]
            assert values == VALUES * len(sent), version
            assert [key for found in sets for key in found.keys] == KEYS * len(sent)
            assert [offset for found in sets for offset in found.offsets] == list(range(total))
            assert max(magics) <= MAGIC_OF_FETCH[version]
            if version >= 2:
                times = [time for found in sets for time in found.timestamps]
                unknown = [-1] * COUNT
                assert times == [time for magic, _ in sent for time in (TIMES if magic else unknown)]
            if version >= 4:
                headers = [found.headers.get(n, ()) for found in sets for n in range(len(found))]
                assert headers[-COUNT:] == [HEADERS.get(n, ()) for n in range(COUNT)]
            assert all(broken) if max(magics) == 0 else not any(broken)


@pytest.mark.asyncio
@pytest.mark.parametrize("release", ["0.10.1.1", "3.9.1"])
async def test_brokers_set_their_time(release: str, kafka: Any, cluster_client: Any) -> None:
    modern = release.startswith("3")
    async with cluster_client(await kafka(release)) as client:
        for codec in list(Codec)[: 5 if modern else 4]:
            topic = Topic(client, f"stamped-{codec.name.lower()}")
            await topic.create(message_timestamp_type="LogAppendTime")
            await topic.produce(2 if modern else 1, codec)
            (found,) = await topic.whole(4 if modern else 3, COUNT, lambda data: None)
            assert set(found.timestamp_types) == {TimestampType.LOG_APPEND_TIME}
            assert len(set(found.timestamps)) == 1
            assert found.timestamps[0] > max(TIMES)
