"""`consumerd migrate offsets` within one real cluster: both ways, under other names, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import clean_environment, consumerd_command
from consumerd.handlers.forward.identity import read_identity
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.member.offsets.store import UnclaimedZooKeeperOffsetStore
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.zk.session import Session
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.registry.paths import id_path
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.registry.v08.subscription import format_subscription_v08
from tests.support.topics import create_and_lead

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
PLACES = [TopicPartition.numbered("events", number) for number in range(3)]


async def run_migrate(
    directory: Path, *arguments: str, code: ExitCode = ExitCode.OK, group: str = "old"
) -> tuple[dict[str, Any], str]:
    """The output of `consumerd migrate offsets`, as JSON and on standard error."""
    done = await run_command(directory, "migrate", "offsets", "--group", group, *arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else {}, done.stderr


async def run_command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = consumerd_command(*arguments)
    return await asyncio.to_thread(
        subprocess.run, command, cwd=directory, env=clean_environment(), capture_output=True, text=True, check=False
    )


async def produce(client: ClusterClient, count: int) -> None:
    """`count` messages to each of the places; creates the topic."""
    await create_and_lead(client, partitions=len(PLACES))
    settings = V08ProducerSettings()
    async with V08Producer(client, settings, clock=SystemClock(), rng=random.Random(1)) as producer:
        for number in range(count):
            for place in PLACES:
                await producer.send("events", b"%d" % number, partition=place.partition)
        await producer.flush()


@pytest.mark.parametrize("version", ["0.8.2.2", pytest.param("0.10.1.1", marks=pytest.mark.long)])
async def test_migrates_offsets_to_kafka_and_back(
    version: str, kafka: Any, cluster_client: Any, zk_root: str, tmp_path: Path
) -> None:
    broker = await kafka(version, partitions=3)

    migrate = functools.partial(run_migrate, tmp_path)
    to_kafka = ("--from-zookeeper", zk_root, "--to-bootstrap-server", broker.address)
    to_zookeeper = ("--from-bootstrap-server", broker.address, "--to-zookeeper", zk_root)
    async with (
        cluster_client(broker) as client,
        Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as session,
    ):
        await produce(client, 10)
        stored = UnclaimedZooKeeperOffsetStore(session, "old")
        await stored.commit({PLACES[0]: 4, PLACES[1]: 10}, session_id=0)
        await client.retrying("find the coordinator", lambda: client.coordinator("new"))
        held = {group: KafkaOffsetStore(client, group) for group in ("old", "new")}
        await client.retrying("load", lambda: held["new"].load(PLACES))

        # As docs/leaving.md has it for clusters that are upgraded in place.
        page = Path(__file__).resolve().parents[2] / "docs" / "leaving.md"
        (block,) = re.findall(r"```sh\n# upgrade\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        text = block.replace("zk:2181/kafka", zk_root).replace("kafka:9092", broker.address).replace("events", "old")
        for line in text.splitlines():
            program, *arguments = line.split()
            assert program == "consumerd"
            ended = await run_command(tmp_path, *arguments)
            assert ended.returncode == ExitCode.OK, ended.stderr
        assert await held["old"].load(PLACES) == {PLACES[0]: 4, PLACES[1]: 10}

        # Shown first, then done, under another name.
        shown, told = await migrate(*to_kafka, "--to-group", "new")
        assert (shown["executed"], [move["after"] for move in shown["moves"]]) == (False, [4, 10])
        assert [(move["lag"], move["from"]) for move in shown["moves"]] == [(6, {"events/0": 4}), (0, {"events/1": 10})]
        assert "dry run" in told
        assert await held["new"].load(PLACES) == {}
        done, _ = await migrate(*to_kafka, "--to-group", "new", "--execute")
        assert done["executed"]
        assert await held["new"].load(PLACES) == {PLACES[0]: 4, PLACES[1]: 10}
        again, _ = await migrate(*to_kafka, "--to-group", "new", "--execute")
        assert not any(move["moves"] for move in again["moves"])

        # No offset moves backwards silently, nor beyond the log.
        await held["new"].commit({PLACES[0]: 7}, session_id=0)
        refused, told = await migrate(*to_kafka, "--to-group", "new", "--execute", code=ExitCode.REFUSED)
        assert "events/0: it would move backwards by 3" in told
        assert not refused["executed"]
        assert (await held["new"].load(PLACES))[PLACES[0]] == 7
        await stored.commit({PLACES[2]: 99}, session_id=0)
        _, told = await migrate(*to_kafka, "--execute", code=ExitCode.REFUSED)
        assert "events/2: the broker has 0 to 10" in told

        # And back, where a member lives meanwhile.
        node = id_path("old", "old_me")
        text = format_subscription_v08(StaticSubscription({"events": 1}), 0)
        await session.create_ephemeral(node, text.encode(), wait=1)
        _, told = await migrate(*to_zookeeper, "--to-group", "old", "--execute", group="new", code=ExitCode.REFUSED)
        assert "group 'old' on the target: member old_me is alive and subscribes" in told
        _, told = await migrate(*to_kafka, "--topic", "events", "--execute", code=ExitCode.REFUSED)
        assert "group 'old': member old_me is alive and subscribes" in told
        await session.delete(node)
        await migrate(*to_zookeeper, "--to-group", "old", "--execute", group="new")
        assert await stored.load(PLACES) == {PLACES[0]: 7, PLACES[1]: 10, PLACES[2]: 99}
        backups = [json.loads(path.read_text("utf-8")) for path in tmp_path.glob("offsets-*.json")]
        assert sorted((each["groups"] for each in backups), key=str) == [
            {"new": {"events": {"0": None, "1": None}}},
            {"old": {"events": {"0": 4}}},
            {"old": {"events": {"0": None, "1": None}}},
        ]

        _, told = await migrate(*to_kafka, "--topic", "nothing", code=ExitCode.NOT_FOUND)
        assert "committed no offsets of 'nothing'" in told
        _, told = await migrate("--from-zookeeper", zk_root, code=ExitCode.USAGE)
        assert "give --to-zookeeper, --to-bootstrap-server, or --to-config" in told


async def test_group_of_0_8_continues_at_translated_offsets(
    kafka: Any, cluster_client: Any, zk_root: str, tmp_path: Path
) -> None:
    old, new = await kafka("0.8.2.2", partitions=3), await kafka("3.9.1")
    sides = ("--from-zookeeper", zk_root, "--to-bootstrap-server", new.address)
    async with (
        cluster_client(old) as client,
        cluster_client(new) as target,
        Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as session,
    ):
        await produce(client, 20)
        stored = UnclaimedZooKeeperOffsetStore(session, "old")
        await stored.commit({PLACES[0]: 5, PLACES[1]: 20}, session_id=0)  # and nothing of the third
        mirror = (*sides, "--topic", "events", "--rename", "events=moved", "--exit-at-end")
        # All are in one partition there: it continues at the smallest offset.
        done = await run_command(tmp_path, "mirror", *mirror, "--group", "leave", "--partitions", "1")
        assert done.returncode == ExitCode.OK, done.stderr
        arguments = (*sides, "--rename", "events=moved")
        _, told = await run_migrate(tmp_path, *arguments, code=ExitCode.USAGE)
        assert "no broker in common" in told
        _, told = await run_migrate(tmp_path, *sides, "--translate", code=ExitCode.NOT_FOUND)
        assert "the target has no topic 'events'" in told
        plan, _ = await run_migrate(tmp_path, *arguments, "--translate", "--execute")
        (move,) = plan["moves"]
        assert move["lag"] == 60 - move["after"]
        store = KafkaOffsetStore(target, "old")
        place = TopicPartition.numbered("moved", 0)
        (offset,) = (await target.retrying("offsets", lambda: store.load([place]))).values()
        assert offset == move["after"]
        log = TargetLog(target)
        places: dict[int, set[int]] = {number: set() for number in range(3)}
        async for records in log.read("moved", 0, offset, 60):
            for record in records:
                identity = read_identity(record.headers)
                assert identity is not None
                places[identity.partition.partition].add(identity.offset)
        assert places[0] >= set(range(5, 20))
        assert places[2] == set(range(20))
