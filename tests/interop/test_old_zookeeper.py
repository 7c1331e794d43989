"""Groups on the ZooKeeper servers that 0.7 and its successors ran with. 3.3 has no multi, and drops it unanswered."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from consumerd import ConsumerConfig, ConsumerConnector
from consumerd.base.clock import SystemClock
from consumerd.base.java import MissingRuntimeError
from consumerd.base.partition import TopicPartition
from consumerd.demo.children import Child
from consumerd.demo.processes import BrokerProcess, clean_environment, consumerd_command
from consumerd.net.connect import connect
from consumerd.net.zk.errors import NotConnected
from consumerd.net.zk.sasl import DigestMd5
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import offset_path, owners_path
from consumerd.wire.v07 import LATEST, OffsetsRequest, ProduceRequest, encode_message_set
from tests.support.maven import fetch_jars
from tests.support.waiting import until

pytestmark = [pytest.mark.zookeeper]

PARTITIONS = 8
RELEASES = {
    "3.3.6": ("org.apache.zookeeper:zookeeper:3.3.6", "log4j:log4j:1.2.17"),
    "3.4.14": ("org.apache.zookeeper:zookeeper:3.4.14",),
}


@pytest.fixture(params=RELEASES)
def server_jars(request: pytest.FixtureRequest, missing: Callable[[str], NoReturn]) -> tuple[str, list[Path]]:
    try:
        return request.param, fetch_jars(RELEASES[request.param])
    except MissingRuntimeError as error:
        missing(str(error))


async def produce(broker: BrokerProcess, first: int, count: int) -> list[bytes]:
    connection = await connect("127.0.0.1", broker.port)
    produced = []
    for number in range(PARTITIONS):
        payloads = [b"%d/%d" % (number, first + index) for index in range(count)]
        await connection.send(ProduceRequest("t", number, encode_message_set(payloads)).encode())
        produced += payloads
    await connection.request(OffsetsRequest("t", 0, LATEST, 1).encode())  # answered: all before it is stored
    await connection.close()
    return produced


class Worker:
    """A member, and what its stream brought."""

    def __init__(self, zookeeper: str) -> None:
        config = ConsumerConfig(group="g", zookeeper=zookeeper, idle_backoff=0.05, consumer_timeout=None)
        self.connector = ConsumerConnector(config)
        self.seen: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> None:
        await self.connector.start()
        (stream,) = (await self.connector.create_message_streams({"t": 1}))["t"]

        async def read() -> None:
            async for message in stream:
                self.seen.append(message.payload or b"")

        self._task = asyncio.create_task(read())

    async def leave(self) -> None:
        await self.connector.shutdown()
        assert self._task is not None
        await self._task


async def test_members_join_and_leave_without_loss_or_repetition(
    server_jars: tuple[str, list[Path]], zookeeper_factory: Any, tmp_path: Path
) -> None:
    release, jars = server_jars
    server = await zookeeper_factory(jars=jars)
    async with (
        BrokerProcess(tmp_path, server.connect, partitions=PARTITIONS, settings={"log.flush.interval": 1}) as broker,
        Session(server.connect, clock=SystemClock(), rng=random.Random(1)) as zk,
    ):
        assert zk.has_multi == (release != "3.3.6")
        produced = await produce(broker, 0, 50)
        first, second = Worker(server.connect), Worker(server.connect)
        await first.join()
        await until(lambda: len(first.seen) == len(produced))
        await second.join()
        await until(lambda: len(second.connector.assignment()) == len(first.connector.assignment()) == PARTITIONS // 2)
        produced += await produce(broker, 50, 50)
        await until(lambda: len(first.seen) + len(second.seen) == len(produced))
        await second.leave()
        await until(lambda: len(first.connector.assignment()) == PARTITIONS)
        produced += await produce(broker, 100, 50)
        await until(lambda: len(first.seen) + len(second.seen) >= len(produced))
        await first.leave()
        assert sorted(first.seen + second.seen) == sorted(produced)
        assert second.seen
        assert await zk.children(owners_path("g", "t")) == []
        ends = {int((await zk.get(offset_path("g", TopicPartition("t", 0, n))))[0] or b"") for n in range(PARTITIONS)}
        assert min(ends) > 0

        reset = Child(
            consumerd_command("offsets", "reset", "--zookeeper", server.connect, "--group", "g", "--topic", "t",
                         "--to", "earliest", "--execute"),
            log=tmp_path / "reset.log", name="reset", env=clean_environment(), cwd=tmp_path,
        )  # fmt: skip
        reset.start()
        assert await reset.wait(60) == 0, reset.output()
        assert (await zk.get(offset_path("g", TopicPartition("t", 0, 0))))[0] == b"0"


async def test_sasl_begins_with_3_4_which_only_closes_the_connection_on_a_wrong_password(
    server_jars: tuple[str, list[Path]], zookeeper_factory: Any, tmp_path: Path
) -> None:
    release, jars = server_jars
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        'Server {\n org.apache.zookeeper.server.auth.DigestLoginModule required user_alice="secret";\n};\n', "ascii"
    )
    provider = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    server = await zookeeper_factory(
        jars=jars,
        config={} if release == "3.3.6" else provider,
        jvm=[f"-Djava.security.auth.login.config={jaas}"],
    )

    def session(password: str) -> Session:
        sasl = functools.partial(DigestMd5, "alice", password)
        return Session(server.connect, clock=SystemClock(), rng=random.Random(1), session_timeout=10, sasl=sasl)

    if release == "3.3.6":
        with pytest.raises(NotConnected, match="did not answer while the session was prepared"):
            await session("secret").start()
        return
    async with session("secret") as alice:
        await alice.create("/mine", b"1")
    reason = "the server closed the connection during the authentication with DIGEST-MD5: the user, password or ticket"
    with pytest.raises(NotConnected, match=reason):
        await session("wrong").start(4)
