"""Producers as `open_producer` makes them from a configuration, on brokers and a ZooKeeper in memory."""

from __future__ import annotations

import random
import ssl
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.net.client.errors import NoBrokerReachedError as NoBrokerAnswered
from consumerd.net.connection import ConnectionSettings
from consumerd.producer import (
    AsyncProducer,
    CallbackHandler,
    ClusterProducer,
    DefaultEventHandler,
    Encoder,
    Event,
    NoBrokerError,
    PluginError,
    Producer,
    ProducerConfig,
    ProducerSettings,
    QueueSettings,
    open_producer,
    opening,
)
from consumerd.producer.v08.routing import key_partition
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from tests.unit.producer.conftest import Told, World
from tests.unit.producer.v08.test_producer import PARTITIONS, MemoryCluster

OLD_BROKER = b"creator:memory:1"
NEW_BROKER = (
    b'{"version":5,"host":"kafka","port":1,"jmx_port":-1,"listener_security_protocol_map":{},"endpoints":'
    b'["PLAINTEXT://kafka:1","SSL://kafka:2","SASL_PLAINTEXT://kafka:3","SASL_SSL://kafka:4"]}'
)
SSL_ONLY = b'{"version":2,"host":null,"port":-1,"jmx_port":-1,"endpoints":["SSL://other:2"]}'


class Client(MemoryCluster):
    """A client of brokers in memory, of which one answers when `answers`."""

    def __init__(self, addresses: list[tuple[str, int]], options: dict[str, Any]) -> None:
        super().__init__()
        self.addresses, self.options = addresses, options
        self.answers = True
        self.closed = False

    async def refresh(self) -> None:
        if not self.answers:
            raise NoBrokerAnswered("none answers")

    async def retrying(self, what: str, call: Any, *, timeout: float) -> None:
        self.timeout = timeout
        await call()

    async def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Surroundings:
    """What `open_producer` reaches outside, and what it asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.sessions: list[Any] = []
        self.session_options: list[tuple[str, float, float]] = []
        self.clients: list[Client] = []
        self.answers = True
        monkeypatch.setattr(opening, "Session", self._session)
        monkeypatch.setattr(opening, "make_client", self._client)

    def _session(self, connect: str, *, clock: Any, rng: Any, session_timeout: float) -> Any:
        session = self.zookeeper.session(session_timeout=session_timeout)
        start = session.start

        async def started(timeout: float | None = None) -> None:
            self.session_options.append((connect, session_timeout, timeout or 0))
            await start(timeout)

        session.start = started  # type: ignore[method-assign]
        self.sessions.append(session)
        return session

    def _client(self, addresses: list[tuple[str, int]], connection: Any, **options: Any) -> Client:
        client = Client(addresses, {"connection": connection, **options})
        client.answers = self.answers
        self.clients.append(client)
        return client


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    return Surroundings(monkeypatch)


class Twice(DefaultEventHandler):
    async def handle(self, events: Sequence[Event], producer: Producer, encoder: Encoder) -> None:
        await super().handle([*events, *events], producer, encoder)


class Upper(Encoder):
    def encode(self, message: Any, /) -> bytes:
        return str(message).upper().encode()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, told: Told) -> ModuleType:
    """A module of parts that can be named."""
    module = ModuleType("my_parts")
    module.__dict__.update(Upper=Upper, told=told, Twice=Twice, number=17)
    monkeypatch.setitem(sys.modules, "my_parts", module)
    return module


@pytest.mark.parametrize("background", [False, True])
async def test_list_of_brokers_of_0_7_needs_no_zookeeper(world: World, around: Surroundings, background: bool) -> None:
    config = ProducerConfig(brokers=(("memory", 1),), background=background, settings=ProducerSettings(resends=7))
    async with open_producer(config, clock=world.clock, rng=world.rng, connect=world.broker.connect) as ours:
        assert type(ours) is (AsyncProducer if background else Producer)
        await ours.send("t", [b"x", "text"], partition=0)
    assert world.stored("t") == [b"x", b"text"]
    assert not around.sessions
    assert not world.broker.connections


async def test_connects_with_the_configured_settings(
    world: World, around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    async def connect(host: str, port: int, *, settings: ConnectionSettings) -> Any:
        used.append(settings)
        return await world.broker.connect(host, port)

    monkeypatch.setattr(opening, "connect_to_broker", connect)
    settings = ConnectionSettings(connect_timeout=1.5)
    async with open_producer(ProducerConfig(brokers=(("memory", 1),), connection=settings)) as ours:
        await ours.send("t", [b"x"], partition=0)
    assert used == [settings]
    assert world.stored("t") == [b"x"]


@pytest.mark.parametrize("named", [False, True])
async def test_uses_parts_that_are_named_or_given(world: World, told: Told, parts: ModuleType, named: bool) -> None:
    config = ProducerConfig(
        brokers=(("memory", 1),),
        background=True,
        queue=QueueSettings(batch_size=3, queue_time=3600),
        encoder="my_parts:Upper" if named else Upper(),
        callbacks="my_parts:told" if named else told,
        event_handler="my_parts:Twice" if named else Twice(),
    )
    async with open_producer(config, clock=world.clock, rng=world.rng, connect=world.broker.connect) as ours:
        await ours.send("t", ["x", "y", "z"], partition=0)
    assert world.stored("t") == [b"X", b"Y", b"Z"] * 2
    assert ("after_enqueue", ("x", True)) in told.calls
    assert told.calls[-1] == ("close", None)


@pytest.mark.parametrize(
    ("part", "given", "words"),
    [
        ("encoder", "my_parts:number", "the encoder 'my_parts:number' must be a Encoder, not a int"),
        ("callbacks", "my_parts:Upper", "the callback handler 'my_parts:Upper' must be a CallbackHandler, not a Upper"),
        ("event_handler", Upper(), "the event handler .* must be a EventHandler, not a Upper"),
        ("callbacks", "nobody", "unknown callback handler 'nobody'. There is none."),
    ],
)
async def test_rejects_a_part_of_the_wrong_kind(parts: ModuleType, part: str, given: Any, words: str) -> None:
    options: dict[str, Any] = {part: given}
    with pytest.raises(PluginError, match=words):
        async with open_producer(ProducerConfig(brokers=(("memory", 1),), background=True, **options)):
            pass


@pytest.mark.parametrize(
    ("registered", "dialect", "is_new"),
    [
        (None, "auto", False),
        (OLD_BROKER, "auto", False),
        (NEW_BROKER, "auto", True),
        (NEW_BROKER, "0.8", True),
        (NEW_BROKER, "0.7", False),
    ],
)
async def test_makes_the_producer_for_the_brokers_that_are_registered(
    around: Surroundings, registered: bytes | None, dialect: Any, is_new: bool
) -> None:
    around.zookeeper.put("/brokers/ids", None)
    if registered is not None:
        around.zookeeper.put("/brokers/ids/0", registered)
    config = ProducerConfig(zookeeper="zk:1/chroot", dialect=dialect, session_timeout=3.0, session_wait=4.0)
    async with open_producer(config) as ours:
        assert type(ours) is (ClusterProducer if is_new else Producer)
        assert around.sessions[0].link is not None
    assert around.session_options == [("zk:1/chroot", 3.0, 4.0)]
    assert around.sessions[0].link is None
    assert [client.closed for client in around.clients] == [True] * is_new


async def test_partitioner_places_keys_among_the_registered_partitions_of_0_7(
    world: World, around: Surroundings
) -> None:
    around.zookeeper.put("/brokers/ids/0", OLD_BROKER)
    around.zookeeper.put("/brokers/topics/t/0", b"3")
    config = ProducerConfig(zookeeper="zk:1", partitioner=lambda key, count: count - 1)
    async with open_producer(config, clock=world.clock, rng=world.rng, connect=world.broker.connect) as ours:
        await ours.send("t", [b"x"], key="key")
    assert world.stored("t", 2) == [b"x"]


@pytest.mark.parametrize("chosen", [False, True])
async def test_partitioner_places_keys_among_the_partitions_of_0_8(around: Surroundings, chosen: bool) -> None:
    """Without one as Java's producers do, not as those of 0.7."""
    keys = ["a", "b", "c", "d", "e", "f"]
    config = ProducerConfig(bootstrap=["kafka:9092"], partitioner=(lambda key, count: 1) if chosen else None)
    async with open_producer(config, rng=random.Random(1)) as ours:
        for key in keys:
            await ours.send("t", [key], key=key)
    places = [1 if chosen else key_partition(key.encode(), PARTITIONS) for key in keys]
    log = around.clients[0].log
    assert [[record.payload for record in log[n]] for n in range(PARTITIONS)] == [
        [key.encode() for key, place in zip(keys, places, strict=True) if place == n] for n in range(PARTITIONS)
    ]


