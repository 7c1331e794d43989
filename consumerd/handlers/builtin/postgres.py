"""A sink that stores messages in PostgreSQL exactly once: rows and position in one transaction.

Strategy: each partition has a row in a table of positions: the next offset, and the number of its owner, which every
takeover (`position`) increases. A batch is one transaction that locks that row, checks the number, copies the messages
and moves the position. So a crash leaves both or neither, and a former owner that was stopped or cut off for a while
and continues finds another number, and stores nothing.

When a connection breaks during a commit, the position tells at the next attempt whether it took place: what this writer
was just about to store may be there already.

The position has the topic id and leader epoch of the last batch, and each row the topic id. A batch with another topic
id is of a topic that was created again: its position begins at its own offset, and its rows are others than those of
the former log, which stay. Where ids do not tell (brokers before 2.8, positions of older versions, tables without the
columns), and where the log was cut off, anything else before the position is an error that stops the daemon. So is a
row that the table has already.

A server keeps the transaction of a client that is stopped or unreachable, and with it the lock of the position, until
TCP notices, which takes hours by default. So each transaction limits the time in which it may be idle or in one
statement; after that the server ends it, and the next owner continues.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import structlog

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.settings.kind import checked
from consumerd.base.settings.setting import Count, Seconds
from consumerd.handlers.api import Handler, PartitionTakenError, SinkPosition
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.contents import known_timestamp
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch, Message, payload_size
from consumerd.handlers.secrets import Secret
from consumerd.net.addresses import connect_reason

if TYPE_CHECKING:
    from asyncpg import Connection, Pool

log = structlog.get_logger(__name__)

#: Rows, and bytes of payloads, that are copied at once.
_ROWS: Final = 10_000
_ROW_BYTES: Final = 8 << 20
#: The longest time, in milliseconds, that PostgreSQL accepts as a limit.
_LONGEST_MS: Final = (1 << 31) - 1
_COLUMNS: Final = ("topic", "broker", "partition", "offset", "index", "key", "timestamp", "payload")
_LOG: Final = ("topic_id", "leader_epoch")
_SCHEMES: Final = ("postgresql://", "postgres://")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")


def _server_of(dsn: str | None) -> str:
    """Return where asyncpg connects to, without the password. Raises ValueError for an invalid URL."""
    url = urlsplit(dsn or "")
    hosts = url.netloc.rpartition("@")[2] or ",".join(parse_qs(url.query).get("host", ())) or os.environ.get("PGHOST")
    if hosts:
        return hosts
    return "a local socket or localhost, as neither dsn nor PGHOST names a host"


class RowsOverlapError(HandlerFailedError):
    """A batch lies before the position, or its rows are there: its messages are stored, or others in their place."""


@dataclass(slots=True)
class _Claim:
    """A partition that this process has taken over."""

    epoch: int
    #: The end of the transaction that was begun last; it may have been committed without our knowing.
    uncertain: int | None = None


class PostgresHandler(Handler):
    """Stores messages. Options:

    `dsn`: `postgresql://user:password@host/database`; PGHOST and similar variables supply what it lacks.
    `table`: of the messages, and `positions`: of the positions; both are created where they do not exist, unless
    `create` is false. `connections`: to the server at most. `timeout`: seconds for a connection, for a statement, and
    until the server ends the transaction of a process that does not continue it.
    Raises PartitionTakenError, RowsOverlapError, and what the server says, which the retry policy handles.
    """

    @checked
    def __init__(
        self,
        dsn: Secret[str | None] = None,
        table: str = "messages",
        positions: str = "consumerd_positions",
        create: bool = True,
        connections: Count = 4,
        timeout: Seconds = 60.0,
    ) -> None:
        for option, name in (("table", table), ("positions", positions)):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValueError(f"{option} must be a table's name, or schema.name, not {name!r}")
        if dsn is not None and not dsn.startswith(_SCHEMES):
            raise ValueError("dsn must begin with postgresql:// or postgres://")
        try:
            self._server = _server_of(dsn)
        except ValueError:
            raise ValueError("dsn must be a URL, postgresql://user:password@host:port/database") from None
        try:
            import asyncpg  # noqa: F401, PLC0415 - of the extra
        except ImportError as error:
            raise HandlerLoadError(
                "the handler 'postgres' needs the extra `postgres`: pip install 'consumerd[postgres]'."
            ) from error
        self._dsn = dsn
        self._schema, _, self._name = table.rpartition(".")
        self._table, self._positions = _quoted(table), _quoted(positions)
        self._create = create
        self._connections = connections
        self._timeout = float(timeout)
        #: Whether the tables have columns for what is known of logs; those of older versions get them at the start.
        self._knows_logs = True
        self._group = ""
        self._pool: Pool[Any] | None = None
        self._claims: dict[TopicPartition, _Claim] = {}

    async def start(self, context: HandlerContext) -> None:
        """Connect, and make the tables. Raises ConnectionError, and what the server says."""
        import asyncpg  # noqa: PLC0415

        self._group = context.group
        if self._pool is None:
            async with self._reached():
                self._pool = await asyncpg.create_pool(
                    self._dsn,
                    min_size=1,
                    max_size=self._connections,
                    timeout=self._timeout,
                    command_timeout=self._timeout,
                    server_settings={"application_name": f"consumerd {context.group}"[:63]},
                )
        async with self._transaction() as connection:
            if self._create:
                # Members that start at once: CREATE ... IF NOT EXISTS alone can still collide.
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext('consumerd'))")
                await connection.execute(_TABLES.format(table=self._table, positions=self._positions))
            found = await connection.fetchrow(_HAVE_LOGS, self._table, self._positions)
            self._knows_logs = found["found"] or (self._create and await self._add_logs(connection))
        if not self._knows_logs:
            log.warning(
                "postgres_tables_without_logs",
                table=self._table,
                positions=self._positions,
                reason="a topic that is created again looks like the stored one",
                remedy="add the columns that docs/handlers.md lists",
            )

    async def check_online(self) -> str:
        """Connect to the server. Raises ConnectionError, and what the server says."""
        import asyncpg  # noqa: PLC0415

        async with self._reached():
            connection = await asyncpg.connect(self._dsn, timeout=self._timeout)
        try:
            version = await connection.fetchval("SHOW server_version")
        finally:
            connection.terminate()
        return f"{self._server}, PostgreSQL {version}"

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[None]:
        """Name the server in the error of a connection to it."""
        try:
            yield
        except OSError as error:  # TimeoutError, too
            raise ConnectionError(
                f"cannot connect to PostgreSQL at {self._server}: {connect_reason(error)}; "
                "check handler.options.dsn, and that the server runs"
            ) from error

    async def _add_logs(self, connection: Connection[Any]) -> bool:
        """Add the columns to tables of an older version, if this is their owner. No row is written for that."""
        import asyncpg  # noqa: PLC0415

        try:
            async with connection.transaction():
                await connection.execute(_ADD_LOGS.format(table=self._table, positions=self._positions))
        except asyncpg.InsufficientPrivilegeError:
            return False
        return True

    async def stop(self) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        self._claims.clear()
        if pool is not None:
            await pool.close()

    async def position(self, partition: TopicPartition) -> int | None:
        """Take the partition over and return where it continues; None where nothing is stored."""
        position, known = await self._take(partition)
        return None if position is None else SinkPosition(position, known.topic_id_text, known.leader_epoch)

    async def handle(self, batch: Batch) -> None:
        """Store `batch` and its end as the position; when it returns, the transaction is committed."""
        partition = batch.partition
        if partition not in self._claims:
            await self._take(partition)
        claim = self._claims[partition]
        async with self._transaction() as connection:
            await self._store(connection, batch, claim)
            claim.uncertain = batch.next_offset
        claim.uncertain = None
        batch.mark(len(batch))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection[Any]]:
        """A transaction that the server ends if this process does not continue it in time."""
        limit = min(math.ceil(self._timeout * 1000), _LONGEST_MS)
        async with self._require_pool().acquire() as connection, connection.transaction():
            await connection.execute(
                f"SET LOCAL idle_in_transaction_session_timeout = {limit}; SET LOCAL statement_timeout = {limit}"
            )
            yield connection

    def _require_pool(self) -> Pool[Any]:
        if self._pool is None:
            raise HandlerFailedError("handler 'postgres' is not started.")
        return self._pool

    async def _take(self, partition: TopicPartition) -> tuple[int | None, LogId]:
        self._claims.pop(partition, None)
        async with self._require_pool().acquire() as connection:
            row = await connection.fetchrow(
                f"INSERT INTO {self._positions} AS p (group_id, topic, broker, partition) VALUES ($1, $2, $3, $4) "  # nosec B608  # noqa: S608 - names that were looked at
                "ON CONFLICT (group_id, topic, broker, partition) DO UPDATE SET epoch = p.epoch + 1 "
                f"RETURNING {self._columns}",
                self._group,
                *partition,
            )
        position: int | None = row["next_offset"]
        self._claims[partition] = _Claim(row["epoch"])
        log.info("postgres_position_found", partition=str(partition), position=position)
        return position, self._log_of(row)

    @property
    def _columns(self) -> str:
        """The columns that are read of a position."""
        return ", ".join(("epoch", "next_offset", *(_LOG if self._knows_logs else ())))

    def _log_of(self, row: Any) -> LogId:
        """What is known of the log of a position."""
        return LogId.from_text(*(row[name] for name in _LOG)) if self._knows_logs else UNKNOWN_LOG

    async def _store(self, connection: Connection[Any], batch: Batch, claim: _Claim) -> None:
        """In a transaction, check the claim, copy the messages that are not stored yet, and move the position."""
        partition = batch.partition
        place = (self._group, *partition)
        row = await connection.fetchrow(
            f"SELECT {self._columns} FROM {self._positions} "  # nosec B608  # noqa: S608
            "WHERE group_id = $1 AND topic = $2 AND broker = $3 AND partition = $4 FOR UPDATE",
            *place,
        )
        if row is None or row["epoch"] != claim.epoch:
            raise PartitionTakenError(
                f"another member took over {partition} in {self._positions}; nothing of the batch was stored."
            )
        former = self._log_of(row)
        stored: int | None = None if former.replaced_by(batch.log) else row["next_offset"]
        if stored is not None and batch.start_offset < stored:
            if stored != claim.uncertain:
                raise RowsOverlapError(
                    f"offset {batch.start_offset} of {partition} is below {stored}, up to where {self._positions} says "
                    "that it is stored: the topic was recreated or its log was truncated; set another `table` and "
                    "`positions`, or delete its rows from both tables, to store it again."
                )
            if batch.next_offset <= stored:
                return
        topic_id = batch.topic_id or former.topic_id_text
        await self._copy(connection, batch, stored, (topic_id or "",) if self._knows_logs else ())
        known: tuple[Any, ...] = (topic_id, batch.leader_epoch) if self._knows_logs else ()
        changed = "".join(f", {name} = ${number}" for number, (name, _) in enumerate(zip(_LOG, known, strict=False), 6))
        await connection.execute(
            f"UPDATE {self._positions} SET next_offset = $5{changed} "  # nosec B608  # noqa: S608
            "WHERE group_id = $1 AND topic = $2 AND broker = $3 AND partition = $4",
            *place,
            batch.next_offset,
            *known,
        )

    async def _copy(
        self, connection: Connection[Any], batch: Batch, stored: int | None, topic_id: tuple[str, ...]
    ) -> None:
        """Copy the messages from `stored` on. Raises RowsOverlapError where the table has a row for one of them."""
        import asyncpg  # noqa: PLC0415

        try:
            for piece in in_chunks(batch.messages(), _ROWS, _ROW_BYTES, payload_size):
                await connection.copy_records_to_table(
                    self._name,
                    schema_name=self._schema or None,
                    columns=(*_COLUMNS, *_LOG[: len(topic_id)]),
                    records=[
                        (*_row(message), *topic_id) for message in piece if stored is None or message.offset >= stored
                    ],
                    timeout=self._timeout,
                )
        except asyncpg.UniqueViolationError as error:
            raise RowsOverlapError(
                f"{self._table} has rows of {batch.partition} between the offsets {batch.start_offset} and "
                f"{batch.next_offset} already, of another group or of a topic that was recreated: set another `table`, "
                f"or let the primary key contain topic_id ({error})."
            ) from error


_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    topic text NOT NULL,
    broker integer NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    index integer NOT NULL,
    key bytea,
    timestamp bigint,
    payload bytea,
    topic_id text NOT NULL DEFAULT '',
    PRIMARY KEY (topic, broker, partition, topic_id, "offset", index)
);
CREATE TABLE IF NOT EXISTS {positions} (
    group_id text NOT NULL,
    topic text NOT NULL,
    broker integer NOT NULL,
    partition integer NOT NULL,
    epoch bigint NOT NULL DEFAULT 1,
    next_offset bigint,
    topic_id text,
    leader_epoch integer,
    PRIMARY KEY (group_id, topic, broker, partition)
);
"""
_ADD_LOGS: Final = """
ALTER TABLE {positions} ADD COLUMN IF NOT EXISTS topic_id text, ADD COLUMN IF NOT EXISTS leader_epoch integer;
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS topic_id text NOT NULL DEFAULT '';
"""
_HAVE_LOGS: Final = """
SELECT count(*) = 3 AS found FROM pg_attribute WHERE NOT attisdropped AND (
    attrelid = to_regclass($1) AND attname = 'topic_id'
    OR attrelid = to_regclass($2) AND attname IN ('topic_id', 'leader_epoch')
)
"""


def _quoted(name: str) -> str:
    return ".".join(f'"{part}"' for part in name.split("."))


def _row(message: Message) -> tuple[Any, ...]:
    timestamp = known_timestamp(message.timestamp)
    return (*message.partition, message.offset, message.index, message.key, timestamp, message.payload)
