"""The handler `forward` against real brokers: forwarded messages, rejected ones, and the position to resume at."""

from __future__ import annotations

import asyncio
import random
import zlib
from contextlib import suppress
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode, HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import consumerd_command
from consumerd.handlers import Batch, Handler, HandlerContext, load_handler
from consumerd.handlers.forward.identity import read_identity
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.routing import key_partition
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from consumerd.wire.v08.records import Record, decode_records, encode_record_batch
from consumerd.wire.v08.records import RecordCodec as NewCodec

pytestmark = [pytest.mark.interop]
CLOCK = SystemClock()
CONTEXT = HandlerContext("group", "group_me", CLOCK)


def old(source: TopicPartition, payloads: list[bytes], *, start: int = 0, codec: Codec = Codec.NONE) -> Batch:
    """A batch as it is fetched from a 0.7 broker: seven messages a set, compressed ones in one wrapper each."""
    sets = [encode_message_set(payloads[n : n + 7], codec=codec, magic=1) for n in range(0, len(payloads), 7)]
    return Batch(source, decode_batch(b"".join(sets), start))


def handler_to(broker: Any, **options: Any) -> Handler:
    return load_handler("forward", {"bootstrap": [f"127.0.0.1:{broker.port}"], **options})


async def held(client: Any, topic: str) -> list[list[Record]]:
    """All records of a topic, by partition."""
    await client.refresh([topic])
    log = TargetLog(client, fetch_bytes=3000)
    found = []
    for partition in sorted(client.metadata.topics[topic].partitions):
        bounds = await log.bounds(topic, partition)
        found.append([record async for records in log.read(topic, partition, *bounds) for record in records])
    return found


