"""The group on the status page: what is known is shown at once, and what is not known is absent."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from consumerd.base.errors import BrokerError
from consumerd.service.config.model import parse
from consumerd.service.daemon.group_view import GroupWatch
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.status import read_status
from consumerd.service.daemon.status_page import render
from consumerd.testing import FakeClock, MemoryGroup


class Cluster:
    """A cluster that is asked for the group: it answers, fails, or does neither."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.failure: Exception | None = None
        self.asked = 0

    async def read(self) -> Any:
        self.asked += 1
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        view = SimpleNamespace(members=["a", "b"], owners={}, claims={}, owned_by_member=lambda: Counter(a=2, b=1))
        return SimpleNamespace(view=view, wanted=set)


async def members_of(monitor: Monitor) -> tuple[dict[str, Any], str]:
    """The group in the document, and the page."""
    status = await asyncio.wait_for(read_status(monitor), 60)
    return status["members"], render(status, word=None).decode()


async def test_shows_what_is_known_while_nothing_answers() -> None:
    tables = {"group": {"id": "group", "topics": {"t": 1}}, "handler": {"name": "null"}}
    cluster, clock = Cluster(), FakeClock(100.0)
    cluster.answers.clear()
    async with MemoryGroup() as group, Monitor(parse(tables, "test", environment=False), clock) as monitor:
        monitor.watch((await group.member("null")).consumer, cluster.read)
        for _ in range(2):
            members, page = await members_of(monitor)
            assert members == {"time": None, "live": None, "not_live": None, "unowned": None, "failure": None}
            assert "It is not known yet." in page
            await clock.advance(1.0)  # the second page does not wait
        assert cluster.asked == 1
        cluster.answers.set()
        await group.until(lambda: "group-reading" not in {task.get_name() for task in asyncio.all_tasks()})
        members, page = await members_of(monitor)
        assert [each["partitions"] for each in members["live"]] == [2, 1]
        read_at = members["time"]
        await clock.advance(60.0)
        cluster.answers.clear()
        members, page = await members_of(monitor)
        assert ([each["id"] for each in members["live"]], members["time"]) == (["a", "b"], read_at)
        assert f'As of <time datetime="{read_at}">' in page
    assert "group-reading" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_reads_again_after_a_failure_and_keeps_the_former_state() -> None:
    cluster, clock = Cluster(), FakeClock(100.0)
    watch = GroupWatch(clock, cluster.read)
    seen = await watch.look()
    assert seen is not None
    state, cluster.failure = seen.state, BrokerError("no broker answers")
    assert (await watch.look()) == seen  # it is kept for a while
    await clock.advance(4.0)
    failed = await watch.look()
    assert failed is not None
    assert (failed.state, failed.failure, cluster.asked) == (state, "no broker answers", 2)
    await clock.advance(4.0)
    cluster.failure = ZeroDivisionError("a defect")
    failed = await watch.look()
    assert failed is not None
    assert (failed.state, failed.failure) == (state, "ZeroDivisionError: a defect")
    await clock.advance(4.0)
    cluster.failure = None
    seen = await watch.look()
    assert seen is not None
    assert seen.state is not None
    assert (seen.state.at, seen.failure) == (112.0, None)


async def test_drops_a_reading_that_is_never_answered(monkeypatch: Any) -> None:
    monkeypatch.setattr("consumerd.service.daemon.group_view._PATIENCE", 0.01)
    monkeypatch.setattr("consumerd.service.daemon.group_view._AT_ONCE", 60.0)
    cluster = Cluster()
    cluster.answers.clear()
    watch = GroupWatch(FakeClock(100.0), cluster.read)
    seen = await watch.look()
    assert seen is not None
    assert (seen.state, seen.failure) == (None, "no answer in time")
