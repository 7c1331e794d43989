"""Conversions of messages and batches by real brokers: other formats for older readers, and other timestamps."""

from __future__ import annotations

import asyncio
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.wire.v08.apis import CREATE_TOPICS, FETCH, PRODUCE
from consumerd.wire.v08.message_types import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    FetchRequest,
    FetchRequestPartition,
    ProduceRequest,
    ProduceRequestPartitionData,
)
from consumerd.wire.v08.records import (
    BatchEnd,
    RecordCodec,
    RecordSet,
    TimestampType,
    decode_records,
    encode_message_set,
    encode_record_batch,
)
from consumerd.wire.v08.records.message_set import read_message
from tests.support.kafka import RELEASES

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
        request: CreateTopicsRequestTopic = {
            "name": self.name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in config.items()],
        }

        async def made() -> None:
            body: CreateTopicsRequest = {"topics": [request], "timeout_ms": 10_000}
            channel = await self.client.any_channel()
            version = channel.versions.pick(CREATE_TOPICS, at_most=2)
            answer = await channel.call(CREATE_TOPICS, body, version=version)
            code = answer["topics"][0]["error_code"]
            # A broker that has just come up is not counted at once.
            if error := error_of(5 if code == 38 else code, self.name):
                raise error

        await self.client.retrying("create the topic", made)

        async def led() -> object:
            await self.client.refresh([self.name])
            return await self.client.leader(self.name, 0)

        await self.client.retrying("find the topic", led)

    async def produce(
        self, magic: int, codec: RecordCodec, keys: Sequence[bytes | None] = KEYS, headers: dict[int, Any] = HEADERS
    ) -> None:
        columns: dict[str, Any] = {"codec": codec, "keys": keys, "timestamps": TIMES}
        if magic == 2:
            data = encode_record_batch(VALUES, headers=headers, **columns)
        else:
            data = encode_message_set(VALUES, magic=magic, **columns)
        partition: ProduceRequestPartitionData = {"index": 0, "records": data}
        body: ProduceRequest = {
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": self.name, "partition_data": [partition]}],
        }

        async def send() -> None:
            node = await self.client.leader(self.name, 0)
            channel = await self.client.node_channel(node.id)
            latest = channel.versions.pick(PRODUCE, at_most=7)
            answer = await channel.call(PRODUCE, body, version=(0, 2, latest)[magic])
            code = answer["responses"][0]["partition_responses"][0]["error_code"]
            if error := error_of(code, f"magic {magic}, {codec.name}"):
                raise error

        await self.client.retrying("produce", send)

    async def fetch(self, version: int, offset: int = 0) -> bytes:
        return bytes((await self.told(version, offset))["records"])

    async def told(self, version: int, offset: int = 0, *, committed: bool = False) -> dict[str, Any]:
        partition: FetchRequestPartition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 24}
        body: FetchRequest = {
            "replica_id": -1,
            "max_wait_ms": 100,
            "min_bytes": 1,
            "topics": [{"topic": self.name, "partitions": [partition]}],
        }
        if version >= 3:
            body["max_bytes"] = 1 << 24
        if version >= 4:
            body["isolation_level"] = int(committed)
        node = await self.client.leader(self.name, 0)
        answer = await self.client.call_node(node.id, FETCH, body, version=version)
        (told,) = answer["responses"][0]["partitions"]
        assert told["error_code"] == 0
        return dict(told)

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


async def times_are_the_brokers(client: ClusterClient, release: tuple[int, ...]) -> None:
    modern = release >= (0, 11)
    for codec in list(RecordCodec)[: 5 if release >= (2, 1) else 4]:
        topic = Topic(client, f"stamped-{codec.name.lower()}")
        await topic.create(message_timestamp_type="LogAppendTime")
        await topic.produce(2 if modern else 1, codec)
        (found,) = await topic.whole(4 if modern else 3, COUNT, lambda data: None)
        assert {record.timestamp_type for record in found.messages()} == {TimestampType.LOG_APPEND_TIME}
        assert len(set(found.timestamps)) == 1
        assert found.timestamps[0] > max(TIMES)


