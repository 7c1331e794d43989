"""What the exactly-once sinks hold at the end, compared with the broker's log row by row: none missing, none twice.

Strategy: each sink has a consumer group of its own. Where members coordinate themselves in ZooKeeper it is a further
subscription of each daemon, which shares its session and so every fault; where a broker coordinates, a daemon has one
group only, and the sinks have daemons of their own beside each member, with its links, which suffer what it suffers.
Of each partition of the log there are three arrays, so that an hour of messages takes tens of bytes each; rows are
ticked off one by one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import asyncpg

from consumerd.base.partition import NO_BROKER, TopicPartition
from tests.kill.mirrors import TOPIC
from tests.torture.stage import Log

#: The sinks, which are also the names of their groups.
FILES: Final = "files"
DATABASE: Final = "database"
_ROWS: Final = 20_000
_POLL_SECONDS: Final = 1.0


class PartitionLog:
    """The messages of a partition by their numbers, from 0."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._firsts = array("q")
        self._sums = array("Q", [0])

    def __len__(self) -> int:
        return len(self._sums) - 1

    def append(self, offset: int, payloads: Sequence[bytes]) -> None:
        """Take an outer message with its leaves, after those before it."""
        self._offsets.append(offset)
        self._firsts.append(len(self))
        total = self._sums[-1]
        for payload in payloads:
            total += crc32(payload)
            self._sums.append(total)

    def number(self, offset: int, index: int) -> int | None:
        """The number of the message with this identity; None if there is none."""
        at = bisect_left(self._offsets, offset)
        if at == len(self._offsets) or self._offsets[at] != offset:
            return None
        number = self._firsts[at] + index
        return number if number < (self._firsts[at + 1] if at + 1 < len(self._firsts) else len(self)) else None

    def sum(self, first: int, end: int) -> int:
        """The sum of the CRCs of a range."""
        return self._sums[end] - self._sums[first]


@dataclass(slots=True)
class SinkCount:
    """What an exactly-once sink holds, compared with the log row by row."""

    rows: int = 0
    missing: int = 0
    twice: int = 0
    #: Rows that are not what the log holds.
    wrong: int = 0

    @property
    def exact(self) -> bool:
        """Whether each message of the log is there once, and nothing else."""
        return not (self.missing or self.twice or self.wrong)


class RowCheck:
    """Ticks rows off."""

    def __init__(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        self._logs = logs
        self._seen = {partition: bytearray(len(log)) for partition, log in logs.items()}
        self._count = SinkCount()

    def row(self, partition: TopicPartition, offset: int, index: int, payload: bytes) -> None:
        """Take one."""
        self._count.rows += 1
        log = self._logs.get(partition)
        number = None if log is None else log.number(offset, index)
        if log is None or number is None or log.sum(number, number + 1) != crc32(payload):
            self._count.wrong += 1
            return
        seen = self._seen[partition]
        self._count.twice += seen[number]
        seen[number] = 1

    def result(self) -> SinkCount:
        """The count, after the last row."""
        self._count.missing = sum(seen.count(0) for seen in self._seen.values())
        return self._count


def check_files(logs: Mapping[TopicPartition, PartitionLog], directory: Path) -> SinkCount:
    """Every row of all files of the files sink. Blocks."""
    check = RowCheck(logs)
    for path in sorted(directory.rglob("[0-9]*-[0-9]*.ndjson")):
        with path.open("rb") as file:
            for line in file:
                row = json.loads(line)
                text = row.get("payload")
                payload = base64.b64decode(row["payload_base64"]) if text is None else text.encode()
                broker = NO_BROKER if row["broker"] is None else row["broker"]
                place = TopicPartition(row["topic"], broker, row["partition"])
                check.row(place, row["offset"], row["index"], payload)
    return check.result()


async def check_database(logs: Mapping[TopicPartition, PartitionLog], dsn: str) -> SinkCount:
    """Every row of the sink's table."""
    check = RowCheck(logs)
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            query = 'SELECT topic, broker, partition, "offset", index, payload FROM messages'
            async for topic, broker, partition, offset, index, payload in connection.cursor(query, prefetch=_ROWS):
                check.row(TopicPartition(topic, broker, partition), offset, index, payload)
    finally:
        await connection.close()
    return check.result()


class Sinks:
    """The sinks of a run: `files` below a directory, and a table where `dsn` names a PostgreSQL server.

    `files_handler` is the handler of the files: the tests plant one that is not exact.
    """

    def __init__(self, directory: Path, dsn: str | None = None, *, files_handler: str = "files") -> None:
        self.directory = directory
        self._dsn = dsn
        #: The tables `[handler]` by the group.
        self.handlers: dict[str, dict[str, Any]] = {
            FILES: {"name": files_handler, "options": {"directory": str(directory)}, "linger": 0.2}
        }
        if dsn is not None:
            self.handlers[DATABASE] = {"name": "postgres", "options": {"dsn": dsn}, "linger": 0.2}
        for table in self.handlers.values():
            table |= {"max_batch": 5000, "max_backoff": 1.0}

    def subscriptions(self) -> list[dict[str, Any]]:
        """The tables `[[subscriptions]]` of a member."""
        return [
            {"name": group, "group": {"id": group}, "topics": {TOPIC: 1}, "handler": handler}
            for group, handler in self.handlers.items()
        ]

    async def count(self, log: Log) -> dict[str, SinkCount]:
        """Compare each sink with the log."""
        logs = partition_logs(log)
        found = {FILES: await asyncio.to_thread(check_files, logs, self.directory)}
        if self._dsn is not None:
            found[DATABASE] = await check_database(logs, self._dsn)
        return found

    async def wait_exact(self, log: Log, limit: float) -> dict[str, SinkCount]:
        """Compare until no row is missing or one is there that must not be, at most `limit` seconds."""
        end = time.monotonic() + limit
        while True:
            found = await self.count(log)
            hopeless = any(each.twice or each.wrong for each in found.values())
            if hopeless or all(each.exact for each in found.values()) or time.monotonic() > end:
                return found
            await asyncio.sleep(_POLL_SECONDS)


def partition_logs(log: Log) -> dict[TopicPartition, PartitionLog]:
    """The log by numbers of messages."""
    logs: dict[TopicPartition, PartitionLog] = {}
    for partition, messages in log.items():
        each = logs[partition] = PartitionLog()
        for offset, payloads in messages:
            each.append(offset, payloads)
    return logs