async def test_forwards_messages_with_their_identity_in_order(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1", config={"auto.create.topics.enable": "false"})
    sources = {TopicPartition("events", b, p): (b * 2 + p) % 3 for b in range(2) for p in range(2)}
    handler = handler_to(
        broker, topic="old.{topic}", partitions=3, partitions_per_broker=2, codec="zstd", chunk_bytes=2000, source="dc1"
    )
    await handler.start(CONTEXT)
    sent: dict[TopicPartition, list[Any]] = {}

    async def feed(source: TopicPartition, codec: Codec) -> None:
        start = 0
        for first in range(0, 200, 50):
            payloads = [b"%s %d " % (source.name.encode(), n) + b"x" * (n % 40) for n in range(first, first + 50)]
            batch = old(source, payloads, start=start, codec=codec)
            sent.setdefault(source, []).extend(batch.messages())
            await handler.handle(batch)
            assert batch.handled == len(batch)
            start = batch.next_offset

    async with asyncio.TaskGroup() as group:  # partitions come concurrently
        for source, codec in zip(sources, (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.GZIP), strict=True):
            group.create_task(feed(source, codec))
    await handler.stop()
    async with cluster_client(broker) as client:
        found = await held(client, "old.events")
    assert sum(map(len, found)) == 800
    for source, place in sources.items():
        mine = [(r, i) for r in found[place] if (i := read_identity(r.headers)) is not None and i.partition == source]
        assert [r.payload for r, _ in mine] == [m.payload for m in sent[source]]
        assert [i.place for _, i in mine] == [(m.offset, m.index) for m in sent[source]]
        assert all(i.crc == zlib.crc32(r.payload or b"") and i.cluster == "dc1" for r, i in mine)
    assert {name for r in found[0] for name, _ in r.headers} == {
        f"consumerd.source.{part}" for part in ("cluster", "topic", "broker", "partition", "offset", "index", "crc")
    }


async def test_places_messages_by_extracted_keys(kafka: Any, cluster_client: Any) -> None:
    kafka_python = pytest.importorskip("kafka")
    broker = await kafka("3.9.1", partitions=3)
    handler = handler_to(broker, topics={"events": "users"}, partitions=3, key={"json": "user.id"}, codec="lz4")
    await handler.start(CONTEXT)
    payloads = [b'{"user": {"id": "u%d"}, "n": %d}' % (n % 10, n) for n in range(100)] + [b"no json"]
    await handler.handle(old(TopicPartition("events", 0, 1), payloads))
    # A message of a newer cluster keeps its key, headers and time.
    records = encode_record_batch(
        [None, b"v"], keys=[b"gone", b"k"], timestamps=[1000, 2000], headers={1: (("trace", b"t"),)}
    )
    newer = Batch(TopicPartition.numbered("events", 2), decode_records(records, 0))
    await handler.handle(newer)
    await handler.stop()
    consumer = kafka_python.KafkaConsumer(
        "users", bootstrap_servers=broker.address, auto_offset_reset="earliest", consumer_timeout_ms=3000
    )
    found = await asyncio.to_thread(list, consumer)
    await asyncio.to_thread(consumer.close)
    assert len(found) == 103
    for each in found:
        assert each.partition == (1 if each.key is None else key_partition(each.key, 3))
    assert [each.value for each in found if each.key == b"u7"] == payloads[7:100:10]
    assert [each.value for each in found if each.key is None] == [b"no json"]
    tombstone = next(each for each in found if each.key == b"gone")
    assert (tombstone.value, tombstone.timestamp) == (None, 1000)
    traced = next(each for each in found if each.value == b"v")
    assert traced.headers[0] == ("trace", b"t")
    assert ("consumerd.source.offset", b"1") in traced.headers
    assert not any(name.endswith((".broker", ".crc")) for name, _ in tombstone.headers)


async def test_round_robin_places_messages_without_a_key(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1", partitions=3)
    for options, counts in (({"placing": "keep"}, [0, 300, 0]), ({"placing": "round_robin"}, [100, 400, 100])):
        handler = handler_to(broker, partitions=3, **options)
        await handler.start(CONTEXT)
        await handler.handle(old(TopicPartition("events", 0, 1), [b"%d" % n for n in range(300)]))
        async with cluster_client(broker) as client:
            await client.retrying(
                "find the leaders", lambda: asyncio.gather(*(client.leader("events", n) for n in range(3)))
            )
            assert [len(part) for part in await held(client, "events")] == counts
        await handler.stop()


async def test_stops_on_permanent_errors(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1", partitions=1, config={"message.max.bytes": 20_000})
    source = TopicPartition("events", 0, 0)
    handler = handler_to(broker, partitions=1, chunk_bytes=300_000)
    await handler.start(CONTEXT)
    # The target takes less at once than is sent: so less is sent.
    payloads = [b"%d " % n + b"y" * 900 for n in range(100)]
    await handler.handle(old(source, payloads))
    big = old(source, [b"first", b"z" * 30_000, b"after"], start=200_000)
    with pytest.raises(HandlerFailedError, match=r"cannot forward .* from 200015: .*MESSAGE_TOO_LARGE"):
        await handler.handle(big)
    assert big.handled == 1
    with pytest.raises(HandlerFailedError, match="is not a valid topic name"):
        await handler.handle(old(TopicPartition("not allowed", 0, 0), [b"x"]))
    await handler.stop()
    small = handler_to(broker, max_message_bytes=500)
    await small.start(CONTEXT)
    with pytest.raises(
        HandlerFailedError, match=r"offset 0 \(index 0\) of events/0-0 has 947 bytes .*max_message_bytes"
    ):
        await small.handle(old(source, [b"w" * 600]))
    with pytest.raises(HandlerFailedError, match=r"the target has no topic 'other': create it, or set its number"):
        await small.handle(old(TopicPartition("other", 0, 0), [b"x"]))
    await small.stop()
    async with cluster_client(broker) as client:
        (found,) = await held(client, "events")
    assert [record.payload for record in found] == [*payloads, b"first"]


async def test_resumes_after_the_last_message_of_the_target(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1", partitions=2)
    one, other = TopicPartition("events", 0, 0), TopicPartition("events", 0, 2)  # both to partition 0
    payloads = [b"%d" % n for n in range(70)]
    batches = {source: old(source, payloads, codec=Codec.GZIP) for source in (one, other)}
    options: dict[str, Any] = {"partitions": 2, "resume": "target", "chunk_bytes": 2000}
    first = handler_to(broker, **options)
    await first.start(CONTEXT)
    assert await first.position(one) is None
    # A crash between the target's taking 35 messages and the commit on the source.
    cut = list(batches[one].messages())[35].offset
    await first.handle(Batch(one, decode_batch(wire(payloads[:35]), 0)))
    for source in (other,):
        await first.handle(batches[source])
    await first.stop()
    again = handler_to(broker, **options)
    await again.start(CONTEXT)
    position = await again.position(one)
    assert position is not None
    assert position < cut  # the wrapper of the last message: its leaves are there and are left out
    rest = Batch(one, decode_batch(wire(payloads)[position:], position))
    await again.handle(rest)
    last = await again.position(other)
    assert last is not None
    strange = Batch(other, decode_batch(encode_message_set([b"another log"], magic=1), last))
    with pytest.raises(HandlerFailedError, match="differs from the last one on the target"):
        await again.handle(strange)
    await again.stop()
    async with cluster_client(broker) as client:
        found, none = await held(client, "events")
    assert not none
    for source in (one, other):
        mine = [r.payload for r in found if (i := read_identity(r.headers)) is not None and i.partition == source]
        assert mine == payloads


def wire(payloads: list[bytes]) -> bytes:
    """The same bytes as `old` has with gzip."""
    return b"".join(
        encode_message_set(payloads[n : n + 7], codec=Codec.GZIP, magic=1) for n in range(0, len(payloads), 7)
    )


async def test_rejects_a_target_without_headers_unless_they_are_optional(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("0.10.1.1", partitions=2)
    refused = handler_to(broker)
    with pytest.raises(HandlerFailedError, match=r"older than 0.11 and does not support headers.*headers = false"):
        await refused.start(CONTEXT)
    await refused.stop()
    refused = handler_to(broker, headers=False, exactly_once=True)
    with pytest.raises(HandlerFailedError, match=r"older than 2\.5, and positions in transactions"):
        await refused.start(CONTEXT)
    await refused.stop()
    handler = handler_to(broker, headers=False, partitions=2, replication_factor=1, codec="gzip")
    await handler.start(CONTEXT)
    payloads = [b"%d" % n for n in range(50)]
    await handler.handle(old(TopicPartition("events", 0, 3), payloads))
    await handler.stop()
    async with cluster_client(broker) as client:
        none, found = await held(client, "events")
    assert not none
    assert [record.payload for record in found] == payloads


EAGER_RETENTION = {"log.initial.task.delay.ms": 100, "log.retention.check.interval.ms": 100}


async def mirror(*arguments: str) -> tuple[int | None, str]:
    return await consumerd("mirror", *arguments)


async def consumerd(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *consumerd_command(*arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 100)
    return process.returncode, errors.decode()


async def test_mirrors_newer_clusters_and_rejects_loops(kafka: Any, cluster_client: Any) -> None:
    # Retention deletes old messages at once, not half a minute after the start: the messages are of 1970.
    broker = await kafka("3.9.1", partitions=2, config=EAGER_RETENTION)
    async with cluster_client(broker) as client:
        async with V08Producer(client, clock=CLOCK, rng=random.Random(1)) as producer:
            for n in range(100):
                await producer.send("events", b"%d" % n, key=b"k%d" % (n % 7), timestamp=1000 + n, partition=n % 2)
        arguments = ("--from-bootstrap-server", broker.address, "--group", "copy", "--topic", "events", "--exit-at-end")
        target = ("--to-bootstrap-server", broker.address)
        code, errors = await mirror(*arguments, *target)
        assert code == ExitCode.REFUSED, errors
        assert "source and target are the same cluster, and 'events' would be forwarded to 'events'" in errors
        for resume in ("committed", "target"):  # the second finds nothing left to do
            code, errors = await mirror(
                *arguments, *target, "--rename", "events=copy", "--partitions", "2", "--resume", resume
            )
            assert code == 0, errors
        for number, found in enumerate(await held(client, "copy")):
            assert [(r.payload, r.key, r.timestamp) for r in found] == [
                (b"%d" % n, b"k%d" % (n % 7), 1000 + n) for n in range(number, 100, 2)
            ]
            identities = [read_identity(record.headers) for record in found]
            assert [i and (i.partition, i.offset) for i in identities] == [
                (TopicPartition.numbered("events", number), n) for n in range(50)
            ]

        async with V08Producer(
            client, V08ProducerSettings(transactional_id="m"), clock=CLOCK, rng=random.Random(1)
        ) as p:
            for payload in (b"aborted", b"committed"):
                with suppress(RuntimeError):
                    async with p.transaction() as transaction:
                        await transaction.send("events", payload, partition=0)
                        if payload == b"aborted":
                            await p.flush()
                            raise RuntimeError("abort")
        for isolation, expected in ((), [b"aborted", b"committed"]), (("read_committed",), [b"committed"]):
            options = [word for name in isolation for word in ("--isolation", name)]
            topic = "-".join(("all", *isolation))
            options += ["--group", topic, "--rename", f"events={topic}", "--partitions", "2"]
            code, errors = await mirror(*arguments, *target, *options)
            assert code == 0, errors
            assert [record.payload for record in (await held(client, topic))[0][50:]] == expected


async def test_mirrors_groups_of_0_8_in_zookeeper(kafka: Any, cluster_client: Any, zk_root: str) -> None:
    source, target = await kafka("0.8.2.2", partitions=2), await kafka("3.9.1")
    async with (
        cluster_client(source) as client,
        V08Producer(client, V08ProducerSettings(codec=NewCodec.SNAPPY), clock=CLOCK, rng=random.Random(1)) as p,
    ):
        for n in range(60):
            await p.send("events", b"%d" % n, key=b"key" if n % 3 else None, partition=n % 2)
    code, errors = await mirror(
        "--from-zookeeper", zk_root, "--group", "copy", "--topic", "events", "--exit-at-end",
        "--to-bootstrap-server", target.address, "--partitions", "2",
    )  # fmt: skip
    assert code == 0, errors
    async with cluster_client(target) as client:
        for number, found in enumerate(await held(client, "events")):
            assert [(r.payload, r.key) for r in found] == [
                (b"%d" % n, b"key" if n % 3 else None) for n in range(number, 60, 2)
            ]
            identities = [read_identity(record.headers) for record in found]
            assert [i and i.offset for i in identities] == list(range(30))
    code, errors = await consumerd(
        "migrate", "verify", "--from-bootstrap-server", source.address, "--topic", "events",
        "--to-bootstrap-server", target.address,
    )  # fmt: skip
    assert code == 0, errors
