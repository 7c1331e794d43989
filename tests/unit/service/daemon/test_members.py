"""Several members as one: the order of their start, their common stop, and what the process ends with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumerd.base.errors import ConsumerdError, HandlerFailedError, HandlerLoadError
from consumerd.service.daemon.members import Members
from tests.support.waiting import turns


class Member:
    """Starts its handler when `start` is set, drains when `drain` is set, and writes down what it does."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.ready, self.running, self.stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.start, self.drain = asyncio.Event(), asyncio.Event()
        self.failure: ConsumerdError | None = None
        self.owned: list[Any] = [name]
        self.refuses: ConsumerdError | None = None
        self._name = name
        self._seen = seen

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        self.failure = self.failure or failure
        self.stopping.set()

    async def run(self) -> None:
        self._seen.append(f"{self._name} starts")
        await self.start.wait()
        if self.refuses is not None:
            raise self.refuses
        self.running.set()
        self.ready.set()
        try:
            await self.stopping.wait()
            self._seen.append(f"{self._name} drains")
            await self.drain.wait()
        except asyncio.CancelledError:
            self._seen.append(f"{self._name} cancelled")
            raise
        self._seen.append(f"{self._name} ends")
        if self.failure is not None:
            raise self.failure


class Scene:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.one, self.two = Member("one", self.seen), Member("two", self.seen)
        self.members = Members({"one": self.one, "two": self.two})
        self.task = asyncio.create_task(self.members.run())

    async def started(self) -> None:
        self.one.start.set()
        self.two.start.set()
        await asyncio.wait_for(self.members.ready.wait(), 60)

    async def ended(self) -> None:
        self.one.drain.set()
        self.two.drain.set()
        await asyncio.wait_for(self.task, 60)


async def test_starts_a_member_when_the_handler_before_it_has_started() -> None:
    scene = Scene()
    await turns()
    assert scene.seen == ["one starts"]
    scene.one.start.set()
    await asyncio.wait_for(scene.one.running.wait(), 60)
    await turns()
    assert scene.seen == ["one starts", "two starts"]
    assert not scene.members.ready.is_set()
    await scene.started()
    assert [*map(str, scene.members.owned)] == ["one", "two"]
    scene.members.request_stop()
    await scene.ended()


async def test_stop_drains_all_at_the_same_time() -> None:
    scene = Scene()
    await scene.started()
    scene.members.request_stop()
    await turns()
    assert scene.seen[2:] == ["one drains", "two drains"]
    await scene.ended()


@pytest.mark.parametrize("failing", ["one", "two"])
async def test_failure_of_one_stops_all_and_is_raised(failing: str) -> None:
    scene = Scene()
    await scene.started()
    failure = HandlerFailedError("the sink is broken")
    getattr(scene, failing).request_stop(failure)
    await asyncio.wait_for(scene.members.stopping.wait(), 60)
    assert scene.members.failure is failure
    with pytest.raises(HandlerFailedError, match="the sink is broken"):
        await scene.ended()
    assert sorted(scene.seen[2:]) == ["one drains", "one ends", "two drains", "two ends"]


async def test_handler_that_does_not_start_keeps_those_after_it_from_starting() -> None:
    scene = Scene()
    scene.one.refuses = HandlerLoadError("no database")
    scene.one.start.set()
    with pytest.raises(HandlerLoadError, match="no database"):
        await asyncio.wait_for(scene.task, 60)
    assert scene.seen == ["one starts"]


async def test_handler_that_does_not_start_stops_those_before_it() -> None:
    scene = Scene()
    scene.two.refuses = HandlerLoadError("no database")
    scene.one.drain.set()
    scene.one.start.set()
    scene.two.start.set()
    with pytest.raises(HandlerLoadError, match="no database"):
        await asyncio.wait_for(scene.task, 60)
    assert scene.seen[-2:] == ["one drains", "one ends"]


async def test_cancelling_cancels_all() -> None:
    scene = Scene()
    await scene.started()
    scene.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(scene.task, 60)
    assert sorted(scene.seen[2:]) == ["one cancelled", "two cancelled"]
