"""Readers whose log becomes another one, on real brokers: a topic that is made again, an unclean election.

Kafka's own consumer shows what a reader can survive.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kazoo.client import KazooClient

from consumerd.base.java import JavaRuntime
from consumerd.demo.ledger import digest
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.operate.admin.diagnosis import diagnose_once
from consumerd.operate.admin.findings import GroupFindingKind
from consumerd.operate.admin.v08.broker_groups import BrokerGroups
from consumerd.operate.migrate.archived_topics import find_archived
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.source.offsets import entries
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.v08.reading import read_v08_split
from consumerd.storage.archives.sources import find_sources
from consumerd.wire.registry.paths import topic_path
from tests.interop.group_harness import PATIENCE, TOPIC, Group
from tests.interop.log_identity import (
    FIRST,
    OURS,
    PLACE,
    SLOW_FETCH,
    SLOW_PAUSE,
    UNREPLICATED,
    Readers,
    elect_the_follower,
    leave_the_follower_behind,
    recreated_behind_a_slow_handler,
    recreated_while_frozen,
)
from tests.interop.test_stored_segments import compared
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
#: Seconds in which readers get what they will ever get.
ENOUGH = 30.0


def end(group: Group) -> None:
    for daemon in group.daemons:
        daemon.kill()
    for child in group.foreign:
        child.end_now()


@pytest_asyncio.fixture
async def readers(
    request: pytest.FixtureRequest, kafka: Any, cluster_client: Any, java: JavaRuntime, tmp_path: Path
) -> AsyncIterator[Readers]:
    """A topic on one broker of the version that the test is parametrised with."""
    broker = await kafka(request.param, partitions=1, config={"delete.topic.enable": "true"})
    async with cluster_client(broker) as client:
        group = Group({broker.broker_id: broker}, client, tmp_path, java)
        made = Readers(group, [broker.broker_id])
        await made.create()
        try:
            yield made
        finally:
            end(group)


@pytest_asyncio.fixture
async def replicated(
    request: pytest.FixtureRequest,
    java: JavaRuntime,
    kafka_cluster: Callable[..., KafkaCluster],
    tmp_path: Path,
    cluster_client: Any,
) -> AsyncIterator[Readers]:
    """A topic on two of three brokers of the version that the test is parametrised with; any replica may lead it."""
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": 1}
    brokers = kafka_cluster(request.param, partitions=1, config=config)
    async with brokers, cluster_client(*brokers.brokers.values()) as client:
        group = Group(brokers.brokers, client, tmp_path, java)
        made = Readers(group, [1, 2])
        await made.create()
        await made.wait_for_leader(1, in_sync=[1, 2])
        try:
            yield made
        finally:
            end(group)


@pytest.mark.parametrize("readers", ["4.1.0", pytest.param("3.9.1", marks=pytest.mark.long)], indirect=True)
async def test_delivers_all_of_a_topic_that_was_made_again_while_it_was_frozen(readers: Readers) -> None:
    texts = await readers.write(FIRST)
    await readers.read_by_ours()
    await readers.until_all_have(texts)
    texts = await recreated_while_frozen(readers)
    ours, _ = await readers.missing_after(texts, ENOUGH)
    assert ours == 0


@pytest.mark.parametrize("readers", ["4.1.0"], indirect=True)
async def test_delivers_all_of_a_topic_that_was_made_again_behind_a_slow_handler(readers: Readers) -> None:
    texts = await readers.write(FIRST)
    await readers.read_by_ours(pause=SLOW_PAUSE, fetch=SLOW_FETCH)
    await readers.until_all_have(texts)
    texts = await recreated_behind_a_slow_handler(readers)
    ours, _ = await readers.missing_after(texts, 2 * ENOUGH)
    assert ours == 0


@pytest.mark.parametrize("readers", ["1.1.1"], indirect=True)
async def test_group_in_zookeeper_reads_all_of_a_topic_that_was_made_again_while_it_was_stopped(
    readers: Readers, zk_root: str
) -> None:
    """The offset node is older than the topic's node; messages that were read before have the same offsets."""
    texts = await readers.write(150)
    await readers.read_by_ours(zookeeper=zk_root)
    await readers.until_ours_has(texts)
    await readers.stop()
    texts = await readers.recreate(200)
    await readers.read_by_ours(zookeeper=zk_root)
    ours, _ = await readers.missing_after(texts, ENOUGH)
    assert ours == 0
    (event,) = readers.events("log_replaced")
    assert (event["offset"], event["continue_at"]) == (150, 0)


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
@pytest.mark.parametrize("readers", ["1.1.1"], indirect=True)
async def test_group_that_begins_at_ends_reads_all_of_a_partition_that_is_added(
    readers: Readers, coordination: str, zk_root: str, zk: KazooClient
) -> None:
    before = await readers.write(20)
    await readers.read_by_ours(fetch={"initial": "latest"}, zookeeper=zk_root if coordination == "zookeeper" else None)
    await readers.until_started()
    assignment = {str(number): list(readers.replicas) for number in range(2)}
    zk.set(topic_path(TOPIC), json.dumps({"version": 1, "partitions": assignment}).encode())
    texts = await readers.write_to_added(34)
    ours, _ = await readers.missing_after(texts, ENOUGH)
    assert ours == 0
    assert not readers.delivered_to_ours().keys() & set(map(digest, before))


