"""The one connection to a broker, with connections in memory: its end, its back-off, and the broker's moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.errors import BrokerUnknownError
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.link import BrokerLink
from consumerd.net.errors import ConnectError
from tests.support.fetching import FetchingInMemory
from tests.support.waiting import cancel, turns

HOME, ELSEWHERE = ("a", 9092), ("b", 9093)


class Connection:
    """A connection that ends when a test says so, and takes a while to close."""

    def __init__(self) -> None:
        self.closed = False
        self.gone = asyncio.Event()
        self.may_go = asyncio.Event()
        self.may_go.set()

    def abort(self) -> None:
        self.closed = True
        self.gone.set()

    async def wait_closed(self) -> None:
        await self.gone.wait()
        await self.may_go.wait()


class Linked(FetchingInMemory):
    """A running link to broker 3 at `address`; connections fail while `refuses`."""

    def __init__(self) -> None:
        super().__init__(TopicPartition("t", 3, 0), FetchSettings(retry_backoff_min=1.0, retry_backoff_max=4.0))
        self.place: tuple[str, int] | None = HOME
        self.refuses = False
        self.made: list[tuple[tuple[str, int], Connection]] = []
        self.subscribers: list[Callable[..., None]] = []
        made: Any = self._connect
        self.link = BrokerLink(3, made, self, self.services)

    async def _connect(self, host: str, port: int) -> Any:
        if self.refuses:
            raise ConnectError("refused")
        self.made.append(((host, port), Connection()))
        return self.made[-1][1]

    def address(self, broker_id: int) -> tuple[str, int] | None:
        assert broker_id == 3
        return self.place

    def subscribe(self, changed: Callable[..., None]) -> Callable[[], None]:
        self.subscribers.append(changed)
        return lambda: self.subscribers.remove(changed)

    def move(self, place: tuple[str, int] | None, *, notify: bool = True) -> None:
        self.place = place
        for changed in self.subscribers * notify:
            changed({3: place})

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)

    async def connection(self) -> Any:
        async with asyncio.timeout(5):
            return await self.link.connection()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Linked]:
        task = asyncio.create_task(self.link.run())
        with capture_logs() as self.logs:
            yield self
        await cancel(task)
        assert self.subscribers == []
        assert all(connection.closed for _, connection in self.made)


async def test_shares_one_connection_and_opens_private_ones_beside_it() -> None:
    async with Linked().running() as r:
        waiting = [asyncio.create_task(r.connection()) for _ in range(3)]
        found = await asyncio.gather(*waiting)
        assert found == [r.made[0][1]] * 3
        assert await r.connection() is found[0]
        private: Any = await r.link.private_connection()
        assert private is r.made[1][1]
        private.abort()
        assert await r.connection() is found[0]
        assert [address for address, _ in r.made] == [HOME, HOME]
        assert (r.link.connections, r.counters.connects, r.counters.disconnects) == (1, 1, 0)
    assert r.logs == []


async def test_reports_an_outage_once_and_backs_off_until_a_response() -> None:
    async with Linked().running() as r:
        former = await r.connection()
        for _ in range(4):  # a broker that closes each connection is as useless as one that refuses it
            former.abort()
            await r.until(lambda: not r.made[-1][1].closed)
            former = await r.connection()
        bases = [1, 2, 4, 4]
        assert all(base / 2 <= slept <= base for base, slept in zip(bases, r.clock.sleeps, strict=True))
        assert (r.link.connections, r.counters.connects, r.counters.disconnects) == (5, 5, 4)
        assert r.logs == [
            {
                "event": "broker_lost",
                "log_level": "warning",
                "broker": 3,
                "address": "a:9092",
                "reason": "the connection ended",
            }
        ]
        r.link.worked()
        r.link.worked()
        assert r.logs[1:] == [{"event": "broker_reconnected", "log_level": "info", "broker": 3, "address": "a:9092"}]
        former.abort()
        await r.until(lambda: not r.made[-1][1].closed)
        assert r.clock.sleeps[-1] <= 1
        assert [each["event"] for each in r.logs[2:]] == ["broker_lost"]


@pytest.mark.parametrize(
    ("place", "address", "reason"),
    [
        (HOME, "a:9092", "refused"),
        (None, "unknown", "broker 3 is not registered in ZooKeeper; is it running?"),
    ],
)
async def test_tries_again_while_no_connection_can_be_made(
    place: tuple[str, int] | None, address: str, reason: str
) -> None:
    r = Linked()
    r.place, r.refuses = place, True
    async with r.running():
        await r.until(lambda: len(r.clock.sleeps) >= 5)
        assert [(each["event"], each["address"], each["reason"]) for each in r.logs] == [
            ("broker_lost", address, reason)
        ]
        assert r.counters.disconnects >= 5
        assert (r.counters.connects, r.link.connections) == (0, 0)
        with pytest.raises(BrokerUnknownError if place is None else ConnectError):
            await r.link.private_connection()
        r.place, r.refuses = ELSEWHERE, False
        await r.connection()
        assert r.made[0][0] == ELSEWHERE


@pytest.mark.parametrize("notify", [True, False])
async def test_leaves_the_former_address_of_a_broker_that_moved(notify: bool) -> None:
    async with Linked().running() as r:
        former = await r.connection()
        r.move(HOME)
        r.move(None, notify=notify)  # an unregistered broker may well continue to serve
        assert await r.connection() is former
        r.move(ELSEWHERE, notify=notify)
        assert former.closed == notify
        assert await r.connection() is r.made[-1][1]
        assert [address for address, _ in r.made] == [HOME, ELSEWHERE]
        assert [each for each in r.logs if each["event"] == "broker_moved"] == [
            {"event": "broker_moved", "log_level": "info", "broker": 3, "old": "a:9092", "new": "b:9093"}
        ]
        r.move(None)
        r.move(ELSEWHERE)
        assert not r.made[-1][1].closed


async def test_change_of_address_without_a_connection_is_not_a_move() -> None:
    r = Linked()
    r.refuses = True
    async with r.running():
        await r.until(lambda: bool(r.clock.sleeps))
        r.move(ELSEWHERE)
        r.refuses = False
        connection = await r.connection()
        connection.abort()
        r.move(HOME)
        await r.connection()
        assert "broker_moved" not in [each["event"] for each in r.logs]


async def test_ends_when_its_connection_is_closed() -> None:
    r = Linked()
    task = asyncio.create_task(r.link.run())
    connection = await r.connection()
    connection.may_go.clear()
    task.cancel()
    await turns(10)
    assert (task.done(), connection.closed, r.subscribers) == (False, True, [])
    connection.may_go.set()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_ends_while_no_connection_was_ever_made() -> None:
    r = Linked()
    r.refuses = True
    task = asyncio.create_task(r.link.run())
    await turns(10)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
