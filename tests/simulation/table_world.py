"""The world of a group whose members store messages with the sink `postgres`, in a table of one simulated server.

Strategy: members are `daemon.Daemon`s with the product's sink and the real asyncpg, which speaks to
`postgres_server.SimulatedPostgres` over the simulated network. `read` sees what is committed. Each statement is a step
of the member that sent it, before it and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from unittest import mock

from asyncpg.protocol import protocol as asyncpg_protocol

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Handler, RetryPolicy, retrying
from consumerd.handlers.builtin import postgres
from consumerd.handlers.builtin.postgres import PostgresHandler
from tests.simulation.base_world import BaseWorld
from tests.simulation.daemon import Daemon, ProcessClock
from tests.simulation.kernel import SimulationError
from tests.simulation.network import Line
from tests.simulation.postgres_server import Session, SimulatedPostgres
from tests.simulation.rows_world import Row, RowsWorld, SinkDaemon

if TYPE_CHECKING:
    import random

#: Rows that the sink copies at once: few, so that a batch takes several statements.
_ROWS = 3
#: Seconds for a statement and for a connection, of the sink.
TIMEOUT = 10.0


class TableWorld(RowsWorld):
    """One run. `round_trip`: seconds to ZooKeeper and to the database, and back."""

    def __init__(self, seed: int = 0, *, round_trip: float = 0.001) -> None:
        super().__init__(seed, round_trip=round_trip)
        # Names of prepared statements grow while the test runs: their length must not take time.
        line = Line(round_trip / 2, jitter=0.0, throughput=float("inf"))
        self.database = SimulatedPostgres(self.kernel, self.network, line)
        self.database.watcher = self._statement
        #: The connection whose statement is watched.
        self.session: Session | None = None
        self._patches += [
            mock.patch.object(postgres, "_ROWS", _ROWS),
            mock.patch.object(asyncpg_protocol, "time", DatabaseTime(self)),
        ]

    def sink(self) -> Handler:
        return PostgresHandler(self.database.dsn, timeout=TIMEOUT)

    def daemon(self, name: str, settings: Mapping[str, Mapping[str, Any]] | None = None, **peculiar: Any) -> Daemon:
        assert not peculiar
        made = self.daemons[name] = _TableDaemon(self, name, settings or {})
        return made

    @property
    def writes(self) -> int:
        return self.database.commits

    def slow_down(self, factor: float) -> None:
        self.database.slowness = factor

    def lose_power(self) -> None:
        """All members die, and the server, which starts again soon."""
        self.kernel.note("machine", "loses power")
        self.kill_all()
        self.crash_server(0.5)

    def crash_server(self, seconds: float) -> None:
        """The server crashes, and takes connections again after a while."""
        self.kernel.note("database", "crashes")
        self.database.crash()
        self.check()
        self.kernel.after(seconds, self.database.start)

    def _statement(self, session: Session, step: str) -> None:
        daemon = self.daemons[session.link.client]
        if daemon.alive:
            self.session = session
            self.watcher(daemon, step)
            self.session = None

    def read(self) -> dict[TopicPartition, list[Row]]:
        """The committed rows. Raises SimulationError where a position is not the end of its partition's rows."""
        found: dict[TopicPartition, list[Row]] = {}
        for topic, broker, partition, offset, index, _, _, payload, _ in sorted(
            self.database.rows, key=lambda row: row[:5]
        ):
            found.setdefault(TopicPartition(topic, broker, partition), []).append(Row(offset, index, payload))
        for (_, *place), (_, position, *_) in self.database.positions.items():
            where = TopicPartition(*place)
            rows = found.get(where, [])
            if (position is None) != (not rows) or (position is not None and position <= rows[-1].offset):
                raise SimulationError(f"the position of {where} is {position} after {rows[-1:]}")
        return found


class _TableDaemon(SinkDaemon):
    def make_handler(self, clock: ProcessClock, rng: random.Random) -> Handler:
        policy = RetryPolicy(max_attempts=1_000_000, max_backoff=1.0)
        return retrying(self.plugin(), policy, clock=clock, rng=rng)


class DatabaseTime:
    """Stands for `time` in asyncpg, which measures its timeouts with it."""

    def __init__(self, world: BaseWorld) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.kernel.now