@pytest.mark.parametrize("readers", ["3.9.1"], indirect=True)
async def test_commits_the_epoch_and_the_topic_of_a_position(readers: Readers) -> None:
    """For members of every kind: Java's consumer compares the epoch when it takes over."""
    texts = await readers.write(FIRST)
    await readers.read_by_ours()
    await readers.until_all_have(texts)
    committed = (await KafkaOffsetStore(readers.client, OURS).read([PLACE]))[PLACE]
    assert committed.leader_epoch is not None
    assert committed.leader_epoch >= 0
    assert committed.notes.log.topic_id == readers.client.metadata.topic_id(TOPIC)
    await readers.stop()
    readers.theirs = await readers.group.java_member("range", OURS)  # and it reads on where we stopped
    more = await readers.write(10)
    _, theirs = await readers.missing_after(more, ENOUGH)
    assert theirs == 0
    assert readers.delivered_to_theirs().keys() == set(map(digest, more))


@pytest.mark.parametrize(
    "replicated", ["3.9.1", *(pytest.param(name, marks=pytest.mark.long) for name in ("2.8.2", "4.3.1"))], indirect=True
)
async def test_consumer_of_java_delivers_all_after_an_unclean_election(replicated: Readers) -> None:
    """The change can be survived: Kafka's own consumer commits the epoch of what it read last, and asks for its end."""
    texts = await replicated.write(FIRST)
    await replicated.read_by_theirs()
    lost = await leave_the_follower_behind(replicated)
    await replicated.until_all_have(texts + lost)
    await replicated.stop()
    texts = await elect_the_follower(replicated)
    await replicated.read_by_theirs()
    _, theirs = await replicated.missing_after(texts, ENOUGH)
    assert theirs == 0
    assert max(replicated.delivered_to_theirs().values()) == 1


@pytest.mark.parametrize(
    "replicated", ["3.9.1", *(pytest.param(name, marks=pytest.mark.long) for name in ("2.8.2", "4.3.1"))], indirect=True
)
async def test_delivers_all_after_an_unclean_election_while_it_was_stopped(replicated: Readers) -> None:
    texts = await replicated.write(FIRST)
    await replicated.read_by_ours()
    lost = await leave_the_follower_behind(replicated)
    await replicated.until_all_have(texts + lost)
    await replicated.stop()
    texts = await elect_the_follower(replicated)
    findings = diagnose_once(await BrokerGroups(replicated.client).diagnosis_input(OURS))
    (found,) = (each for each in findings if each.kind is GroupFindingKind.TRUNCATED_LOG)
    assert f"that epoch ends at {FIRST}: the log was cut off there" in found.says
    await replicated.read_by_ours()
    ours, _ = await replicated.missing_after(texts, ENOUGH)
    assert ours == 0


