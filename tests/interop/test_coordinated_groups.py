"""Groups of our daemons, and of daemons with other projects' members, that real brokers coordinate.

Every message that was produced is accounted for, whatever died: delivered in the order of its partition, and only
by the partition's latest owner.
"""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import tomllib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.demo.errors import ChildError
from consumerd.demo.ports import free_port
from consumerd.demo.processes import DaemonProcess, format_toml
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from tests.interop.group_harness import GROUP, LONG_SESSION, PARTITIONS, TOPIC, Group
from tests.support.awakenings import PausableDaemon
from tests.support.kafka import RELEASES

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
COORDINATING = [version for version, release in RELEASES.items() if release.number >= (0, 9)]


@pytest_asyncio.fixture
async def group(
    request: pytest.FixtureRequest, kafka: Any, cluster_client: Any, java: JavaRuntime, tmp_path: Path
) -> AsyncIterator[Group]:
    """A group without members on a broker of the version that the test is parametrised with."""
    broker = await kafka(request.param, partitions=PARTITIONS)
    async with cluster_client(broker) as client:
        made = Group({broker.broker_id: broker}, client, tmp_path, java)
        await made.create()
        try:
            yield made
        finally:
            await made.close()


@pytest.mark.parametrize(
    "group",
    [pytest.param(version, marks=[] if version == "0.10.1.1" else [pytest.mark.long]) for version in COORDINATING],
    indirect=True,
)
async def test_status_and_metrics_show_the_group_and_lag_in_messages(group: Group) -> None:
    first, second = await group.daemon(), await group.daemon()
    await group.until(lambda: group.fair(first, second))
    for partition in range(PARTITIONS):
        await group.produce(partition, [b"one", b"two"])
    (url,) = [event["url"] for event in first.events() if event["event"] == "http_listening"]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session, asyncio.timeout(120):
        while True:
            async with session.get(f"{url}status.json") as answer:
                status = await answer.json()
            # The data of the whole group is read at intervals.
            rows, members = status["partitions"], (status["members"] or {"live": []})["live"] or []
            known = sum(member["partitions"] for member in members)
            if known == PARTITIONS and rows and all(row["handled"] == 2 and row["lag"] == 0 for row in rows):
                break
            await asyncio.sleep(0.1)
        async with session.get(f"{url}metrics") as answer:
            metrics = await answer.text()
    assert {row["lag_unit"] for row in rows} == {"messages"}
    assert sorted(member["this"] for member in members) == [False, True]
    assert next(member["partitions"] for member in members if member["this"]) == len(rows)
    assert (status["members"]["not_live"], status["members"]["unowned"]) == ([], [])
    place = f'broker="",group="{GROUP}",partition="{rows[0]["partition"]}",topic="{TOPIC}"'
    assert f"consumerd_lag{{{place}}} 0.0" in metrics
    assert f"consumerd_messages_handled_total{{{place}}} 2.0" in metrics
    assert "consumerd_lag_bytes{" not in metrics


@pytest.mark.parametrize(
    "group",
    [pytest.param(version, marks=[] if version == "0.10.1.1" else [pytest.mark.long]) for version in COORDINATING],
    indirect=True,
)
async def test_loses_nothing_when_members_join_leave_and_die_and_the_broker_restarts(group: Group) -> None:
    group.begin_producing()
    first = await group.daemon()
    second = await group.daemon(session_timeout=LONG_SESSION, rebalance_timeout=LONG_SESSION)
    await group.until(lambda: group.fair(first, second))
    third = await group.daemon()
    await group.until(lambda: group.fair(first, second, third))

    assert await second.stop() == ExitCode.OK
    took = await group.until(lambda: group.fair(first, third))
    assert took < LONG_SESSION  # it left, and was not just missed

    third.kill()
    await group.until(lambda: group.fair(first))
    fourth = await group.daemon()
    await group.until(lambda: group.fair(first, fourth))

    # The coordinator restarts while the producer pauses: a batch that is sent again would be stored twice.
    async with group.sending:
        [broker] = group.brokers.values()
        await broker.restart()
        await group.create()
    before = sum(map(len, group.sent.values()))
    await group.until(lambda: sum(map(len, group.sent.values())) > before + 500)
    await group.end_producing()
    await group.account()
    assert await first.stop() == ExitCode.OK
    assert await fourth.stop() == ExitCode.OK

    # The offsets of released partitions are committed: a member that joins now gets no message again.
    store = KafkaOffsetStore(group.client, GROUP)
    places = [TopicPartition.numbered(TOPIC, number) for number in range(PARTITIONS)]
    assert await group.client.retrying("read offsets", lambda: store.load(places)) == {
        place: len(group.sent[place.partition]) for place in places
    }


