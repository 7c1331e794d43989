"""A connector with connections of its own, in virtual time: what it opens, how it joins, and what it leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from consumerd import ConnectorStateError, ConsumerConfig, ConsumerConnector
from consumerd.base.errors import IdTakenError, ZooKeeperError
from consumerd.member.consumer.streams import FRESH
from consumerd.net.client.errors import NoBrokerReachedError
from tests.simulation.daemon import ProcessClock
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.process import ProcessLoop
from tests.simulation.world import World
from tests.simulation.zookeeper import SimulatedZooKeeper


class Program:
    """A program that uses the library, as a process of its own."""

    def __init__(self, world: World | KafkaWorld) -> None:
        self.world = world
        self.loop = ProcessLoop(world.kernel, world.network, "program")

    def connector(self, **settings: Any) -> ConsumerConnector:
        """A connector that connects to the servers of the world."""
        tables = self.world.tables()
        if isinstance(self.world, World):
            address = {"zookeeper": tables["zookeeper"]["connect"]}
        else:
            address = {"bootstrap": tables["kafka"]["bootstrap"]}
        config = ConsumerConfig(group=self.world.group, **{"consumer_id": "a", **address, **settings})
        return ConsumerConnector(config, clock=ProcessClock(self.loop), rng=random.Random(1))

    @property
    def connections(self) -> int:
        return len(self.world.network.links_of("program"))

    def play(self, script: Callable[[], Coroutine[Any, Any, None]], seconds: float = 60.0) -> None:
        """Run the program to its end."""

        async def checked() -> None:
            await script()
            assert asyncio.all_tasks() == {asyncio.current_task()}, "tasks were left behind"

        self.loop.play(checked(), seconds)
        assert not self.connections, "connections were left open"


@pytest.fixture(params=[World, KafkaWorld])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """A program in a world where the members of a group, or a broker, coordinate it. There are three partitions."""
    with request.param(1) as world:
        world.topic("t", 3)
        world.produce_all()
        yield Program(world)


def test_opens_and_closes_connections_of_its_own(program: Program) -> None:
    made = program.connector()

    async def script() -> None:
        async with made:
            before = program.connections
            assert before > 0
            await made.start()  # it is running already
            assert program.connections == before
            streams = (await made.create_message_streams({"t": 2}))["t"]
            while len(made.assignment()) < 3:
                await asyncio.sleep(0.1)
            numbers = sorted(made.assignment().values())
            assert [numbers.count(0), numbers.count(1)] == [2, 1]
            for stream, count in zip(streams, (2, 1), strict=True):
                got = [(await anext(stream)).partition for _ in range(count)]
                assert [made.assignment()[partition] for partition in got] == [stream.number] * count
        with pytest.raises(ConnectorStateError, match="cannot be restarted"):
            await made.start()

    program.play(script)


def test_requires_start_before_streams(program: Program) -> None:
    made = program.connector()

    async def script() -> None:
        with pytest.raises(ConnectorStateError, match="not running"):
            await made.create_message_streams({"t": 1})
        await made.start()
        assert len(await made.create_message_streams({"t": 1})) == 1
        await made.shutdown()

    program.play(script)


def test_may_be_started_again_after_a_failed_start() -> None:
    with KafkaWorld(1) as world:
        world.topic("t", 1)
        world.produce_all()
        zookeeper = SimulatedZooKeeper(world.kernel, world.network, line=world.line)
        zookeeper.put("/brokers/ids", None)
        program = Program(world)
        made = program.connector(zookeeper="zookeeper:2181", offsets="both", connection_timeout=2.0)

        async def script() -> None:
            for fault, error, words in (
                (zookeeper.stop, ZooKeeperError, r"no connection to ZooKeeper at zookeeper:2181 \(.* tried for 2 s"),
                (zookeeper.start, NoBrokerReachedError, "no broker of kafka0:9092 answered within 2 s"),
            ):
                world.network.silent.add("kafka0")
                fault()
                with pytest.raises(error, match=words):
                    await made.start()
                assert asyncio.all_tasks() == {asyncio.current_task()}
                assert not zookeeper.sessions
                assert not program.connections
            world.network.silent.clear()
            async with made:
                (stream,) = (await made.create_message_streams({"t": 1}))["t"]
                await anext(stream)
                stream.ack()

        program.play(script)
        assert zookeeper.tree.nodes["/consumers/group/offsets/t/0"].data == b"1"


def test_join_raises_what_keeps_the_member_out_once() -> None:
    with World(1) as world:
        world.topic("t", 1)
        program = Program(world)
        first, twin = program.connector(), program.connector()

        async def script() -> None:
            async with first, twin:
                await first.create_message_streams({"t": 1})
                with pytest.raises(IdTakenError, match="'group_a' is held by another live member"):
                    await twin.create_message_streams({"t": 1})

        program.play(script, 120.0)
        assert not [what for _, _, what in world.kernel.timeline if "member_failed" in what]


def test_delivers_soon_after_the_fence_opens() -> None:
    with World(1) as world:
        world.topic("t", 1)
        world.produce(world.partitions[0], 2)
        program = Program(world)
        made = program.connector()

        async def script() -> None:
            async with made:
                (stream,) = (await made.create_message_streams({"t": 1}))["t"]
                await anext(stream)
                opens = world.kernel.now + 10.0
                fence: Any = made._running.fence
                fence.allows = lambda _: world.kernel.now >= opens
                await asyncio.sleep(FRESH)
                await anext(stream)
                assert opens <= world.kernel.now < opens + 0.1

        program.play(script)
