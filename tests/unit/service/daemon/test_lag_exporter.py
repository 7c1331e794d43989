"""The lag of groups without a member here: what is served, and what is absent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp

from consumerd.base.errors import BrokerError, NotFoundError
from consumerd.base.metrics.catalogue import EXPORTER_METRICS, PROCESS_METRICS
from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.groups import GroupView
from consumerd.operate.admin.errors import CheckFailedError
from consumerd.operate.admin.lag import GroupLag, PartitionLag, read_lags
from consumerd.operate.admin.logs import LogRange, Position
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot
from consumerd.service.daemon.lag_exporter import LagExporter, serve
from consumerd.testing.clock import FakeClock


def partition(number: int, committed: int | None, end: int | None, *, gone: bool = False) -> PartitionLag:
    lag = None if end is None else end - (committed or 0)
    earliest = None if end is None else 0
    return PartitionLag(TopicPartition.numbered("t", number), "m-1", committed, earliest, end, lag, "", gone)


class Groups:
    """The groups of a cluster, as the tests say."""

    def __init__(self, **groups: GroupLag | Exception) -> None:
        self.groups: dict[str, GroupLag | Exception] = groups
        self.trouble: BrokerError | None = None
        self.asked: list[Sequence[str]] = []
        self.clock = FakeClock()
        #: The timestamps of messages, in milliseconds, where the cluster has some.
        self.dated: dict[Position, int] = {}
        self.asked_for: list[list[Position]] = []
        self.exporter = self.watching(".*")

    def watching(self, pattern: str) -> LagExporter:
        return LagExporter(
            self.names,
            self.lags,
            self.timestamps,
            cluster="c",
            pattern=re.compile(pattern),
            interval=30.0,
            clock=self.clock,
        )

    def set(self, name: str, *partitions: PartitionLag) -> None:
        self.groups[name] = GroupLag(partitions, {"m-1": "app at 10.0.0.1"})

    async def names(self) -> list[str]:
        if self.trouble is not None:
            raise self.trouble
        return sorted(self.groups)

    async def lags(self, groups: Sequence[str]) -> Mapping[str, GroupLag | Exception]:
        self.asked.append(groups)
        return {name: self.groups[name] for name in groups}

    async def timestamps(self, positions: Collection[Position]) -> Mapping[Position, int]:
        self.asked_for.append(sorted(positions))
        return {position: self.dated[position] for position in positions if position in self.dated}

    async def look(self, seconds: float = 30.0) -> dict[tuple[str, ...], object]:
        """The readings after another round, by name and labels without those of the cluster and the owner."""
        self.clock.jump(seconds)
        await self.exporter.look()
        return self.readings()

    def readings(self) -> dict[tuple[str, ...], object]:
        found: dict[tuple[str, ...], object] = {}
        for metric, labels, value in self.exporter.readings():
            if metric in PROCESS_METRICS:
                continue
            assert metric in EXPORTER_METRICS
            assert len(labels) == len(metric.labels)
            named = dict(zip(metric.labels, labels, strict=True))
            assert named.pop("cluster_name") == "c"
            if "client_id" in named:
                assert [named.pop(key) for key in ("client_id", "member_host", "consumer_id")] == [
                    "app", "10.0.0.1", "m-1",
                ]  # fmt: skip
            name = metric.name.removeprefix("kafka_").removeprefix("consumergroup_")
            found[name, *named.values()] = value
        return found


async def test_serves_offsets_lag_and_sums() -> None:
    groups = Groups()
    groups.set("g", partition(0, 5, 9), partition(1, 7, 7), partition(2, 3, None, gone=True))
    found = await groups.look()
    assert found.pop(("poll_time_ms",)) == 0
    assert found == {
        ("consumerd_exporter_unread_groups",): 0,
        ("group_offset", "g", "t", "0"): 5,
        ("group_offset", "g", "t", "1"): 7,
        ("group_lag", "g", "t", "0"): 4,
        ("group_lag", "g", "t", "1"): 0,
        ("group_lag_seconds", "g", "t", "1"): 0.0,
        ("group_topic_sum_lag", "g", "t"): 4,
        ("group_sum_lag", "g"): 4,
        ("group_max_lag", "g"): 4,
        ("partition_earliest_offset", "t", "0"): 0,
        ("partition_latest_offset", "t", "0"): 9,
        ("partition_earliest_offset", "t", "1"): 0,
        ("partition_latest_offset", "t", "1"): 7,
    }


async def test_what_could_not_be_read_is_absent_with_each_sum_of_it() -> None:
    groups = Groups(broken=BrokerError("no coordinator"))
    groups.set("part", partition(0, 5, 9), partition(1, 5, None))
    groups.set("none")
    found = await groups.look()
    assert found["consumerd_exporter_unread_groups",] == 1
    assert [key for key in found if "broken" in key or "none" in key] == []
    assert [key for key in found if "part" in key] == [
        ("group_offset", "part", "t", "0"),
        ("group_lag", "part", "t", "0"),
        ("group_offset", "part", "t", "1"),
    ]


async def test_lag_in_seconds_is_since_the_log_ended_at_the_committed_offset() -> None:
    groups = Groups()
    key, most = ("group_lag_seconds", "g", "t", "0"), ("group_max_lag_seconds", "g")
    groups.set("g", partition(0, 5, 5))
    assert (await groups.look())[key] == 0
    for lag, end in ((30.0, 8), (60.0, 11)):
        groups.set("g", partition(0, 5, end))
        found = await groups.look()
        assert (found[key], found[most]) == (lag, lag)
    groups.set("g", partition(0, 8, 11))  # it ended at 8 a round later
    assert (await groups.look())[key] == 60.0
    groups.set("g", partition(0, 3, 11))  # from before the first round
    found = await groups.look()
    assert key not in found
    assert most not in found


async def test_lag_in_seconds_is_the_age_of_the_next_message_by_its_timestamp() -> None:
    groups = Groups()
    key, most = ("group_lag_seconds", "g", "t", "0"), ("group_max_lag_seconds", "g")
    first, second = ((TopicPartition.numbered("t", 0), offset) for offset in (5, 6))
    groups.set("g", partition(0, 5, 9))
    groups.dated[first] = round((groups.clock.wall() - 7200) * 1000)
    for age in (7230.0, 7260.0):
        found = await groups.look()
        assert (found[key], found[most]) == (age, age)
    assert groups.asked_for == [[first]]  # once, while nothing is committed
    groups.set("g", partition(0, 6, 9))
    groups.dated[second] = round((groups.clock.wall() + 3600) * 1000)  # a clock is wrong
    assert key not in await groups.look()
    groups.set("g", partition(0, 9, 9))
    assert (await groups.look())[key] == 0
    groups.set("g", partition(0, None, 9))  # all of the log
    assert key not in await groups.look()
    assert groups.asked_for == [[first], [second], [(first[0], 0)]]


async def test_several_groups_of_a_log_do_not_disturb_each_others_time() -> None:
    groups = Groups()
    groups.set("slow", partition(0, 5, 5))
    groups.set("fast", partition(0, 5, 5))
    found = await groups.look()
    for end in (6, 7):
        groups.set("slow", partition(0, 5, end))
        groups.set("fast", partition(0, end, end))
        found = await groups.look()
    assert found["group_lag_seconds", "slow", "t", "0"] == 60.0
    assert found["group_lag_seconds", "fast", "t", "0"] == 0.0


async def test_cluster_that_cannot_be_read_has_no_series_and_is_not_ready() -> None:
    groups = Groups()
    assert groups.exporter.unready == ["starting"]
    assert groups.readings() == {}
    groups.set("g", partition(0, 5, 9))
    await groups.look()
    assert groups.exporter.unready == []
    groups.trouble = BrokerError("gone")
    assert await groups.look() == {}
    assert groups.exporter.unready == ["cluster_unreadable"]
    groups.trouble = None
    assert await groups.look() != {}
    groups.clock.jump(3 * 30 + 60 + 1)
    assert groups.readings() == {}
    assert groups.exporter.unready == ["round_overdue"]
    assert groups.exporter.sick is None


async def test_looks_at_groups_whose_whole_name_matches_once_for_each_interval() -> None:
    groups = Groups()
    for name in ("bill", "billing-a", "a-billing-b"):
        groups.set(name)
    task = asyncio.create_task(groups.watching("billing-.*").run())
    while not groups.clock.sleepers:
        await asyncio.sleep(0)
    await groups.clock.advance(60.0)
    task.cancel()
    await asyncio.wait([task])
    assert groups.asked == [["billing-a"]] * 3


async def test_serves_metrics_and_probes_until_it_is_stopped() -> None:
    groups, stop = Groups(), asyncio.Event()
    groups.set("g", partition(0, 5, 9))
    ports: asyncio.Queue[int] = asyncio.Queue()
    task = asyncio.create_task(serve(groups.exporter, "127.0.0.1:0", stop, ports.put_nowait))
    port = await ports.get()
    async with aiohttp.ClientSession() as client, asyncio.timeout(20):
        while True:
            async with client.get(f"http://127.0.0.1:{port}/readyz") as answer:
                if answer.status == 200:
                    break
        async with client.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        async with client.get(f"http://127.0.0.1:{port}/metrics") as answer:
            text = await answer.text()
    assert 'kafka_consumergroup_group_sum_lag{cluster_name="c",group="g"} 4.0' in text.splitlines()
    assert len(groups.asked) == 1  # a scrape asks nothing
    stop.set()
    await task


async def test_logs_that_several_groups_read_are_looked_at_once() -> None:
    asked: list[list[TopicPartition]] = []
    places = [TopicPartition.numbered("t", number) for number in range(2)]

    async def ranges(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange]:
        asked.append(list(partitions))
        return dict.fromkeys(asked[-1], LogRange(0, 9))

    async def snapshot(group: str) -> V08GroupSnapshot:
        if group == "gone":
            raise NotFoundError("it was deleted")
        if group == "broken":
            raise BrokerError("no coordinator")
        view = GroupView(group)
        view.offsets = dict.fromkeys(places, 5)
        kind = "share" if group == "shared" else "classic"
        return V08GroupSnapshot(view, {"t": (0, 1)}, CoordinatorKind.BROKER, group_type=kind)

    async def prepare(groups: Sequence[str]) -> None:
        raise BrokerError("some have no coordinator")

    source: Any = SimpleNamespace(prepare=prepare, snapshot=snapshot, logs=SimpleNamespace(ranges=ranges))
    found = await read_lags(source, ["a", "b", "broken", "gone", "shared"])
    assert [set(each) for each in asked] == [set(places)]
    assert {name: type(each) for name, each in found.items()} == {
        "a": GroupLag, "b": GroupLag, "broken": BrokerError, "shared": CheckFailedError,
    }  # fmt: skip
    assert isinstance(found["b"], GroupLag)
    assert [each.lag for each in found["b"].partitions] == [4, 4]
