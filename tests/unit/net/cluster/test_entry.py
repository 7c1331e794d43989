"""Sessions begin on the chroot of a cluster, and say what is there instead."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd import ConsumerConfig, ConsumerConnector, ProducerConfig, open_producer
from consumerd.base.errors import NotFoundError, ZooKeeperError
from consumerd.net.cluster.entry import start_session
from consumerd.net.zk.errors import NotConnected
from consumerd.net.zk.session import Session
from tests.simulation.daemon import ProcessClock
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Network
from tests.simulation.process import ProcessLoop
from tests.simulation.zookeeper import SimulatedZooKeeper


class Place:
    """A ZooKeeper with a cluster below /kafka, and a client of it."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(1))
        self.zookeeper = SimulatedZooKeeper(self.kernel, self.network, line=Line(0.001))
        self.loop = ProcessLoop(self.kernel, self.network, "client")
        self.zookeeper.put("/kafka/brokers/ids", None)
        self.zookeeper.put("/other", None)

    def start(self, connect: str, **options: Any) -> None:
        """Start a session. Raises what `start_session` raises."""

        async def script() -> None:
            clock = ProcessClock(self.loop)
            session = Session(connect, clock=clock, rng=random.Random(1))
            try:
                await start_session(session, 10.0, clock, **options)
            finally:
                await session.close()

        self.loop.play(script(), 60.0)

    def has(self, path: str) -> bool:
        """Whether a node exists."""
        return path in self.zookeeper.leader.tree.nodes


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.loop.unwind()


def test_starts_on_a_chroot_with_brokers_or_consumers(place: Place) -> None:
    place.start("zookeeper:2181/kafka")
    place.zookeeper.put("/old/consumers", None)
    place.start("zookeeper:2181/old")


@pytest.mark.parametrize(
    ("chroot", "problem"),
    [
        ("/kakfa", "the chroot /kakfa does not exist in ZooKeeper at zookeeper:2181"),
        ("/other", "/other has neither brokers nor consumers in ZooKeeper at zookeeper:2181"),
        ("", "/ has neither brokers nor consumers in ZooKeeper at zookeeper:2181"),
    ],
)
def test_tool_names_the_chroot_that_was_meant_and_creates_none(place: Place, chroot: str, problem: str) -> None:
    with pytest.raises(NotFoundError) as raised:
        place.start(f"zookeeper:2181{chroot}", where="--zookeeper")
    assert str(raised.value) == f"{problem}, but /kafka has some; check the chroot in --zookeeper."
    assert place.kernel.now < 1.0
    assert not place.has("/kakfa")


def test_service_waits_for_a_broker_and_says_so_at_once(place: Place) -> None:
    place.kernel.at(5.0, lambda: place.zookeeper.put("/new/brokers/ids", None))
    with capture_logs() as logs:
        place.start("zookeeper:2181/new", allow_empty=False, wait=True)
    (waiting,) = [each for each in logs if each["event"] == "waiting_for_cluster"]
    assert waiting["log_level"] == "warning"
    assert waiting["reason"].startswith("the chroot /new does not exist in ZooKeeper at zookeeper:2181, but /kafka has")
    assert 5.0 <= place.kernel.now < 6.0


def test_service_ends_with_the_remedy_and_creates_nothing(place: Place) -> None:
    with pytest.raises(NotFoundError, match=r"or set zookeeper\.allow_empty"):
        place.start("zookeeper:2181/new", allow_empty=False, wait=True)
    assert 10.0 <= place.kernel.now < 11.0
    assert not place.has("/new")


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_library_names_the_chroot_that_was_meant_and_creates_none(place: Place, kind: str) -> None:
    clock, rng = ProcessClock(place.loop), random.Random(1)

    async def script() -> None:
        connect = "zookeeper:2181/kakfa"
        if kind == "consumer":
            config = ConsumerConfig(group="g", zookeeper=connect, connection_timeout=2.0)
            await ConsumerConnector(config, clock=clock, rng=rng).start()
        else:
            async with open_producer(ProducerConfig(zookeeper=connect, session_wait=2.0), clock=clock, rng=rng):
                pass

    with pytest.raises(NotFoundError) as raised:
        place.loop.play(script(), 60.0)
    assert str(raised.value) == (
        "the chroot /kakfa does not exist in ZooKeeper at zookeeper:2181, but /kafka has some; check the chroot in "
        "zookeeper."
    )
    assert 2.0 <= place.kernel.now < 4.0
    assert not place.has("/kakfa")


def test_creates_the_chroot_where_that_is_allowed(place: Place) -> None:
    place.start("zookeeper:2181/new/chroot", allow_empty=True)
    assert place.has("/new/chroot")


def test_reports_a_name_that_does_not_resolve_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, port: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(place.network, "resolve", unknown)
    with pytest.raises(NotConnected) as raised:
        place.start("nohost:2181/kafka", where="--zookeeper")
    assert str(raised.value) == (
        "cannot connect to ZooKeeper at nohost:2181: the host name does not resolve (Name or service not known); check "
        "the address in --zookeeper, and the DNS of this machine."
    )
    assert place.kernel.now < 1.0


def test_service_goes_on_trying_a_name_that_does_not_resolve(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, port: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolve = place.network.resolve
    monkeypatch.setattr(place.network, "resolve", unknown)
    with capture_logs() as logs, pytest.raises(ZooKeeperError, match=r"does not resolve .* tried for 10 s\."):
        place.start("zookeeper:2181/kafka", wait=True)
    assert [each["log_level"] for each in logs if each["event"] == "connect_failed"] == ["warning"]
    place.kernel.at(place.kernel.now + 5.0, lambda: monkeypatch.setattr(place.network, "resolve", resolve))
    place.start("zookeeper:2181/kafka", wait=True)