@pytest.mark.parametrize(
    ("tls", "sasl", "addresses"),
    [
        (False, False, [("kafka", 1)]),
        (True, False, [("kafka", 2), ("other", 2)]),
        (False, True, [("kafka", 3)]),
        (True, True, [("kafka", 4)]),
    ],
)
async def test_begins_with_the_listeners_of_the_configured_protocol(
    around: Surroundings, tls: bool, sasl: bool, addresses: list[tuple[str, int]]
) -> None:
    around.zookeeper.put("/brokers/ids/0", NEW_BROKER)
    around.zookeeper.put("/brokers/ids/1", SSL_ONLY)
    mechanism: Any = object
    context = ssl.create_default_context() if tls else None
    config = ProducerConfig(
        zookeeper="zk:1", broker_tls=context, sasl=mechanism if sasl else None, client_id="me", session_wait=4.0
    )
    async with open_producer(config):
        pass
    client = around.clients[0]
    assert client.addresses == addresses
    assert client.options["tls"] is context
    assert client.options["sasl"] is config.sasl
    assert client.options["connection"] is config.connection
    assert (client.options["client_id"], client.timeout) == ("me", 4.0)


async def test_reports_that_no_registered_broker_has_a_suitable_listener(around: Surroundings) -> None:
    around.zookeeper.put("/brokers/ids/1", SSL_ONLY)
    with pytest.raises(NoBrokerError, match="no broker with a PLAINTEXT listener is registered in ZooKeeper"):
        async with open_producer(ProducerConfig(zookeeper="zk:1")):
            pass
    assert not around.clients
    assert around.sessions[0].link is None


async def test_rejects_settings_of_0_7_where_brokers_of_0_8_are_registered(around: Surroundings) -> None:
    around.zookeeper.put("/brokers/ids/0", NEW_BROKER)
    with pytest.raises(ConfigError, match=r"callbacks is supported by brokers of Kafka 0\.7 only"):
        async with open_producer(ProducerConfig(zookeeper="zk:1", background=True, callbacks=CallbackHandler())):
            pass


async def test_closes_its_client_when_no_broker_answers(around: Surroundings) -> None:
    around.answers = False
    with pytest.raises(NoBrokerAnswered, match=r"no broker of kafka:9092, \[::1\]:1 answered within 10 s"):
        async with open_producer(ProducerConfig(bootstrap=["kafka:9092", "[::1]:1"])):
            pass
    assert around.clients[0].closed