@pytest.mark.parametrize(
    "replicated", ["3.9.1", *(pytest.param(name, marks=pytest.mark.long) for name in ("2.8.2", "4.3.1"))], indirect=True
)
async def test_delivers_all_once_after_an_unclean_election_while_it_ran(replicated: Readers) -> None:
    texts = await replicated.write(FIRST)
    await replicated.read_by_ours()
    lost = await leave_the_follower_behind(replicated)
    await replicated.until_all_have(texts + lost)
    texts = await elect_the_follower(replicated)
    ours, _ = await replicated.missing_after(texts, ENOUGH)
    assert ours == 0
    assert max(replicated.delivered_to_ours().values()) == 1


@pytest.mark.long  # every day: tests/unit/spark/source/v08/test_epochs.py, with a broker in memory
@pytest.mark.parametrize("replicated", ["2.8.2", "3.9.1", "4.3.1"], indirect=True)
async def test_stream_of_spark_reads_all_after_an_unclean_election_while_it_was_stopped(replicated: Readers) -> None:
    servers = ",".join(broker.address for broker in replicated.brokers.values())

    def follower(**options: str) -> StreamPlanner:
        return StreamPlanner(read_options({"bootstrap": servers, "subscribe": TOPIC, **options}))

    def read(start: Any, end: Any, planner: StreamPlanner) -> list[bytes]:
        request = ReadRequest(("value",), timeout=ENOUGH)
        batches = (batch for split in planner.splits(start, end) for batch in read_v08_split(split, request))  # type: ignore[arg-type]
        return [row["value"] for batch in batches for row in batch.to_pylist()]

    texts = await replicated.write(FIRST)
    texts += await leave_the_follower_behind(replicated)
    planner = follower(startingOffsets="earliest")
    beginning = await asyncio.to_thread(planner.initial)
    reached = await asyncio.to_thread(planner.latest, beginning, None)
    assert await asyncio.to_thread(read, beginning, reached, planner) == texts
    texts = await elect_the_follower(replicated)
    with pytest.raises(DataLossError, match=f"was read up to {FIRST + UNREPLICATED} .* was cut off at offset {FIRST}"):
        await asyncio.to_thread(follower().latest, reached, None)
    planner = follower(failOnDataLoss="false")
    parted = await asyncio.to_thread(planner.latest, reached, None)
    assert [offset for _, offset in entries(parted)] == [FIRST]
    end = await asyncio.to_thread(planner.latest, parted, None)
    assert await asyncio.to_thread(read, parted, end, planner) == texts


@pytest.mark.long
@pytest.mark.parametrize("replicated", ["2.8.2", "3.9.1", "4.3.1"], indirect=True)
async def test_disks_after_an_unclean_election_are_what_the_brokers_own_tool_sees(
    replicated: Readers, tmp_path: Path
) -> None:
    """The disk of the former leader as it was, and as it is once its log was cut off, beside that of the new one."""
    leader, follower = replicated.replicas
    texts = await replicated.write(FIRST)
    await leave_the_follower_behind(replicated)
    texts += await elect_the_follower(replicated)
    disks = {name: tmp_path / "disks" / name / f"{TOPIC}-0" for name in ("former", "cut", "new")}
    brokers = dict(zip(disks, (replicated.brokers[id_] for id_ in (leader, leader, follower)), strict=True))
    shutil.copytree(brokers["former"].log_directory / f"{TOPIC}-0", disks["former"])
    await brokers["cut"].start(PATIENCE)
    await replicated.wait_for_leader(follower, in_sync=[leader, follower])
    for name in ("cut", "new"):
        brokers[name].kill()
        shutil.copytree(brokers[name].log_directory / f"{TOPIC}-0", disks[name])
    values = {}
    for name, disk in disks.items():
        _, records = await compared(brokers[name], sorted(disk.glob("*.log")))
        values[name] = [b64decode(record["value_base64"]) for record in records]
    assert len(values["former"]) == FIRST + UNREPLICATED
    assert values["cut"] == values["new"] == texts
    (replayed,) = find_archived(find_sources([str(tmp_path / "disks")]))
    assert [message.payload for piece in replayed.read() for message in piece] == texts
    (note,) = replayed.notes
    assert f"{disks['former']}: from offset {FIRST} on it has leader epoch " in note
    assert f"an election left out {UNREPLICATED} offsets of it" in note
