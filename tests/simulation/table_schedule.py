"""One random schedule of a group that stores messages exactly once in PostgreSQL.

Strategy: that of `tests.simulation.sink_schedule`, and the faults of a database: the server crashes, connections break
and statements fail, at any time or at one of a member's next statements. Kinds, beside those:

    database  only the database has faults
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.daemon import Daemon
from tests.simulation.sink_schedule import KINDS as SINK_KINDS
from tests.simulation.sink_schedule import SinkSchedule
from tests.simulation.table_world import TableWorld

KINDS = (*SINK_KINDS, "database", "database")
#: Errors of statements: serialization failure, out of memory, cancelled by an administrator.
_CODES = ("40001", "53200", "57014")


class TableSchedule(SinkSchedule):
    """The schedule of one seed; `kind`: instead of the one that the seed chooses."""

    tests = "tests/simulation/test_tables.py"
    kinds = KINDS

    def make_world(self) -> TableWorld:
        return TableWorld(self.seed, round_trip=self.round_trip)

    @property
    def _tables(self) -> TableWorld:
        assert isinstance(self.world, TableWorld)
        return self.world

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        steps = super()._steps()
        if self.kind in ("database", "all"):
            steps += [
                (1, self._crash_server),
                (2, self._cut_database),
                (2, lambda: self._arm("crash-server", lambda daemon: self._crash_server())),
                (3, lambda: self._arm("cut-database", self._cut_database)),
                (3, lambda: self._arm("fail", self._fail)),
            ]
        return steps

    def _crash_server(self) -> None:
        self._fault("crash-server", None)
        self._tables.crash_server(self.rng.uniform(0.01, 3.0))

    def _cut_database(self, daemon: Daemon | None = None) -> None:
        daemon = daemon or self._one()
        if daemon is not None:
            self._note(f"cut-database {daemon.name}")
            database = self._tables.database
            for link in self.world.network.links_of(daemon.name, (database.host, database.port)):
                link.cut()

    def _fail(self, daemon: Daemon) -> None:
        session = self._tables.session
        if session is not None:
            self._note(f"fail {daemon.name}")
            session.fail(self.rng.choice(_CODES))
