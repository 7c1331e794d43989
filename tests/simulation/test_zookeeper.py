"""The simulated ZooKeeper as the real client sees it: sessions, ephemerals, watches, multis, followers, outages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from consumerd.base.ports import Create, SessionEvent
from consumerd.net.zk.errors import ConnectionLost
from consumerd.net.zk.session import Session
from tests.simulation.daemon import ProcessClock
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Network
from tests.simulation.process import ProcessLoop
from tests.simulation.zookeeper import SimulatedZooKeeper

ROUND_TRIP = 0.01


class Place:
    """A ZooKeeper 5 ms away, and clients in processes of their own."""

    def __init__(self, **options: Any) -> None:
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(1))
        self.server = SimulatedZooKeeper(
            self.kernel, self.network, line=Line(ROUND_TRIP / 2, jitter=0.0), **{"tick": 0.5, **options}
        )

    def play(
        self, script: Callable[[Session], Coroutine[Any, Any, None]], name: str = "client", *, close: bool = True
    ) -> Session:
        """Run `script(session)` in a process of its own, on a session that was started."""
        loop = ProcessLoop(self.kernel, self.network, name)
        made: list[Session] = []

        async def work() -> None:
            made.append(
                Session("zookeeper:2181/base", clock=ProcessClock(loop), rng=random.Random(name), session_timeout=4.0)
            )
            await made[0].start()
            try:
                await script(made[0])
            finally:
                if close:
                    await made[0].close()

        loop.play(work(), 300.0)
        return made[0]


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    for loop in made.kernel.loops:
        loop.unwind()


def test_server_of_3_3_does_not_answer_a_multi() -> None:
    place = Place(with_multi=False)

    async def script(zk: Session) -> None:
        assert not zk.has_multi
        with pytest.raises(ConnectionLost):
            await zk.multi([Create("/a", b"1")])
        assert await zk.exists("/a") is None

    place.play(script)
    place.kernel.loops[0].unwind()


def test_ephemerals_end_with_their_closed_or_expired_session(place: Place) -> None:
    async def own(zk: Session) -> None:
        await zk.create_ephemeral("/owned", b"x", wait=0)

    closed = place.play(own, "closed")
    assert place.server.tree.nodes.get("/base/owned") is None
    assert closed.session_id == 0
    place.play(own, "silent", close=False)
    place.kernel.loops[-1].stop_process()
    place.kernel.run(3.0)
    assert "/base/owned" in place.server.tree.nodes
    place.kernel.run(4.0)
    assert "/base/owned" not in place.server.tree.nodes
    assert [owner for _, owner in place.server.expired] == ["silent"]


def test_owned_node_is_created_a_second_after_another_one_has_gone_whose_watch_was_lost(place: Place) -> None:
    async def script(zk: Session) -> None:
        place.server.put("/base/owned", b"", session=place.server.peer("other"))
        begun = place.kernel.now
        creating = asyncio.create_task(zk.create_ephemeral("/owned", b"x", wait=10.0))
        await asyncio.sleep(0.5)
        place.server.leader.data_watches.clear()
        place.server.remove("/base/owned")
        await creating
        assert 1.0 < place.kernel.now - begun < 1.0 + 4 * ROUND_TRIP

    place.play(script)


def test_session_survives_a_disconnect_and_notices_its_expiry(place: Place) -> None:
    events: list[SessionEvent] = []

    async def script(zk: Session) -> None:
        zk.subscribe(lambda event, _: events.append(event))
        first = zk.session_id
        place.network.links_of("client")[0].cut()
        await asyncio.sleep(0.1)
        await zk.create("/a", b"")
        assert zk.session_id == first
        place.server.expire("client")
        await asyncio.sleep(1.0)
        assert zk.session_id not in (0, first)

    place.play(script)
    assert events == [
        SessionEvent.SUSPENDED,
        SessionEvent.RECONNECTED,
        SessionEvent.SUSPENDED,
        SessionEvent.EXPIRED,
        SessionEvent.NEW,
    ]


def test_write_with_a_lost_reply_is_applied(place: Place) -> None:
    async def script(zk: Session) -> None:
        await asyncio.sleep(0.1)  # the first heartbeat is answered
        place.network.links_of("client")[0].lose_reply = True
        with pytest.raises(ConnectionLost):
            await zk.create("/a", b"")
        assert await zk.exists("/a") is not None

    place.play(script)


def test_sessions_outlive_an_outage(place: Place) -> None:
    async def script(zk: Session) -> None:
        await zk.create_ephemeral("/owned", b"x", wait=0)
        session = zk.session_id
        place.server.stop()
        await asyncio.sleep(10.0)
        place.server.start()
        await zk.create("/a", b"")
        assert zk.session_id == session
        stat = await zk.exists("/owned")
        assert stat is not None
        assert stat.ephemeral_owner == session

    place.play(script)


def test_follower_reads_are_stale_but_never_behind_the_client(place: Place) -> None:
    place.server.entry = place.server.follow(0.5)

    async def script(zk: Session) -> None:
        await zk.create("/a", b"0")
        for number in range(1, 4):
            asked = asyncio.create_task(zk.set("/a", b"%d" % number))
            await asyncio.sleep(0)
            assert (await zk.get("/a"))[0] == b"%d" % number
            await asked
        place.server.put("/base/a", b"by somebody else")
        assert (await zk.get("/a"))[0] == b"3"
        await asyncio.sleep(0.6)
        assert (await zk.get("/a"))[0] == b"by somebody else"

    place.play(script)


def test_busy_server_answers_at_its_rate() -> None:
    place = Place(rate=1000.0)

    async def script(zk: Session) -> None:
        begun = place.kernel.now
        await asyncio.gather(*(zk.exists(f"/{number}") for number in range(2000)))
        took = place.kernel.now - begun
        assert 2.0 < took < 2.2, took

    place.play(script)
    place.kernel.loops[0].unwind()