@pytest.mark.long
@pytest.mark.parametrize("group", ["0.9.0.1", "0.10.0.1"], indirect=True)
async def test_member_joins_with_default_timeouts(group: Group) -> None:
    """Brokers of 0.9 refuse the session timeout of 45 s, and are asked for 30 s."""
    await group.produce(0, [b"x"] * 10)
    daemon = await group.daemon(session_timeout=None, heartbeat_interval=None, rebalance_timeout=None)
    await group.until(lambda: group.handed() == {0: 10})
    shortened = [event for event in daemon.events() if event["event"] == "session_timeout_shortened"]
    assert len(shortened) == (group.release.number < (0, 10))
    assert await daemon.stop() == ExitCode.OK
    await group.account()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", ["3.9.1"], indirect=True)
async def test_survives_repeatedly_suspended_members(group: Group) -> None:
    """Also at the very moment at which they were given partitions, which are others' when they wake."""
    group.begin_producing()
    still = await group.daemon()
    other = await group.daemon()
    await group.until(lambda: group.fair(still, other))
    for _ in range(20):
        still.pause()
        await group.until(partial(group.fair, other))
        still.resume()
        await group.until(lambda: group.fair(*group.daemons))
        still, other = other, still
    await group.end_producing()
    await group.account()


def shared_with() -> Iterator[Any]:
    """(version, kind, assignor): each kind once every day; in the long runs Java and librdkafka with all releases.

    librdkafka's members share a group every day in test_clusters, where brokers die besides.
    """
    everyday = {
        ("0.10.1.1", "java", "roundrobin"),
        ("3.9.1", "aiokafka", "roundrobin"),
    }
    for version in COORDINATING:
        kinds = ["java"]
        if RELEASES[version].number >= (0, 10):
            kinds.append("confluent")
        if RELEASES[version].number >= (2, 8):
            kinds += ["kafka-python", "aiokafka"]
        for kind in kinds:
            for assignor in ("range", "roundrobin") if version in ("0.10.1.1", "3.9.1") else ("range",):
                case = version, kind, assignor
                yield pytest.param(*case, marks=[] if case in everyday else [pytest.mark.long])


@pytest.mark.parametrize(("group", "kind", "assignor"), list(shared_with()), indirect=["group"])
async def test_shares_a_group_with_members_of_other_projects(
    group: Group, kind: str, assignor: str, missing: Callable[[str], Any]
) -> None:
    module = {"kafka-python": "kafka", "aiokafka": "aiokafka", "confluent": "confluent_kafka"}.get(kind)
    if module is not None and importlib.util.find_spec(module) is None:
        missing(f"{kind} is not installed: see the dependency groups `dev` and `bench`")
    group.begin_producing()
    theirs = await group.stranger(kind, assignor)  # which leads, so its leader assigns partitions to ours
    ours = await group.daemon(assignor=assignor)
    await group.until(lambda: len(group.share(ours)) == 3)
    other = await group.daemon(assignor=assignor)
    await group.until(lambda: group.fair(ours, other, others=2))
    await group.leave(theirs)
    await group.until(lambda: group.fair(ours, other))
    theirs = await group.stranger(kind, assignor)  # now one of ours leads, and assigns partitions to it
    await group.until(lambda: group.fair(ours, other, others=2))
    theirs.end_now()
    await group.until(lambda: group.fair(ours, other))
    await group.end_producing()
    await group.account()


@pytest.mark.parametrize("group", ["3.9.1"], indirect=True)
async def test_reloaded_members_consume_other_topics_and_repeat_nothing(group: Group) -> None:
    await group.create("more")
    long: dict[str, Any] = {"session_timeout": LONG_SESSION, "rebalance_timeout": LONG_SESSION}
    members = [await group.daemon(**long) for _ in range(2)]
    await group.until(lambda: group.fair(*members))
    for number in range(PARTITIONS):
        await group.produce(number, [b"before"])
    await group.until(lambda: sum(group.handed().values()) == PARTITIONS)
    for member in members:
        document = tomllib.loads(member.config_path.read_text("utf-8"))
        document["group"]["topics"]["more"] = 1
        member.config_path.write_text(format_toml(document), "utf-8")
        member.child.signal(signal.SIGHUP)
        assert (await member.wait_for_event("configuration_reloaded", 60.0))["keys"] == ["group.topics"]
    for number in range(PARTITIONS):
        await group.produce(number, [b"between"])
    both = sorted(f"{topic}/{number}" for topic in (TOPIC, "more") for number in range(PARTITIONS))
    await group.until(lambda: sorted(place for member in members for place in group.share(member)) == both)
    for number in range(PARTITIONS):
        await group.produce(number, [b"after"])
    assert await group.account() == 0


