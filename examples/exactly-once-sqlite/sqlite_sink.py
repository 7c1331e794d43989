"""A handler that stores each message exactly once: rows and position are written in one transaction.

    [handler]
    name = "sqlite_sink:SqliteSink"
    options = { database = "/var/lib/events/events.db" }

Why it is exact: `position` is asked before a partition is fetched from and wins over ZooKeeper, and it was written
together with the rows before it. A process that dies between the transaction and the commit to ZooKeeper begins behind
them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from consumerd import TopicPartition

if TYPE_CHECKING:
    from consumerd.handlers import Batch, HandlerContext

SCHEMA = """
CREATE TABLE IF NOT EXISTS message (
    topic TEXT, broker INTEGER, partition INTEGER, offset INTEGER, idx INTEGER, payload BLOB,
    PRIMARY KEY (topic, broker, partition, offset, idx)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (
    topic TEXT, broker INTEGER, partition INTEGER, next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, broker, partition)
) WITHOUT ROWID;
"""


class SqliteSink:
    """Stores batches in the file `database`. Members of one group need one file, on one machine."""

    def __init__(self, *, database: str) -> None:
        self.database = database

    async def start(self, context: HandlerContext) -> None:
        """Make the tables where they are missing."""
        await asyncio.to_thread(self._prepare)

    async def handle(self, batch: Batch) -> None:
        """Write the batch and where it ends in one transaction; nothing of it when that fails."""
        # shield: a thread cannot be cancelled, so a cancellation has to wait until it has ended.
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, batch))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    async def position(self, partition: TopicPartition) -> int | None:
        """Where the rows of a partition end; None if there are none: the committed offset counts then."""
        return await asyncio.to_thread(self._read_position, partition)

    def _connect(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self.database, timeout=30.0, isolation_level=None))

    def _prepare(self) -> None:
        with self._connect() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(SCHEMA)

    def _write(self, batch: Batch) -> None:
        at = batch.partition
        rows = [
            (at.topic, at.broker, at.partition, message.offset, message.index, message.payload)
            for message in batch.messages()
        ]
        with self._connect() as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?)", rows)
            db.execute(
                "INSERT INTO position VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset",
                (at.topic, at.broker, at.partition, batch.next_offset),
            )
            db.execute("COMMIT")

    def _read_position(self, partition: TopicPartition) -> int | None:
        with self._connect() as db:
            row = db.execute(
                "SELECT next_offset FROM position WHERE topic = ? AND broker = ? AND partition = ?",
                (partition.topic, partition.broker, partition.partition),
            ).fetchone()
        return None if row is None else row[0]
