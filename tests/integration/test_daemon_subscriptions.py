"""Several subscriptions in one daemon: each has its member and its handler, and gets its messages exactly once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import format_toml
from consumerd.net.zk.errors import NoNode
from consumerd.wire.registry.paths import offset_path

pytestmark = [pytest.mark.zookeeper]

T = [TopicPartition("t", 0, number) for number in range(2)]
U = [TopicPartition("u1", 0, number) for number in range(2)]

HANDLERS = """
import asyncio
import json


class Recording:
    def __init__(self, name, seconds=0.0, fails_at=None):
        self.name = name
        self.seconds = seconds
        self.fails_at = None if fails_at is None else fails_at.encode()

    async def start(self, context):
        print(json.dumps([self.name, "start", context.config["timeout"]]), flush=True)

    async def stop(self):
        print(json.dumps([self.name, "stop", None]), flush=True)

    async def handle(self, batch):
        if self.seconds:
            print(json.dumps([self.name, "begins", None]), flush=True)
            await asyncio.sleep(self.seconds)
        for payload in batch:
            if payload == self.fails_at:
                raise ValueError("cannot digest it")
            print(json.dumps([self.name, str(batch.partition), payload.decode()]), flush=True)
"""


@pytest.fixture(autouse=True)
def _handlers(world: Any) -> None:
    (world.directory / "modules" / "two_handlers.py").write_text(HANDLERS)


def recording(name: str, **keys: Any) -> dict[str, Any]:
    options = {key: keys.pop(key) for key in ("seconds", "fails_at") if key in keys}
    return {"name": "two_handlers:Recording", "options": {"name": name, **options}, **keys}


def tables(group: str = "g", **audit: Any) -> dict[str, Any]:
    """A map of topics for the main subscription, a whitelist in `group` for another one, a handler for each."""
    further = {"name": "audit", "group": {"id": group}, "whitelist": "u.*", "handler": recording("audit")} | audit
    return {
        "group": {"topics": {"t": 1}, "consumer_id": "pod-0"},
        "handler": recording("main"),
        "subscriptions": [further],
    }


def lines(daemon: Any) -> list[list[Any]]:
    whole, _, _ = daemon.stdout_path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def handled(*daemons: Any) -> Counter[tuple[str, ...]]:
    """Each message with the handler that got it, and how often."""
    return Counter(tuple(line) for daemon in daemons for line in lines(daemon) if "/" in line[1])


async def produce(world: Any, *payloads: str) -> Counter[tuple[str, ...]]:
    """Append to all partitions. Returns what the two handlers are to get."""
    expected = Counter[tuple[str, ...]]()
    for name, partitions in (("main", T), ("audit", U)):
        for partition in partitions:
            await world.append(partition, *(payload.encode() for payload in payloads))
            expected.update((name, str(partition), payload) for payload in payloads)
    return expected


async def committed(world: Any, group: str, partition: TopicPartition) -> int:
    data, _ = await world.zk.get(offset_path(group, partition))
    return int(data)


async def owners(world: Any, group: str) -> dict[str, str]:
    """The consumer id that owns each partition."""
    found = {}
    for partition in (*T, *U):
        name = f"{partition.broker}-{partition.partition}"
        try:
            data, _ = await world.zk.get(f"/consumers/{group}/owners/{partition.topic}/{name}")
        except NoNode:
            continue
        found[str(partition)] = data.decode().rpartition("-")[0]
    return found


@pytest.mark.parametrize("group", ["g", "h"])
async def test_map_and_whitelist_get_all_of_theirs_exactly_once(world: Any, group: str) -> None:
    """In one group and in two; each with its own id on the one session, all drained and committed at the stop."""
    await world.broker(partitions=2)
    sent = await produce(world, "one", "two")
    daemon = await world.daemon(**tables(group))
    ids = {each for name in {"g", group} for each in await world.zk.children(f"/consumers/{name}/ids")}
    assert ids == {"g_pod-0", f"{group}_pod-0_audit"}
    sessions = {
        (await world.zk.exists(f"/consumers/{each.partition('_')[0]}/ids/{each}")).ephemeral_owner for each in ids
    }
    assert len(sessions) == 1
    sent += await produce(world, "three")
    await world.until(lambda: handled(daemon) == sent)
    assert await daemon.stop() == ExitCode.OK
    assert handled(daemon) == sent
    ends = {partition: await world.append(partition, b"later") for partition in (*T, *U)}
    for partition, end in ends.items():
        name = "g" if partition in T else group
        left = end - await committed(world, name, partition)
        assert 0 < left < 40, partition  # the last message alone
    for name in {"g", group}:
        assert await world.zk.children(f"/consumers/{name}/ids") == []
        assert await owners(world, name) == {}
    order = [line[:2] for line in lines(daemon) if line[1] in ("start", "stop")]
    assert order[:2] == [["main", "start"], ["audit", "start"]]
    assert sorted(order[2:]) == [["audit", "stop"], ["main", "stop"]]


async def test_one_topic_in_two_groups_goes_to_both_handlers(world: Any) -> None:
    await world.broker(partitions=2)
    for partition in T:
        await world.append(partition, b"one", b"two")
    daemon = await world.daemon(**tables("h", whitelist="t"))
    expected = Counter(
        {(name, str(partition), text): 1 for name in ("main", "audit") for partition in T for text in ("one", "two")}
    )
    await world.until(lambda: handled(daemon) == expected)
    assert await daemon.stop() == ExitCode.OK
    assert handled(daemon) == expected


@pytest.mark.parametrize("group", ["g", pytest.param("h", marks=pytest.mark.long)])
async def test_both_rebalance_when_a_second_daemon_joins_and_leaves(world: Any, group: str) -> None:
    await world.broker(partitions=2)
    sent = await produce(world, "one")
    first = await world.daemon("first", **tables(group))
    await world.until(lambda: handled(first) == sent)
    config = tables(group)
    config["group"]["consumer_id"] = "pod-1"
    second = await world.daemon("second", **config)
    names = ("pod-0", "pod-1")

    async def divided() -> bool:
        main, audit = await owners(world, "g"), await owners(world, group)
        return [main.get(str(partition)) for partition in T] == [f"g_{name}" for name in names] and [
            audit.get(str(partition)) for partition in U
        ] == [f"{group}_{name}_audit" for name in names]

    await world.until(divided)
    sent += await produce(world, "two")
    await world.until(lambda: handled(first, second) == sent)
    assert await first.stop() == ExitCode.OK
    sent += await produce(world, "three")
    await world.until(lambda: handled(first, second) == sent)
    assert await second.stop() == ExitCode.OK
    assert handled(first, second) == sent


@pytest.mark.parametrize("failing", ["main", "audit"])
async def test_policy_stop_of_one_stops_the_daemon_and_commits_the_other(world: Any, failing: str) -> None:
    await world.broker()
    config = tables()
    bad = recording(failing, fails_at="bad", max_attempts=1, on_failure="stop")
    if failing == "main":
        config["handler"] = bad
    else:
        config["subscriptions"][0]["handler"] = bad
    ours, other = (T[0], U[0]) if failing == "main" else (U[0], T[0])
    end = await world.append(other, b"good")
    daemon = await world.daemon(**config)
    await world.until(lambda: handled(daemon).total() == 1)
    await world.append(ours, b"bad")
    assert await daemon.child.wait(60) == ExitCode.HANDLER_FAILED
    assert await committed(world, "g", other) == end
    stopping = [event for event in daemon.events() if event["event"] == "member_stopping"]
    assert [event["subscription"] for event in stopping] == [failing]
    assert await world.offset(ours) in (None, 0)


async def test_reload_moves_a_topic_from_one_to_the_other_without_loss_or_repetition(world: Any) -> None:
    await world.broker(partitions=2)
    sent = await produce(world, "one")
    daemon = await world.daemon(**tables(whitelist=None, topics={"u1": 1}))
    await world.until(lambda: handled(daemon) == sent)

    async def reload(**changed: Any) -> dict[str, Any]:
        names = ("configuration_reloaded", "configuration_rejected")
        before = [event for event in daemon.events() if event["event"] in names]
        daemon.config_path.write_text(format_toml(world.config(**changed)), "utf-8")
        daemon.child.signal(signal.SIGHUP)
        found: list[dict[str, Any]] = []

        def ended() -> bool:
            found[:] = [event for event in daemon.events() if event["event"] in names]
            return len(found) > count

        count = len(before)
        await world.until(ended)
        return found[-1]

    changed = tables(whitelist=None, topics={"u1": 1, "t": 1}, handler=recording("audit", timeout=1000.0))
    changed["group"]["topics"] = {"u2": 1}
    event = await reload(**changed)
    assert event["keys"] == [
        "group.topics",
        "subscriptions.audit.topics",
        "subscriptions.audit.handler.timeout",
    ]
    assert [line[2] for line in lines(daemon) if line[:2] == ["audit", "start"]] == [None, 1000.0]
    assert sum(line[:2] == ["main", "start"] for line in lines(daemon)) == 1

    async def moved() -> bool:
        return set((await owners(world, "g")).values()) == {"g_pod-0_audit"}

    await world.until(moved)
    for partition in T:
        await world.append(partition, b"two")
        sent["audit", str(partition), "two"] = 1
    await world.until(lambda: handled(daemon) == sent)
    started = [event for event in daemon.events() if event["event"] == "partition_started"]
    began = [
        (event["subscription"], name) for event in started for name in event.get("offsets", [event.get("partition")])
    ]
    assert {subscription for subscription, _ in began[-4:]} == {"audit"}
    changed["subscriptions"][0]["name"] = "other"
    await reload(**changed)
    refused = [event for event in daemon.events() if event["event"] == "configuration_keys_refused"]
    assert refused[-1]["keys"] == ["subscriptions"]
    assert await daemon.stop() == ExitCode.OK
    assert handled(daemon) == sent


@pytest.mark.parametrize("group", ["g", "h"])
async def test_status_metrics_and_readiness_show_both(world: Any, group: str) -> None:
    await world.broker(partitions=2)
    sent = await produce(world, "one", "two")
    daemon = await world.daemon(**tables(group), health={"listen": "127.0.0.1:0", "metrics": True})
    await world.until(lambda: handled(daemon) == sent)
    (url,) = [event["url"] for event in daemon.events() if event["event"] == "http_listening"]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(url + path) as answer:
                return answer.status, await answer.text()

        async def is_ready() -> bool:
            return await get("readyz") == (200, "ok\n")

        await world.until(is_ready)
        status = json.loads((await get("status.json"))[1])
        page = (await get(""))[1]
        metrics = (await get("metrics"))[1]
    assert [(each["name"], each["group"], each["topics"]) for each in status["subscriptions"]] == [
        ("main", "g", '{ "t": 1 }'),
        ("audit", group, "*1*u.*"),
    ]
    assert [each["totals"]["messages"] for each in status["subscriptions"]] == [4, 4]
    assert status["totals"]["messages"] == 8
    assert {(row["subscription"], row["topic"]) for row in status["partitions"]} == {("main", "t"), ("audit", "u1")}
    assert 'id="partition-audit-u1/0-1"' in page
    samples: Counter[tuple[str, ...]] = Counter()
    series: Counter[tuple[str, ...]] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith("consumerd_"):
                series[sample.name, *map(str, sorted(sample.labels.items()))] += 1
                samples[sample.name, sample.labels.get("group", ""), sample.labels.get("topic", "")] += int(
                    sample.value
                )
    assert set(series.values()) == {1}
    owned = {name: samples["consumerd_owned_partitions", name, ""] for name in {"g", group}}
    assert owned == ({"g": 4} if group == "g" else {"g": 2, "h": 2})
    assert samples["consumerd_messages_handled_total", "g", "t"] == 4
    assert samples["consumerd_messages_handled_total", group, "u1"] == 4
    assert samples["consumerd_member_ready", group, ""] == 1
    assert samples["consumerd_memory_limit_bytes", "h", ""] == 0  # it is that of the process
    assert samples["consumerd_memory_limit_bytes", "g", ""] > 0