@pytest.mark.parametrize("group", ["3.9.1"], indirect=True)
async def test_static_member_resumes_its_share_and_its_duplicate_is_rejected(group: Group) -> None:
    first = await group.daemon(instance_id="a", session_timeout=LONG_SESSION, rebalance_timeout=LONG_SESSION)
    # Longer than a restart may take.
    second = await group.daemon(instance_id="b", session_timeout=LONG_SESSION, rebalance_timeout=LONG_SESSION)
    await group.until(lambda: group.fair(first, second))
    rebalances = sum(event["event"] == "rebalanced" for event in first.events())
    share = group.share(second)
    assert await second.stop() == ExitCode.OK
    await second.start()
    await group.until(lambda: group.share(second) == share)
    assert sum(event["event"] == "rebalanced" for event in first.events()) == rebalances
    twin = PausableDaemon(group.directory, second.config, name="twin")
    group.daemons.append(twin)
    await twin.start()
    assert await second.wait(60.0) == ExitCode.ID_TAKEN
    await group.produce(0, [b"x"])
    await group.account()


@pytest.mark.parametrize("group", ["3.9.1", pytest.param("0.10.1.1", marks=pytest.mark.long)], indirect=True)
async def test_finds_new_topics_of_a_filter(group: Group) -> None:
    daemon = await group.daemon(topics=None, whitelist="events|even.*")
    await group.until(lambda: len(group.share(daemon)) == PARTITIONS)
    await group.create("even-more")
    await group.until(lambda: len(group.share(daemon)) == 2 * PARTITIONS)
    assert await daemon.stop() == ExitCode.OK


@pytest.mark.parametrize("group", ["0.8.2.2", pytest.param("3.9.1", marks=pytest.mark.long)], indirect=True)
async def test_fixed_partitions_resume_at_their_offsets(group: Group) -> None:
    for number in range(PARTITIONS):
        await group.produce(number, [b"%d" % number] * 10)
    fixed: dict[str, Any] = {"coordination": "fixed", "topics": None, "partitions": {TOPIC: [1, 4]}}
    daemon = await group.daemon(**fixed)
    await group.until(lambda: group.handed() == {1: 10, 4: 10})
    assert await daemon.stop() == ExitCode.OK
    await group.produce(4, [b"more"] * 5)
    await daemon.start()
    await group.until(lambda: group.handed() == {1: 10, 4: 15})
    assert await daemon.stop() == ExitCode.OK
    group.sent = defaultdict(list, {number: group.sent[number] for number in (1, 4)})
    assert await group.account() == 0


@pytest.mark.parametrize("group", ["3.9.1"], indirect=True)
async def test_reports_unavailable_fixed_partitions(group: Group) -> None:
    await group.daemon()
    await group.produce(1, [b"x"])
    fixed: dict[str, Any] = {"coordination": "fixed", "topics": None}
    # The group has members, so the coordinator takes no offsets of others.
    intruder = await group.daemon(**fixed, partitions={TOPIC: [1]})
    await group.produce(1, [b"y"])
    assert await intruder.wait(60.0) == ExitCode.REFUSED
    assert "need a group of their own" in intruder.child.output()
    # The same partitions without stored offsets do not conflict.
    reader = await group.daemon(**fixed, partitions={TOPIC: [1]}, offsets="none")
    await group.until(lambda: any(event["event"] == "partition_started" for event in reader.events()))
    assert await reader.stop() == ExitCode.OK
    with pytest.raises(ChildError, match=f"has no partition {PARTITIONS}"):
        await group.daemon(**fixed, partitions={TOPIC: [PARTITIONS]})
    assert group.daemons[-1].returncode == ExitCode.NOT_FOUND


async def test_names_an_unreachable_cluster(tmp_path: Path) -> None:
    config: dict[str, dict[str, Any]] = {
        "group": {"id": GROUP, "coordination": "kafka", "topics": {TOPIC: 1}},
        "kafka": {"bootstrap": [f"127.0.0.1:{free_port()}"], "connection_timeout": 1.0},
        "handler": {"name": "null"},
    }
    daemon = DaemonProcess(tmp_path, config)
    with pytest.raises(ChildError, match=r"check kafka\.bootstrap"):
        await daemon.start()
    assert daemon.returncode == ExitCode.BROKER
