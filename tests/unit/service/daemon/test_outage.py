"""What a member says of itself while all brokers, or one of two, are down: unknown, and never "no lag".

Its log, metrics and alerts in an outage: `tests.faults.test_bad_night`.
"""

from __future__ import annotations

from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.service.config.model import parse
from consumerd.service.daemon.health import UNREACHABLE_AFTER
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.readings import read
from consumerd.service.daemon.status import read_status
from consumerd.service.daemon.status_page import render
from consumerd.testing import MemoryMember
from consumerd.testing.clock import FakeClock
from consumerd.testing.group import MemoryGroup

ONE, TWO = TopicPartition("t", 0, 0), TopicPartition("t", 3, 0)


class Watched:
    """A member of a group in memory, and the monitor of its daemon, by a clock of the test's."""

    def __init__(self, member: MemoryMember) -> None:
        tables = {"group": {"id": "group", "topics": {"t": 1}}, "handler": {"name": "null"}}
        self.clock = FakeClock()
        self.monitor = Monitor(parse(tables, "test", environment=False), self.clock)
        self.monitor.watch(member.consumer)

    async def look(self) -> None:
        await self.monitor.main.look_at_lag()
        self.monitor.main.look_after_health()

    def metrics(self) -> dict[str, Any]:
        return {metric.name: value for metric, _, value in read(self.monitor)}

    async def page(self) -> tuple[dict[str, str], str]:
        """The state of each partition, and the page."""
        status = await read_status(self.monitor)
        states = {each["partition"]: each["state"] for each in status["partitions"]}
        return states, render(status, word=None).decode()


async def test_page_shows_the_death_of_the_only_broker_until_it_is_registered_again() -> None:
    async with MemoryGroup() as group:
        group.topic("t", 1)
        group.broker.append("t", 0, b"one")
        member = await group.member("null")
        await group.until(lambda: member.consumer.brokers() == 1 and len(member.consumer.views()) == 1)
        watched = Watched(member)
        group.zookeeper.remove("/brokers/topics/t/0")
        group.zookeeper.remove("/brokers/ids/0")
        await group.until(lambda: member.consumer.brokers() == 0 and not member.consumer.owned)
        await group.until(lambda: member.consumer.settled)
        await watched.look()
        assert watched.monitor.unready == []  # not yet
        watched.clock.jump(UNREACHABLE_AFTER)
        await watched.look()
        states, page = await watched.page()
        assert states == {"0-0": "no broker"}
        assert "Not ready</strong>: no broker is registered" in page
        assert 'Lag <strong class="value">unknown</strong>' in page
        group.topic("t", 1)
        group.register_broker(0)
        consumer = member.consumer
        await group.until(lambda: consumer.settled and any(view.position is not None for view in consumer.views()))
        await watched.look()
        assert (watched.monitor.unready, member.consumer.unregistered) == ([], [])
        assert watched.monitor.point().lag is not None


async def test_partitions_of_a_dead_broker_beside_a_live_one_have_no_known_lag() -> None:
    async with MemoryGroup() as group:
        group.register_broker(3)
        group.topic("t", 1)
        group.topic("t", 1, broker=3)
        member = await group.member("null")
        await group.until(lambda: len(member.consumer.views()) == 2)
        watched = Watched(member)
        group.zookeeper.remove("/brokers/topics/t/3")
        group.zookeeper.remove("/brokers/ids/3")
        await group.until(lambda: member.consumer.unregistered == [TWO] and member.consumer.brokers() == 1)
        await group.until(lambda: [*member.consumer.owned] == [ONE])
        await watched.look()
        watched.clock.jump(UNREACHABLE_AFTER)
        await watched.look()
        assert watched.monitor.unready == []  # all that it may own is consumed
        assert watched.metrics()["consumerd_lag_unknown_partitions"] == 1
        assert watched.monitor.point().lag is None


async def test_partitions_whose_broker_does_not_answer_are_not_ready_after_a_minute() -> None:
    async with MemoryGroup() as group:
        group.topic("t", 1)
        member = await group.member("null")
        await group.until(lambda: member.consumer.owned == {ONE: 0})
        watched = Watched(member)
        group.broker.away = True
        group.broker.abort()
        await watched.look()
        watched.clock.jump(UNREACHABLE_AFTER - 1)
        await watched.look()
        assert watched.monitor.unready == []
        watched.clock.jump(1)
        assert watched.monitor.unready == ["brokers_unreachable"]
        states, page = await watched.page()
        assert states == {"0-0": "unreachable"}
        assert '<td class="number">unknown</td>' in page


async def test_broker_that_answers_no_look_up_of_a_start_is_unreachable_after_a_minute() -> None:
    """A member that began after its broker had stopped answering says so, and not only that it starts."""
    async with MemoryGroup() as group:
        group.topic("t", 1)
        group.broker.away = True
        group.broker.abort()
        member = await group.member("null")
        await group.until(lambda: "memory:9000" in (member.consumer.why_not_consumed(ONE) or ""))
        watched = Watched(member)
        await watched.look()
        assert watched.monitor.unready == ["rebalancing"]
        status = (await read_status(watched.monitor))["partitions"]
        assert [(each["state"], each["lag"]) for each in status] == [("starting", None)]
        assert status[0]["not_consumed_because"] == member.consumer.why_not_consumed(ONE)
        watched.clock.jump(UNREACHABLE_AFTER)
        await watched.look()
        assert watched.monitor.unready == ["rebalancing", "brokers_unreachable"]
        states, page = await watched.page()
        assert states == {"0-0": "unreachable"}
        assert "only those that need attention" in page
        assert "1 needs attention" in page
