"""Segments that real brokers put into tiered storage, by the plugin of Kafka's tests, beside those on the disk."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from consumerd.operate.migrate.archived_topics import find_archived
from consumerd.storage.archives.sources import find_sources
from consumerd.wire.v08.records import RecordCodec
from tests.interop.test_record_conversions import COUNT, VALUES, Topic
from tests.interop.test_stored_segments import called, said
from tests.support.kafka import RELEASES, kafka_jars
from tests.support.maven import fetch_jars

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]
VERSIONS = ["3.9.1", *(pytest.param(version, marks=pytest.mark.long) for version in ("4.1.0", "4.3.1"))]
PATIENCE = 60.0
#: Batches, each of which fills a segment; so many of the last segments stay on the disk.
BATCHES, LOCAL = 8, 3
PACKAGE = "org.apache.kafka.server.log.remote"
CONFIG = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": f"{PACKAGE}.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
    "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 200,
}


def copied(tier: Path) -> int:
    """How many segments are in the tier as a whole: a file of leader epochs is copied after its log."""
    return sum(path.stat().st_size > 0 for path in tier.rglob("*.leader_epoch_checkpoint"))


@pytest.mark.parametrize("version", VERSIONS)
async def test_tiered_segments_and_those_on_the_disk_are_one_log(
    kafka: Any, cluster_client: Any, tmp_path: Path, version: str
) -> None:
    plugin = fetch_jars([f"org.apache.kafka:kafka-storage:{version}:test"])
    jars = [*kafka_jars(RELEASES[version]), *(jar for jar in plugin if jar.name.endswith("-test.jar"))]
    tier = tmp_path / "tier"
    broker = await kafka(version, jars=jars, partitions=1, config=CONFIG | {"rsm.config.dir": str(tier)})
    disk = broker.log_directory / "events-0"
    async with cluster_client(broker) as client:
        topic = Topic(client, "events")
        size = "segment_bytes" if RELEASES[version].number < (4,) else "internal_segment_bytes"
        await topic.create(
            remote_storage_enable="true", **{size: "15000"}, retention_ms="-1", local_retention_bytes="25000"
        )
        for _ in range(BATCHES):
            await topic.produce(2, RecordCodec.NONE)
        async with asyncio.timeout(PATIENCE):
            while copied(tier) < BATCHES - 1 or len(list(disk.glob("*.log"))) > LOCAL:
                await asyncio.sleep(0.1)  # nothing tells when a segment was copied or deleted
    await broker.stop()
    archive = tmp_path / "copy"
    shutil.copytree(tier, archive / "tier")
    shutil.copytree(disk, archive / "disk" / disk.name)
    *_, summary = said("log", "verify", "--json", str(archive))
    assert {(row["start"], row["end"]) for row in summary["summary"]["partitions"]} == {
        (0, (BATCHES - 1) * COUNT),
        ((BATCHES - LOCAL) * COUNT, BATCHES * COUNT),
    }
    *folders, _ = said("log", "ls", "--json", str(archive))
    assert {(each["state"], each["segments"], each["read"]) for each in folders} == {
        ("tiered", BATCHES - 1, True),
        ("", LOCAL, True),
    }
    assert len({each["topic_id"] for each in folders}) == 1
    called("log", "export", "-o", "out", str(archive), cwd=tmp_path)
    texts = [file.read_text() for file in sorted(tmp_path.glob("out/events/0/*"))]
    assert [json.loads(row)["offset"] for text in texts for row in text.splitlines()] == list(range(BATCHES * COUNT))
    (replayed,) = find_archived(find_sources([str(archive)]))
    found = [message for piece in replayed.read() for message in piece]
    assert [message.offset for message in found] == list(range(BATCHES * COUNT))
    assert [message.payload for message in found] == VALUES * BATCHES
    assert (replayed.damage, replayed.notes) == ([], [])
