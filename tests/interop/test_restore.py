"""An archive of real brokers replayed into a new cluster: every message, and the groups continue."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import random
import shutil
from operator import itemgetter
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
#: Messages that a group handled before the end, at least; it is stopped in the middle.
FIRST = 13
PATIENCE = 90.0


def settings(**more: Any) -> V08ProducerSettings:
    return V08ProducerSettings(codec=RecordCodec.GZIP, create_topics=True, **more)


async def produce(client: ClusterClient, partitions: int, *, since: int = 1_500_000_000_000) -> None:
    """Keys, headers, tombstones and old timestamps; transactions that are committed, and one that is aborted."""
    make = functools.partial(V08Producer, client, clock=SystemClock(), rng=random.Random(1))
    async with make(settings()) as producer:
        for number in range(40):
            value = None if number % 10 == 9 else b"%d" % number
            headers = (("n", b"%d" % number), ("none", None)) if number % 3 == 0 else ()
            await producer.send(
                "events", value, key=b"k%d" % number, partition=number % partitions,
                timestamp=since + number, headers=headers,
            )  # fmt: skip
    async with make(settings(transactional_id="a-test", idempotent=True)) as producer:
        await producer.init_transactions()
        for kind in (b"committed", b"aborted", b"committed too"):
            try:
                async with producer.transaction() as transaction:
                    sent = [
                        await transaction.send("events", kind, partition=number % partitions)
                        for number in range(2 * partitions)
                    ]
                    for delivery in sent:  # messages of an aborted transaction, too, are in the log
                        await delivery
                    if kind == b"aborted":
                        raise RuntimeError(kind)
            except RuntimeError:
                assert kind == b"aborted"
    async with make(settings(transactional_id="a-test", idempotent=True)) as producer:
        await producer.init_transactions()  # returns once the last transaction has ended in all partitions


async def content(client: ClusterClient, partitions: int) -> list[list[Record]]:
    """What readers of committed messages get, without offsets."""
    log = TargetLog(client, read_committed=True)
    found = []
    for number in range(partitions):
        bounds = await log.bounds("events", number)
        records = [record async for piece in log.read("events", number, *bounds) for record in piece]
        found.append([record._replace(offset=0, next_offset=0) for record in records])
    return found


Received = list[tuple[int, int, bytes | None]]


def messages(found: list[list[Record]]) -> Received:
    """What `receive` returns of these, partition by partition."""
    return [(number, each.timestamp, each.payload) for number, records in enumerate(found) for each in records]


def in_order(received: Received) -> Received:
    """What was received, partition by partition."""
    return sorted(received, key=itemgetter(0))


def member(address: str, group: str, reset: str) -> Any:
    """A member of a group, by a client of another project."""
    import aiokafka

    return aiokafka.AIOKafkaConsumer(
        "events", bootstrap_servers=address, group_id=group, enable_auto_commit=False,
        auto_offset_reset=reset, isolation_level="read_committed",
    )  # fmt: skip


async def receive(address: str, group: str, count: int, *, reset: str) -> Received:
    """What a member of another project gets, `count` messages at least: partition, timestamp, value. It commits."""
    found: Received = []
    async with member(address, group, reset) as consumer, asyncio.timeout(PATIENCE):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=500, max_records=5)).values():
                found += [(each.partition, each.timestamp, each.value) for each in records]
        await consumer.commit()
    return found


async def test_archive_of_a_broker_is_replayed_into_a_new_one_and_its_groups_continue(
    kafka: Any, cluster_client: Any, tmp_path: Path, missing: Any
) -> None:
    if importlib.util.find_spec("aiokafka") is None:
        missing("aiokafka is not installed: see the dependency group `dev`")
    old, new = await asyncio.gather(kafka("3.9.1", partitions=2), kafka("3.9.1", partitions=1))
    async with cluster_client(old) as client:
        await produce(client, 2)
        before = await content(client, 2)
    assert [len(each) for each in before] == [24, 24]
    everything = messages(before)
    handled = {group: await receive(old.address, group, FIRST, reset="earliest") for group in ("billing", "audit")}
    old.kill()
    archive = tmp_path / "copy"
    shutil.copytree(old.log_directory, archive)
    command = ("log", "export", "--to-bootstrap-server", new.address, "--verify", "--json", str(archive))
    done = await run_command(tmp_path, *command)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    async with cluster_client(new) as client:
        assert await content(client, 2) == before

    move = ("log", "offsets", "--to-bootstrap-server", new.address, "--json", str(archive))
    planned = await run_command(tmp_path, *move)
    assert planned.returncode == ExitCode.OK, planned.stderr
    assert {each["group"] for each in json.loads(planned.stdout)["moves"] if each["moves"]} == {"audit", "billing"}
    assert "dry run, nothing was changed" in planned.stderr
    for moved in (4, 0):
        done = await run_command(tmp_path, *move, "--execute", "--verify")
        assert done.returncode == ExitCode.OK, done.stderr
        assert sum(each["moves"] for each in json.loads(done.stdout)["moves"]) == moved
    rest = await receive(new.address, "billing", len(everything) - len(handled["billing"]), reset="none")
    assert in_order(handled["billing"] + rest) == everything
    async with member(new.address, "audit", "none") as alive, asyncio.timeout(PATIENCE):
        await alive.getone()
        refused = await run_command(tmp_path, *move, "--execute")
    assert refused.returncode == ExitCode.REFUSED
    assert "refused for 2 of 2 groups: group 'audit' has members on the target (aiokafka" in refused.stderr
    problems = json.loads(refused.stdout)["problems"]
    assert sum("group 'billing': events/" in each and "would move backwards" in each for each in problems) == 2
    assert not list(tmp_path.glob("offsets-*.json"))
