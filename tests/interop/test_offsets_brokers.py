"""Committed offsets in Kafka, on real brokers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.settings.group import CommitSection
from consumerd.demo.processes import DaemonProcess
from consumerd.member.offsets.choice import OffsetSettings, make_store
from consumerd.member.offsets.dual_store import DualOffsetStore
from consumerd.member.offsets.errors import OffsetsHeldError, OffsetsUnavailableError
from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore
from consumerd.member.offsets.metadata import OffsetNotes
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import owner_path
from consumerd.wire.v08 import NO_UUID
from tests.support.kafka import RELEASES
from tests.support.topics import create_and_lead

pytestmark = pytest.mark.interop
PLACE = TopicPartition.numbered("events", 0)
#: The newest one reads offsets by topic ids.
EVERYDAY = ("0.8.2.2", "4.3.1")
OTHER = TopicPartition.numbered("events", 1)


class Nobody:
    """A member that the coordinator never heard of."""

    session_id = 7
    generation = 3
    member_id = "nobody"
    instance_id = None


@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_reads_back_commits_and_rejects_other_members(version: str, kafka: Any, cluster_client: Any) -> None:
    broker = await kafka(version)
    async with cluster_client(broker) as client:
        await create_and_lead(client, partitions=2)
        await client.retrying("find the coordinator", lambda: client.coordinator("group"))
        named_by_id = client.known_topic_id("events") != NO_UUID
        assert named_by_id is (RELEASES[version].number >= (2, 8))  # since 4.2 offsets are read by it
        store = KafkaOffsetStore(client, "group", settings=CommitSection(metadata="by a test", retention=3600))
        assert await client.retrying("load", lambda: store.load([PLACE, OTHER])) == {}
        result = await store.commit({PLACE: 5, OTHER: 0}, session_id=0)
        assert result.committed == {PLACE, OTHER}
        assert not result.lost
        assert await store.load([PLACE, OTHER]) == {PLACE: 5, OTHER: 0}
        assert await store.read([PLACE]) == {PLACE: CommittedOffset(5, "by a test")}
        if RELEASES[version].number >= (0, 10, 2):
            assert await store.read(None) == {
                PLACE: CommittedOffset(5, "by a test"),
                OTHER: CommittedOffset(0, "by a test"),
            }

        if RELEASES[version].number >= (0, 9):  # 0.8 has no members yet
            stranger = KafkaOffsetStore(client, "group", cast("Any", Nobody()))
            result = await stranger.commit({PLACE: 99}, session_id=7)
            assert result.lost == {PLACE}
            assert not result.committed
            # A generation that is over is not even sent.
            assert (await stranger.commit({PLACE: 99}, session_id=6)).lost == {PLACE}
            assert await store.load([PLACE]) == {PLACE: 5}

        await client.find_coordinators(["one", "two"])  # with one request, since 3.0
        assert await client.coordinator("one") == await client.coordinator("two")
        # A position of a topic of the same name that was deleted: since 4.2 the request names the one that it is of.
        former = {PLACE: OffsetNotes(LogId(bytes([7] * 16)))}
        result = await store.commit({PLACE: 6, OTHER: 1}, session_id=0, notes=former)
        refused = {PLACE} if RELEASES[version].number >= (4, 2) else set()
        assert (result.committed, set(result.refused)) == (frozenset({PLACE, OTHER} - refused), refused)

        await broker.stop()
        with pytest.raises(OffsetsUnavailableError):
            await store.commit({PLACE: 6}, session_id=0)


@pytest.mark.parametrize("version", ["0.8.2.2", pytest.param("0.10.1.1", marks=pytest.mark.long)])
async def test_writes_offsets_to_both_stores_like_old_consumers_with_dual_commit(
    version: str, kafka: Any, cluster_client: Any, zk_root: str, zk: Any
) -> None:
    """Golden: OFFSET_FETCH 0 and 1 tell the same of a group with dual.commit.enabled=true."""
    broker = await kafka(version)
    async with (
        cluster_client(broker) as client,
        Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as session,
    ):
        await create_and_lead(client, partitions=2)
        await client.retrying("find the coordinator", lambda: client.coordinator("group"))
        await session.create_ephemeral(owner_path("group", PLACE), b"group_me-0", wait=1)
        store = make_store(OffsetSettings(storage="both"), "group", client=client, zk=session, claimed=True)
        assert isinstance(store, DualOffsetStore)
        by_version = [KafkaOffsetStore(client, "group", settings=CommitSection(version=each)) for each in (0, 1)]
        await client.retrying("load", lambda: by_version[1].load([PLACE]))
        assert await store.load([PLACE, OTHER]) == {}
        # ZooKeeper rejects the commit of a partition without an owner, and Kafka never gets it.
        result = await store.commit({PLACE: 5, OTHER: 6}, session_id=session.session_id)
        assert result.committed == {PLACE}
        assert result.lost == {OTHER}
        assert [await each.load([PLACE, OTHER]) for each in by_version] == [{PLACE: 5}, {PLACE: 5}]
        assert zk.get("/consumers/group/offsets/events/0")[0] == b"5"
        # Either is ahead: the larger one counts, and the next commit mends the other.
        await by_version[0].commit({PLACE: 8}, session_id=0)
        assert (await by_version[1].load([PLACE]), await store.load([PLACE])) == ({PLACE: 5}, {PLACE: 8})
        await by_version[1].commit({PLACE: 9}, session_id=0)
        assert (await by_version[0].load([PLACE]), await store.load([PLACE])) == ({PLACE: 8}, {PLACE: 9})
        await store.commit({PLACE: 10}, session_id=session.session_id)
        assert [await each.load([PLACE]) for each in by_version] == [{PLACE: 10}] * 2
        # A member without a claim in ZooKeeper finds there that another member owns the partition.
        fixed = make_store(OffsetSettings(storage="both"), "group", client=client, zk=session)
        result = await fixed.commit({OTHER: 3}, session_id=1)
        assert result.committed == {OTHER}
        assert not result.lost
        with pytest.raises(OffsetsHeldError, match="cannot commit the offset of events/0 to ZooKeeper"):
            await fixed.commit({PLACE: 11}, session_id=1)
        assert zk.get("/consumers/group/offsets/events/0")[0] == b"10"


@pytest.mark.long
async def test_unchanged_offset_does_not_expire_while_its_daemon_runs(
    kafka: Any, cluster_client: Any, tmp_path: Path
) -> None:
    """Brokers before 2.1 forget by age alone, and later ones do so where the group has no members, as here."""
    broker = await kafka("0.10.1.1", config={"offsets.retention.check.interval.ms": 300})
    async with cluster_client(broker) as client:
        await create_and_lead(client)
        await client.retrying("find the coordinator", lambda: client.coordinator("group"))
        store = KafkaOffsetStore(client, "group")

        async def held() -> dict[TopicPartition, int]:
            return dict(await client.retrying("load", lambda: store.load([PLACE])))

        config: dict[str, dict[str, Any]] = {
            "group": {"id": "group", "coordination": "fixed", "partitions": {"events": [0]}},
            "kafka": {"bootstrap": [broker.address]},
            "commit": {"interval": 0.2, "retention": 3.0},
            "handler": {"name": "print"},
        }
        daemon = DaemonProcess(tmp_path, config, name="member")
        try:
            await daemon.start()
            async with asyncio.timeout(120):
                while await held() != {PLACE: 0}:
                    await asyncio.sleep(0.1)
            for _ in range(70):
                await asyncio.sleep(0.1)
                assert await held() == {PLACE: 0}
            daemon.terminate()
            assert await daemon.wait(60.0) == ExitCode.OK
            async with asyncio.timeout(120):
                while await held():
                    await asyncio.sleep(0.1)
        finally:
            daemon.child.kill()