@pytest.mark.parametrize(
    "release",  # those that make topics by request, and know formats to convert from and to
    [
        pytest.param(version, marks=[] if version in ("0.10.1.1", "3.9.1") else [pytest.mark.long])
        for version, release in RELEASES.items()
        if (0, 10, 1) <= release.number < (4,)
    ],
)
async def test_reads_down_converted_formats_and_broker_timestamps(
    release: str, kafka: Any, cluster_client: Any
) -> None:
    """Among them lz4 with the broken header of 0.8 and 0.9, where it was right when it was sent."""
    modern = RELEASES[release].number >= (0, 11)
    sent = [(magic, codec) for magic in (0, 1) for codec in list(RecordCodec)[:4]]
    sent += [(2, codec) for codec in list(RecordCodec)[:4] if modern]
    # Brokers of 0.11 cannot give messages with headers to older readers at all: they answer with error -1.
    given_headers = HEADERS if RELEASES[release].number >= (1,) else {}
    async with cluster_client(await kafka(release)) as client:
        topic = Topic(client, "converted")
        await topic.create()
        for magic, codec in sent:
            await topic.produce(magic, codec, headers=given_headers)
        total = COUNT * len(sent)
        for version in range(5 if modern else 4):
            magics: set[int] = set()
            broken: list[bool] = []

            def see(data: bytes, magics: set[int] = magics, broken: list[bool] = broken) -> None:
                magics.add(data[16])
                if data[16] < 2 and data[17] & 7 == RecordCodec.LZ4:
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
                assert headers[-COUNT:] == [given_headers.get(n, ()) for n in range(COUNT)]
            assert all(broken) if max(magics) == 0 else not any(broken)
        await times_are_the_brokers(client, RELEASES[release].number)


async def test_reads_transactions(kafka: Any, cluster_client: Any, missing: Callable[[str], NoReturn]) -> None:
    """Of another client: kafka-python's producer commits, aborts, and commits again."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what it uses of the standard library
            producer_class = importlib.import_module("kafka").KafkaProducer
    except ImportError:
        missing("kafka-python is not installed: the `dev` dependency group has it")
    broker = await kafka(
        "3.9.1", config={"transaction.state.log.replication.factor": 1, "transaction.state.log.min.isr": 1}
    )

    def transact() -> None:
        producer = producer_class(bootstrap_servers=f"127.0.0.1:{broker.port}", transactional_id="tests")
        try:
            producer.init_transactions()
            for name, end in (("one", "commit"), ("two", "abort"), ("three", "commit")):
                producer.begin_transaction()
                for number in range(3):
                    producer.send("transacted", f"{name} {number}".encode(), partition=0)
                producer.flush()
                getattr(producer, f"{end}_transaction")()
        finally:
            producer.close(timeout=5)

    async with cluster_client(broker) as client:
        topic = Topic(client, "transacted")
        await topic.create()
        await asyncio.to_thread(transact)
        told = await topic.told(4, committed=True)
        everything = decode_records(told["records"], 0)
        sent = [f"{name} {number}".encode() for name in ("one", "two", "three") for number in range(3)]
        assert everything.payloads == sent
        # A control batch, of one offset, ends each transaction.
        assert everything.offsets == [0, 1, 2, 4, 5, 6, 8, 9, 10]
        assert everything.next_offset == told["high_watermark"] == 12
        aborted = [(one["producer_id"], one["first_offset"]) for one in told["aborted_transactions"]]
        assert [first for _, first in aborted] == [4]
        committed = decode_records(told["records"], 0, aborted=aborted)
        assert committed.payloads == sent[:3] + sent[6:]
        assert (committed.next_offset, committed.prefix(3), committed.prefix(6)) == (12, 3, 12)


async def test_reads_compacted_logs(kafka: Any, cluster_client: Any) -> None:
    """Gaps in batches: deleted offsets never come back, and reading continues after them."""
    keys = [b"key %d" % (n // 3) for n in range(COUNT)]
    config = {"log.cleaner.backoff.ms": 100, "log.cleaner.min.cleanable.ratio": "0.001"}
    async with cluster_client(await kafka("3.9.1", config=config)) as client:
        topic = Topic(client, "compacted")
        # One batch fills a segment.
        size = len(encode_record_batch(VALUES, keys=keys, timestamps=TIMES, headers=HEADERS))
        await topic.create(cleanup_policy="compact", segment_bytes=str(size + 10))
        for codec in (RecordCodec.NONE, RecordCodec.LZ4, RecordCodec.NONE):
            await topic.produce(2, codec, keys)
        # The last segment is not compacted; of those before it, the last of each key is left.
        left = [*range(COUNT + 2, 2 * COUNT, 3), *range(2 * COUNT, 3 * COUNT)]
        async with asyncio.timeout(120):
            while sum(map(len, sets := await topic.whole(4, 3 * COUNT, lambda data: None))) > len(left):
                await asyncio.sleep(0.2)
        assert sets[-1].next_offset == 3 * COUNT
        assert [offset for found in sets for offset in found.offsets] == left
        for found in sets:
            for column, sent in ((found.payloads, VALUES), (found.keys, keys), (found.timestamps, TIMES)):
                assert column == [sent[offset % COUNT] for offset in found.offsets]
            headers = [found.headers.get(n, ()) for n in range(len(found))]
            assert headers == [HEADERS.get(offset % COUNT, ()) for offset in found.offsets]
        middle = decode_records(await topic.fetch(4, 110), 110)
        assert middle.offsets[:4] == [110, 113, 116, 119]
