"""Reads of Spark's tasks from real brokers of 0.8 and later: every format and codec, cut anywhere, without Spark."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.operate.admin.errors import RefusedError
from consumerd.spark.source.columns import COLUMNS
from consumerd.spark.source.errors import BrokerRejectedError, DataLossError
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.option_values import BootstrapLocation
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner, plan_batch
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import V08Split
from consumerd.spark.source.v08 import client as kafka_client
from consumerd.spark.source.v08.commits import V08Committer
from consumerd.spark.source.v08.reading import read_v08_split
from consumerd.wire.v08.apis import PRODUCE
from consumerd.wire.v08.message_types import ProduceRequest
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch
from tests.support.kafka import RELEASES, SHORT_SESSION
from tests.support.topics import create_and_lead, create_topic, recreate_topic

pytestmark = [pytest.mark.interop]
EVERYDAY = ("0.8.2.2", "3.9.1")
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
STAMP = 1_700_000_000_123
REQUEST = ReadRequest(tuple(column.name for column in COLUMNS), fetch_size=2000, timeout=20)


def formats_of(version: str) -> list[tuple[int, RecordCodec]]:
    """(magic, codec) of all that producers can send to a broker of `version`."""
    number = RELEASES[version].number
    magics = [2] if number >= (4,) else [0] + [1] * (number >= (0, 10)) + [2] * (number >= (0, 11))
    codecs = [RecordCodec.NONE, RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4]
    return [
        (magic, codec) for magic in magics for codec in codecs + [RecordCodec.ZSTD] * (magic == 2 and number >= (2, 1))
    ]


async def produce(client: ClusterClient, magic: int, codec: RecordCodec, payloads: list[bytes | None]) -> None:
    keys = [None if payload is None else b"k" + payload[:3] for payload in payloads]
    if magic == 2:
        headers = dict.fromkeys(range(1, len(payloads), 2), (("trace", b"\x01"), ("none", None)))
        data = encode_record_batch(payloads, codec=codec, keys=keys, headers=headers, timestamps=STAMP)
    else:
        data = encode_message_set(
            payloads, magic=magic, codec=codec, keys=keys, timestamps=STAMP if magic else -1
        )  # fmt: skip
    body: ProduceRequest = {
        "acks": -1,
        "timeout_ms": 5000,
        "topic_data": [{"name": "events", "partition_data": [{"index": 0, "records": data}]}],
    }

    async def send() -> None:
        node = await client.leader("events", 0)
        channel = await client.node_channel(node.id)
        version = min(channel.versions.pick(PRODUCE, at_most=9), (0, 2, 9)[magic])
        answer = await channel.call(PRODUCE, body, version=version)
        if error := error_of(answer["responses"][0]["partition_responses"][0]["error_code"], "produce"):
            raise error

    await client.retrying("produce", send)


def planned(port: int, **options: Any) -> list[V08Split]:
    given = {"bootstrap": f"127.0.0.1:{port}", "assign": '{"events": ["0"]}', "timeoutMs": 20_000, **options}
    found = plan_batch(read_options({name: str(value) for name, value in given.items()}), Pruning())
    assert all(isinstance(split, V08Split) for split in found)
    return found  # type: ignore[return-value]  # as was asserted


def read(splits: list[V08Split], request: ReadRequest = REQUEST) -> list[dict[str, Any]]:
    return [row for split in splits for batch in read_v08_split(split, request) for row in batch.to_pylist()]


@pytest.mark.parametrize("version", ["2.8.2", "3.9.1", "4.1.0"])
async def test_reads_nothing_of_a_topic_that_was_created_again_since_the_read_was_planned(
    version: str, kafka: Any, cluster_client: Any
) -> None:
    broker = await kafka(version)
    create_topic(broker.address, "events")
    async with cluster_client(broker) as client:
        await produce(client, 2, RecordCodec.NONE, [b"former"] * 20)
    (split,) = former = planned(broker.port)
    assert {(row["value"], row["topic_id"]) for row in read(former)} == {(b"former", split.topic_id)}
    recreate_topic(broker.address, "events")
    async with cluster_client(broker) as client:
        await produce(client, 2, RecordCodec.NONE, [b"new"] * 30)
    (other,) = new = planned(broker.port)
    assert split.topic_id is not None
    assert other.topic_id not in (None, split.topic_id)
    with pytest.raises(
        DataLossError, match=f"0 to 20 of events/0 .* had id {split.topic_id} .* has {other.topic_id} now"
    ):
        read(former)
    assert read(former, replace(REQUEST, fail_on_data_loss=False)) == []
    assert [(row["value"], row["topic_id"]) for row in read(new)] == [(b"new", other.topic_id)] * 30


async def test_without_topic_ids_a_log_that_ends_before_the_checkpoint_is_data_loss(
    kafka: Any, cluster_client: Any
) -> None:
    broker = await kafka("1.1.1")
    create_topic(broker.address, "events")
    async with cluster_client(broker) as client:
        await produce(client, 2, RecordCodec.NONE, [b"former"] * 20)
    given = {"bootstrap": broker.address, "subscribe": "events", "startingOffsets": "earliest"}
    first = StreamPlanner(read_options(given))
    end = first.latest(first.initial(), None)
    assert end == {"events": {"0": {"offset": 20, "leader_epoch": 0}}}
    recreate_topic(broker.address, "events")
    async with cluster_client(broker) as client:
        await produce(client, 2, RecordCodec.NONE, [b"new"] * 15)
    with pytest.raises(
        DataLossError, match=r"events/0 was read up to 20 .*, so the log was replaced: it has offsets 0 to 15 now"
    ):
        StreamPlanner(read_options(given)).latest(end, None)
    with pytest.raises(DataLossError, match="events/0 was read up to 20 and ends at 15 now, so the log was replaced"):
        StreamPlanner(read_options(given)).latest({"events": {"0": 20}}, None)


@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_reads_every_format_and_codec_split_anywhere(version: str, kafka: Any, cluster_client: Any) -> None:
    broker = await kafka(version)
    old = RELEASES[version].number < (0, 10)
    expected: list[dict[str, Any]] = []
    async with cluster_client(broker) as client:
        await create_and_lead(client)
        for magic, codec in formats_of(version):
            payloads: list[bytes | None] = [b"%03d of magic %d" % (n, magic) * 3 for n in range(50)]
            payloads[-1] = None
            await produce(client, magic, codec, payloads)
            for number, payload in enumerate(payloads):
                headers = [{"key": "trace", "value": b"\x01"}, {"key": "none", "value": None}]
                offset = len(expected)
                expected.append(
                    {
                        "key": None if payload is None else b"k" + payload[:3],
                        "value": payload,
                        "topic": "events",
                        "partition": 0,
                        "offset": offset,
                        "timestamp": datetime.fromtimestamp(STAMP / 1000, UTC) if magic else None,
                        "timestampType": None if old else 0,  # newer ones store them in their own format
                        "headers": headers if magic == 2 and number % 2 else None,
                        "broker": None,
                        "broker_partition": "0",
                        "index": 0,
                        "next_offset": offset + 1,
                        "codec": codec.name.lower(),
                        "crc_ok": True,
                        "_corrupt": None,
                    }
                )
    whole = await asyncio.to_thread(planned, broker.port)
    assert [(split.start, split.end) for split in whole] == [(0, len(expected))]
    assert (whole[0].topic_id is None) == (RELEASES[version].number < (2, 8))
    epoch = 0 if RELEASES[version].number >= (0, 11) else None  # they store all formats as batches
    expected = [{**row, "topic_id": whole[0].topic_id, "leader_epoch": epoch} for row in expected]
    assert await asyncio.to_thread(read, whole) == expected
    pieces = await asyncio.to_thread(planned, broker.port, maxRecordsPerPartition=70)
    assert len(pieces) == -(-len(expected) // 70)
    some = ReadRequest(("offset", "value"), fetch_size=100, timeout=20)  # grows until something fits
    wanted = [{"offset": row["offset"], "value": row["value"]} for row in expected]
    assert await asyncio.to_thread(read, pieces, some) == wanted
    from_there = json.dumps({"events": {"0": 33}})
    to_there = json.dumps({"events": {"0": 61}})
    middle = await asyncio.to_thread(planned, broker.port, startingOffsets=from_there, endingOffsets=to_there)
    assert await asyncio.to_thread(read, middle, some) == wanted[33:61]
    assert (("127.0.0.1", broker.port) in kafka_client._old_brokers) == old
    later = await asyncio.to_thread(planned, broker.port, startingTimestamp=STAMP + 1)
    earlier = await asyncio.to_thread(planned, broker.port, startingTimestamp=STAMP)
    # Before 0.10.1 a whole segment; since, messages, where the broker knows their times.
    by_message = RELEASES[version].number >= (0, 10, 1)
    assert bool(later) == (not by_message)
    first = next(number for number, (magic, _) in enumerate(formats_of(version)) if magic) * 50 if by_message else 0
    assert [(split.start, split.end) for split in earlier] == [(first, len(expected))]
    if RELEASES[version].number < (0, 9):
        committer = V08Committer(whole[0].location, "ours", 20)
        with pytest.raises(BrokerRejectedError, match=r"\(Kafka 0.8\) does not serve DescribeGroups"):
            await asyncio.to_thread(committer.check)


async def test_writes_offsets_for_lag_tools_into_a_group_without_members(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1")
    place = BootstrapLocation((("127.0.0.1", broker.port),))
    partition = TopicPartition.numbered("events", 0)
    async with cluster_client(broker) as client:
        await create_and_lead(client)
        await produce(client, 2, RecordCodec.NONE, [b"a", b"b", b"c"])
        ours = V08Committer(place, "ours", 20)
        await asyncio.to_thread(ours.check)
        assert await asyncio.to_thread(ours.commit, {"events": {"0": 2, "1": 0}}) == 2
        assert await KafkaOffsetStore(client, "ours").load([partition]) == {partition: 2}
        await asyncio.to_thread(ours.check)
        member = Consumer({"bootstrap.servers": broker.address, "group.id": "theirs", "auto.offset.reset": "earliest"})
        member.subscribe(["events"])
        try:
            assert await asyncio.to_thread(member.poll, 60) is not None  # it has joined
            theirs = V08Committer(place, "theirs", 20)
            for call in (theirs.check, lambda: theirs.commit_if_possible({"events": {"0": 1}})):
                with pytest.raises(RefusedError, match="the group theirs is in use"):
                    await asyncio.to_thread(call)
        finally:
            await asyncio.to_thread(member.close)


async def test_task_continues_after_a_broker_restart(kafka: Any, cluster_client: Any) -> None:
    broker = await kafka("3.9.1", config=SHORT_SESSION)
    async with cluster_client(broker) as client:
        await create_and_lead(client)
        for number in range(4):
            await produce(client, 2, RecordCodec.SNAPPY, [b"%d" % number] * 50)
    (split,) = await asyncio.to_thread(planned, broker.port)
    reading = read_v08_split(split, ReadRequest(("offset",), fetch_size=100, timeout=60))
    found = (await asyncio.to_thread(next, reading)).to_pylist()
    assert 0 < len(found) < 200
    broker.kill()
    rest = asyncio.create_task(asyncio.to_thread(list, reading))
    await broker.start()
    found += [row for part in await rest for row in part.to_pylist()]
    assert [row["offset"] for row in found] == list(range(200))


async def test_authenticates_with_raw_sasl_tokens(kafka: Any, cluster_client: Any, tmp_path: Path) -> None:
    login = tmp_path / "jaas.conf"
    users = 'username="admin" password="a" user_admin="a" user_alice="wonder land"'
    login.write_text(f"KafkaServer {{\n{PLAIN} {users};\n}};\n")
    plain, secure = free_port(), free_port()
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{secure}",
        "sasl.enabled.mechanisms": "PLAIN",
    }
    broker = await kafka(
        "0.10.1.1", jvm=[f"-Djava.security.auth.login.config={login}"], port=plain, config=config
    )  # fmt: skip
    async with cluster_client(broker) as client:
        await create_and_lead(client)
        await produce(client, 1, RecordCodec.GZIP, [b"a", b"b"])
    await check_login(
        secure, plain, "SASL_PLAINTEXT", tmp_path, "closed the connection during authentication with PLAIN: .* is alice"
    )


async def test_authenticates_over_tls(kafka: Any, cluster_client: Any, tls_files: Any, tmp_path: Path) -> None:
    plain, secure, controller = free_port(), free_port(), free_port()
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_alice="wonder land";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls_files.zookeeper.key_store),
    }
    broker = await kafka("3.9.1", port=plain, config=config)
    async with cluster_client(broker) as client:
        await create_and_lead(client)
        await produce(client, 2, RecordCodec.ZSTD, [b"a", b"b"])
    trusting = {"kafka.ssl.ca.location": tls_files.authority}
    await check_login(
        secure,
        plain,
        "SASL_SSL",
        tmp_path,
        "refuses the authentication: SASL_AUTHENTICATION_FAILED .* is alice",
        **trusting,
    )
    options = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.username": "alice", "kafka.sasl.password": "x"}
    with pytest.raises(BrokerRejectedError, match=r"cannot speak TLS with broker .* its certificate is not accepted"):
        await asyncio.to_thread(planned, secure, **options)


async def check_login(secure: int, plain: int, protocol: str, folder: Path, refusal: str, **options: Any) -> None:
    """Alice reads with her password from a file, and not with another one; other listeners say what they are not."""
    (folder / "password").write_text("wonder land\n")
    options |= {"kafka.security.protocol": protocol, "kafka.sasl.username": "alice"}
    wanted = ReadRequest(("value",), timeout=20)
    file = {"kafka.sasl.password.file": folder / "password"}
    splits = await asyncio.to_thread(planned, secure, **options, **file)
    assert await asyncio.to_thread(read, splits, wanted) == [{"value": b"a"}, {"value": b"b"}]
    with pytest.raises(BrokerRejectedError, match=refusal):
        await asyncio.to_thread(planned, secure, **options, **{"kafka.sasl.password": "wrong"})
    bare = {name: value for name, value in options.items() if "ssl" not in name}
    bare |= {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.password": "wonder land"}
    with pytest.raises(BrokerRejectedError, match=r"ILLEGAL_SASL_STATE .*is this its SASL listener"):
        await asyncio.to_thread(planned, plain, **bare)
