"""Logs that become other ones beneath a sink that keeps positions of its own, in a directory or a simulated server.

Strategy: the stories of `tests.simulation.log_changes`, told with members whose handler is the product's sink. `wrong`
compares what is stored with what was ever produced: every message of the present logs is there once, and every row of
the former logs is there still. Whatever a sink cannot tell apart has to end its member with an error.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from asyncpg.protocol import protocol as asyncpg_protocol

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.handlers.builtin.postgres import PostgresHandler
from consumerd.handlers.forward.identity import read_identity
from consumerd.service.daemon import forwarding
from tests.simulation.daemon import Daemon
from tests.simulation.kafka_broker import PRODUCER_ERAS, Era, SimulatedKafka
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.log_changes import TOPIC, Telling
from tests.simulation.network import Line
from tests.simulation.postgres_server import SimulatedPostgres
from tests.simulation.table_world import TIMEOUT, DatabaseTime
from tests.simulation.threads import ThreadedLoop

#: A row that is stored: the number of the partition, the offset, the payload.
Row = tuple[int, int, bytes]
#: The broker of the cluster that is forwarded to: no number of the source's.
_TARGET = 10


class SinkLogWorld(KafkaWorld):
    """A group, coordinated by brokers, whose members have a sink."""

    def __init__(self, era: Era, make: Callable[[], Handler]) -> None:
        super().__init__(1, brokers=2, era=era)
        self.make_sink = make
        #: Every message that was ever written, of logs that are gone, too.
        self.written: list[Row] = []
        #: How often a topic was deleted.
        self.recreations = 0

    def delete_topic(self, topic: str) -> None:
        self.recreations += 1
        super().delete_topic(topic)

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        for _ in range(count):
            offset = self.end(partition)
            super().produce(partition)
            self.written.append((partition.partition, offset, b"%d" % self._produced))

    def daemon(
        self,
        name: str,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        handling: float = 0.0,
        stubborn: bool = False,
        lingering: bool = False,
    ) -> Daemon:
        peculiar = stubborn or lingering
        assert not peculiar, "the sink says how long a batch takes"
        made = self.daemons[name] = SinkLogDaemon(self, name, settings or {}, 0.0, stubborn=False, lingering=False)
        return made


class TableLogWorld(SinkLogWorld):
    """The same with a simulated PostgreSQL, for the sink `postgres`."""

    def __init__(self, era: Era) -> None:
        super().__init__(era, lambda: PostgresHandler(self.database.dsn, timeout=TIMEOUT))
        self.database = SimulatedPostgres(self.kernel, self.network, Line(0.0005, jitter=0.0))
        self._patches.append(mock.patch.object(asyncpg_protocol, "time", DatabaseTime(self)))

    @property
    def rows(self) -> list[Row]:
        """What is committed."""
        return [(row[2], row[3], row[7]) for row in self.database.rows]


class ForwardLogWorld(SinkLogWorld):
    """The same with another cluster, for the handler `forward` that resumes at its target."""

    def __init__(self, era: Era) -> None:
        super().__init__(era, self._forward)
        self.target = SimulatedKafka(self.kernel, self.network, PRODUCER_ERAS[-1])
        self._patches.append(mock.patch.object(forwarding, "SystemRandom", functools.partial(random.Random, 1)))

    def begin(self) -> None:
        super().begin()
        self.target.add_broker(_TARGET, Line(0.0005))
        self.target.add_partitions(TOPIC, 2, self.rng)

    def _forward(self) -> Handler:
        broker = self.target.brokers[_TARGET]
        return forwarding.forward(bootstrap=[f"{broker.host}:{broker.port}"], resume="target")

    @property
    def rows(self) -> list[Row]:
        """What the target has, as the headers name it."""
        found = []
        for log in self.target.logs(TOPIC):
            for number, payload in enumerate(log.payloads):
                identity = read_identity(log.headers[number])
                assert identity is not None
                found.append((identity.partition.partition, identity.offset, payload))
        return found


class SinkLogDaemon(Daemon):
    """A member with the sink."""

    world: SinkLogWorld

    def make_loop(self) -> ThreadedLoop:
        return ThreadedLoop(self.world.kernel, self.world.network, self.name, lambda step: None)

    def plugin(self) -> Handler:
        return _Accounted(self, self.world.make_sink())


class _Accounted(Handler):
    """Tells the account what the sink gets."""

    def __init__(self, daemon: Daemon, sink: Handler) -> None:
        self._daemon = daemon
        self._sink = sink
        self.position = sink.position  # type: ignore[method-assign]
        self.stop = sink.stop  # type: ignore[method-assign]

    async def start(self, context: HandlerContext) -> None:
        await self._sink.start(context)

    async def handle(self, batch: Batch) -> None:
        if self._daemon.loop.dead:
            return
        name, account = self._daemon.name, self._daemon.world.account
        messages = [(message.offset, message.payload) for message in batch.messages()]
        offsets, payloads = [offset for offset, _ in messages], [payload for _, payload in messages]
        account.begin(name, batch.partition, offsets, payloads)
        handled = False
        try:
            await self._sink.handle(batch)
            handled = True
        finally:
            if not self._daemon.loop.dead:
                account.end(name, batch.partition, offsets, payloads, handled=handled)


def ndjson_rows(directory: Path) -> list[Row]:
    """What `files` has stored."""
    lines = [json.loads(line) for path in directory.rglob("*.ndjson") for line in path.read_bytes().splitlines()]
    return [(line["partition"], line["offset"], line["payload"].encode()) for line in lines]


def parquet_rows(directory: Path) -> list[Row]:
    """What `parquet` has stored."""
    from pyarrow import parquet

    tables = [parquet.read_table(path, partitioning=None) for path in directory.rglob("*.parquet")]
    return [(row["partition"], row["offset"], row["payload"]) for table in tables for row in table.to_pylist()]


def missing_or_repeated(world: SinkLogWorld, rows: Iterable[Row]) -> str:
    """How the rows differ from all that was ever written and delivered; empty where they do not."""
    stored = sorted(rows)
    if len(set(stored)) < len(stored):
        return "rows are stored twice"
    if lost := sorted(set(world.written) - set(stored)):
        return f"{len(lost)} rows are missing, first {lost[0]}"
    if invented := sorted(set(stored) - set(world.written)):
        return f"{len(invented)} rows were never written, first {invented[0]}"
    return ""


def failures(story: Telling) -> list[BaseException]:
    """What members have ended with."""
    return [each.failure for each in story.world.daemons.values() if each.failure is not None]
