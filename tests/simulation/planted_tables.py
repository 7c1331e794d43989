"""Defects of the sink `postgres`, put in place in memory: what crashes at a step and random schedules have to find.

    with MUTATIONS["row_not_locked"]():
        zombie("SELECT done", 5, make=TableWorld)  # raises SimulationError

Strategy: as in `tests.simulation.planted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from asyncpg import Connection

from consumerd.handlers.builtin.postgres import PostgresHandler
from tests.simulation.defects import Defects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from consumerd.base.partition import TopicPartition
    from consumerd.handlers import Batch

_PATCH = mock.patch.object
MUTATIONS = Defects()
_fetch_row = Connection.fetchrow


def _rewritten(old: str, new: str) -> AbstractContextManager[Any]:
    """Statements that return a row have `new` in the place of `old`."""

    async def fetch_row(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
        return await _fetch_row(self, query.replace(old, new), *arguments, **options)

    return _PATCH(Connection, "fetchrow", fetch_row)


@MUTATIONS.add
def row_not_locked() -> Iterator[None]:
    """A transaction looks whether the partition is its own, and another member may take it over before the commit."""
    with _rewritten("FOR UPDATE", ""):
        yield


@MUTATIONS.add
def epoch_not_raised() -> Iterator[None]:
    """A takeover leaves the number of the owner as it is."""
    with _rewritten("epoch = p.epoch + 1", "epoch = p.epoch"):
        yield


@MUTATIONS.around(PostgresHandler, "_take")
async def epoch_not_checked(take: Any, self: PostgresHandler, partition: TopicPartition) -> Any:
    """A former owner stores its batch when it continues."""
    found = await take(self, partition)
    self._claims[partition].epoch = mock.ANY
    return found


async def _handle(self: PostgresHandler, batch: Batch, parts: tuple[Any, ...]) -> None:
    if batch.partition not in self._claims:
        await self._take(batch.partition)
    claim = self._claims[batch.partition]
    for part in parts:
        async with self._require_pool().acquire() as connection, connection.transaction():
            await self._store(part(connection), batch, claim)
            claim.uncertain = batch.next_offset
    claim.uncertain = None
    batch.mark(len(batch))


class _Without:
    """A connection on which one kind of statement does nothing."""

    def __init__(self, connection: Any, method: str, prefix: str = "") -> None:
        self._connection = connection
        self._method = method
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._connection, name)
        if name != self._method:
            return call

        async def maybe(*arguments: Any, **options: Any) -> Any:
            if str(arguments[0]).startswith(self._prefix):
                return None
            return await call(*arguments, **options)

        return maybe


def _rows_only(connection: Any) -> Any:
    return _Without(connection, "execute", "UPDATE")


def _position_only(connection: Any) -> Any:
    return _Without(connection, "copy_records_to_table")


@MUTATIONS.instead(PostgresHandler, "handle")
def rows_before_position(self: Any, batch: Any) -> Any:
    """The rows are committed, and then the position."""
    return _handle(self, batch, (_rows_only, _position_only))


@MUTATIONS.instead(PostgresHandler, "handle")
async def position_before_rows(self: PostgresHandler, batch: Batch) -> None:
    """The position is committed, and then the rows: a crash in between loses them."""
    position = _position_only
    await _handle(self, batch, (position,))
    claim = self._claims[batch.partition]
    async with self._require_pool().acquire() as connection, connection.transaction():
        row = await connection.fetchrow(
            f"SELECT {self._columns} FROM {self._positions} FOR UPDATE", self._group, *batch.partition
        )
        if row["epoch"] == claim.epoch:
            await self._store(_AsNew(connection), batch, claim)


class _AsNew:
    """A connection that finds no position."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetchrow(self, *arguments: Any) -> Any:
        row = await self._connection.fetchrow(*arguments)
        return {**row, "next_offset": None}


@MUTATIONS.instead(PostgresHandler, "handle")
async def outcome_of_commit_forgotten(self: PostgresHandler, batch: Batch) -> None:
    """A batch whose commit was not confirmed is taken for one of a recreated topic."""
    if batch.partition not in self._claims:
        await self._take(batch.partition)
    claim = self._claims[batch.partition]
    async with self._require_pool().acquire() as connection, connection.transaction():
        await self._store(connection, batch, claim)
    batch.mark(len(batch))


@MUTATIONS.around(PostgresHandler, "_store")
async def overlap_stored_again(store: Any, self: PostgresHandler, connection: Any, batch: Batch, claim: Any) -> None:
    """A batch that lies before the position is stored once more."""
    await store(self, _AsNew(connection), batch, claim)


@MUTATIONS.around(PostgresHandler, "handle")
async def confirmed_before_commit(handle: Any, self: PostgresHandler, batch: Batch) -> None:
    """A batch counts as handled before its transaction is committed."""
    batch.mark(len(batch))
    await handle(self, batch)
