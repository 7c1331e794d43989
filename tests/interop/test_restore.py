"""An archive of real brokers replayed into a new cluster: every message, and the groups continue."""

from __future__ import annotations

import asyncio
import functools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.net.client.cluster import ClusterClient
from consumerd.producer import V08Producer, V08ProducerSettings
from consumerd.wire.v08.records import Record, RecordCodec
from tests.interop.test_migrate_offsets import run_command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def settings(**more: Any) -> V08ProducerSettings:
    return V08ProducerSettings(codec=RecordCodec.GZIP, create_topics=True, **more)


async def produce(client: ClusterClient, partitions: int) -> None:
    """Keys, headers, tombstones and old timestamps; a transaction that is committed, and one that is aborted."""
    make = functools.partial(V08Producer, client, clock=SystemClock(), rng=random.Random(1))
    async with make(settings()) as producer:
        for number in range(40):
            value = None if number % 10 == 9 else b"%d" % number
            headers = (("n", b"%d" % number), ("none", None)) if number % 3 == 0 else ()
            await producer.send(
                "events", value, key=b"k%d" % number, partition=number % partitions,
                timestamp=1_500_000_000_000 + number, headers=headers,
            )  # fmt: skip
    async with make(settings(transactional_id="a-test", idempotent=True)) as producer:
        await producer.init_transactions()
        for kind in (b"committed", b"aborted", b"committed too"):
            try:
                async with producer.transaction() as transaction:
                    for number in range(2 * partitions):
                        await transaction.send("events", kind, partition=number % partitions)
                    if kind == b"aborted":
                        raise RuntimeError(kind)
            except RuntimeError:
                assert kind == b"aborted"


async def content(client: ClusterClient, partitions: int) -> list[list[Record]]:
    """What readers of committed messages get, without offsets."""
    log = TargetLog(client, read_committed=True)
    found = []
    for number in range(partitions):
        bounds = await log.bounds("events", number)
        records = [record async for piece in log.read("events", number, *bounds) for record in piece]
        found.append([record._replace(offset=0, next_offset=0) for record in records])
    return found


async def test_archive_of_a_broker_is_replayed_into_a_new_one(kafka: Any, cluster_client: Any, tmp_path: Path) -> None:
    old, new = await asyncio.gather(kafka("3.9.1", partitions=2), kafka("3.9.1", partitions=1))
    async with cluster_client(old) as client:
        await produce(client, 2)
        before = await content(client, 2)
    assert [len(each) for each in before] == [24, 24]
    old.kill()
    archive = tmp_path / "copy"
    shutil.copytree(old.log_directory, archive)
    command = ("log", "export", "--to-bootstrap-server", new.address, "--verify", "--json", str(archive))
    done = await run_command(tmp_path, *command)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    async with cluster_client(new) as client:
        assert await content(client, 2) == before
