"""The totals of a daemon: a lag of which a part is not known is not known."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.consumer.running_member import RunningMember
from consumerd.service.config.model import parse
from consumerd.service.daemon.monitor import Monitor
from consumerd.testing.clock import FakeClock

T = [TopicPartition("t", 0, number) for number in range(2)]


class Member:
    """Owns both partitions at position 10; those of `ends` end there, of others the broker does not say it."""

    def __init__(self) -> None:
        self.ends = {T[0]: 30}
        self.owned = list(T)
        self.stats = SimpleNamespace(messages=0, bytes=0)
        self.controls = self
        self.in_session = True
        self.ready, self.stopping = asyncio.Event(), asyncio.Event()
        self.turns = self.waiting_events = 0
        self.in_hand: Any = dict
        self.unregistered: list[TopicPartition] = []
        self.registered = 1
        self.settings = SimpleNamespace(fetch=SimpleNamespace(read_committed=False))

    def views(self) -> list[OwnedView]:
        return [OwnedView(each, 0, 10, 10, False, 0, 0, None) for each in self.owned]

    @property
    def assigned(self) -> list[TopicPartition]:
        return self.owned

    def brokers(self) -> int:
        return self.registered

    def known_end(self, partition: TopicPartition) -> None:
        return None

    async def log_end(self, partition: TopicPartition) -> int:
        if partition not in self.ends:
            raise BrokerError("no answer")
        return self.ends[partition]


async def test_total_lag_is_not_known_while_that_of_a_partition_is_not() -> None:
    tables = {
        "group": {"id": "g", "topics": {"t": 1}},
        "subscriptions": [{"name": "u", "topics": {"u": 1}, "handler": {"name": "ndjson"}}],
    }
    monitor = Monitor(parse(tables, "test", environment=False), FakeClock())
    one, two = monitor.subscriptions
    member, idle = Member(), Member()
    idle.owned = []
    one.member, two.member = cast("RunningMember[Any]", member), cast("RunningMember[Any]", idle)
    await one.look_at_lag()
    assert (one.point().lag, two.point().lag, monitor.point().lag) == (None, 0, None)
    member.ends[T[1]] = 15
    await one.look_at_lag()
    assert (one.point().lag, monitor.point().lag) == (25, 25)


async def test_lag_is_unknown_without_brokers_without_a_session_and_of_partitions_without_a_broker() -> None:
    tables = {"group": {"id": "g", "topics": {"t": 1}}}
    monitor = Monitor(parse(tables, "test", environment=False), FakeClock())
    member, part = Member(), monitor.main
    member.ends[T[1]] = 15
    monitor.watch(cast("RunningMember[Any]", member))
    await part.look_at_lag()
    part.look_after_health()
    assert monitor.point().lag == 25
    member.registered = 0
    assert monitor.point().lag is None
    member.registered, member.unregistered = 1, [TopicPartition("t", 1, 0)]
    assert monitor.point().lag is None
    member.owned, member.unregistered = [], []
    assert monitor.point().lag == 0
    member.in_session = False
    part.look_after_health()
    assert monitor.point().lag is None
    assert part.lags(cast("RunningMember[Any]", member)) == dict.fromkeys(T)
