"""The handler `postgres` against a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import (
    Batch,
    Handler,
    HandlerContext,
    PartitionTakenError,
    SinkPosition,
    load_handler,
)
from consumerd.handlers.builtin.postgres import RowsOverlapError
from consumerd.testing.proxy import LoopbackProxy
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support.postgres import PostgresServer

TP = TopicPartition("t", 0, 1)
CONTEXT = HandlerContext("g", "g_1", SystemClock())


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest_asyncio.fixture
async def sql(postgres: PostgresServer) -> AsyncIterator[Any]:
    """A connection to a database without our tables."""
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute("DROP TABLE IF EXISTS messages, consumerd_positions")
    yield connection
    await connection.close()


async def started(server: PostgresServer, **options: Any) -> Handler:
    handler = load_handler("postgres", {"dsn": server.dsn, **options})
    await handler.start(CONTEXT)
    return handler


def old(*payloads: bytes, start: int = 0, partition: TopicPartition = TP) -> Batch:
    data = encode_message_set(payloads[:1]) + encode_message_set(payloads[1:], codec=Codec.GZIP)
    return Batch(partition, decode_batch(data, start))


async def stored(sql: Any) -> list[tuple[Any, ...]]:
    rows = await sql.fetch('SELECT partition, "offset", index, payload FROM messages ORDER BY 1, 2, 3')
    return [tuple(row) for row in rows]


async def test_rows_and_position_are_stored_together(postgres: PostgresServer, sql: Any) -> None:
    handler = await started(postgres)
    assert await handler.position(TP) is None
    batch = old(b"a", b"b", b"\xff\x00", start=71)
    await handler.handle(batch)
    assert await stored(sql) == [(1, 71, 0, b"a"), (1, 82, 0, b"b"), (1, 82, 1, b"\xff\x00")]
    assert await handler.position(TP) == batch.next_offset
    assert batch.handled == 3
    await handler.stop()
    again = await started(postgres)
    assert await again.position(TP) == batch.next_offset
    await again.stop()


async def test_messages_with_keys_and_tombstones(postgres: PostgresServer, sql: Any) -> None:
    handler = await started(postgres, table="public.messages")
    data = encode_record_batch([b"v", None], keys=[b"k", None], timestamps=[5, 6], base_offset=3)
    partition = TopicPartition.numbered("t", 7)
    await handler.position(partition)
    await handler.handle(Batch(partition, decode_records(data, 3)))
    rows = await sql.fetch('SELECT topic, broker, partition, "offset", index, key, timestamp, payload FROM messages')
    assert [tuple(row) for row in rows] == [("t", -1, 7, 3, 0, b"k", 5, b"v"), ("t", -1, 7, 4, 0, None, 6, None)]
    await handler.stop()


async def test_a_former_owner_stores_nothing(postgres: PostgresServer, sql: Any) -> None:
    former, owner = await started(postgres), await started(postgres)
    await former.position(TP)
    first = old(b"a", b"b")
    await former.handle(first)
    assert await owner.position(TP) == first.next_offset
    late = old(b"c", b"d", start=first.next_offset)
    with pytest.raises(PartitionTakenError, match="another member took over t/0-1"):
        await former.handle(late)
    await owner.handle(late)
    assert [row[3] for row in await stored(sql)] == [b"a", b"b", b"c", b"d"]
    await former.stop()
    await owner.stop()


async def test_server_ends_the_transaction_of_an_owner_that_does_not_continue(
    postgres: PostgresServer, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, owner = await started(postgres, timeout=0.3), await started(postgres)
    await former.position(TP)
    locked, release = asyncio.Event(), asyncio.Event()
    copy = asyncpg.Connection.copy_records_to_table

    async def copy_later(self: Any, *arguments: Any, **options: Any) -> Any:
        locked.set()
        await release.wait()
        return await copy(self, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", copy_later)
    storing = asyncio.create_task(former.handle(old(b"a", b"b")))
    await locked.wait()
    assert await owner.position(TP) is None  # waits for the lock of the position until the server ends the transaction
    release.set()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await storing
    await owner.handle(old(b"a", b"b"))
    assert len(await stored(sql)) == 2
    await former.stop()
    await owner.stop()


async def test_a_recreated_topic_stops_the_daemon(postgres: PostgresServer, sql: Any) -> None:
    handler = await started(postgres)
    await handler.position(TP)
    await handler.handle(old(b"a", b"b"))
    with pytest.raises(HandlerFailedError, match="the topic was recreated"):
        await handler.handle(old(b"x", b"y"))
    assert [row[3] for row in await stored(sql)] == [b"a", b"b"]
    await handler.stop()


async def test_a_cancelled_batch_is_stored_wholly_or_not_at_all(
    postgres: PostgresServer, sql: Any, consumerd_loop: Any
) -> None:
    with LoopbackProxy(consumerd_loop, "127.0.0.1", postgres.port) as proxy:
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
        handler = load_handler("postgres", {"dsn": dsn})
        await handler.start(CONTEXT)
        await handler.position(TP)
        position, kept = 0, 0
        for turns in range(0, 120, 3):
            batch = old(b"%d" % turns, b"x" * 100, start=position)
            task = asyncio.create_task(handler.handle(batch))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            found = await handler.position(TP) or 0
            assert found in (position, batch.next_offset)
            assert task.cancelled() or found == batch.next_offset
            kept += found != position
            position = found
            assert len(await stored(sql)) == 2 * kept
        await handler.stop()


A, B = (LogId(bytes([number]) * 16) for number in (1, 2))


def of(log: LogId, epoch: int | None, start: int, *payloads: bytes) -> Batch:
    content = decode_records(encode_record_batch(payloads, base_offset=start), start)
    content.log = log._replace(leader_epoch=epoch, zxid=7)
    return Batch(TP, content)


async def told(handler: Handler) -> tuple[int, LogId] | None:
    position = await handler.position(TP)
    assert position is None or isinstance(position, SinkPosition)
    return None if position is None else (int(position), position.log)


async def ids(sql: Any) -> list[tuple[Any, ...]]:
    rows = await sql.fetch('SELECT topic_id, "offset", payload FROM messages ORDER BY 1, 2')
    return [tuple(row) for row in rows]


async def test_topic_made_again_has_rows_of_its_own(postgres: PostgresServer, sql: Any) -> None:
    handler = await started(postgres)
    assert await told(handler) is None
    await handler.handle(of(A, 3, 0, b"one", b"two"))
    assert await told(handler) == (2, A._replace(leader_epoch=3))
    await handler.handle(of(B, 0, 0, b"other"))
    with pytest.raises(RowsOverlapError, match="offset 0 of t/0-1 is below 1"):
        await handler.handle(of(B, 0, 0, b"other"))
    await handler.handle(of(B, 1, 1, b"more"))
    await handler.stop()
    handler = await started(postgres)
    assert await told(handler) == (2, B._replace(leader_epoch=1))
    await handler.handle(of(UNKNOWN_LOG, 1, 2, b"last"))  # a broker that tells no id
    assert await told(handler) == (3, B._replace(leader_epoch=1))
    a, b = A.topic_id_text, B.topic_id_text
    assert await ids(sql) == [(a, 0, b"one"), (a, 1, b"two"), (b, 0, b"other"), (b, 1, b"more"), (b, 2, b"last")]
    await handler.stop()


#: The tables of the first version.
OLD = """
CREATE TABLE messages (
    topic text NOT NULL, broker integer NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL,
    index integer NOT NULL, key bytea, timestamp bigint, payload bytea,
    PRIMARY KEY (topic, broker, partition, "offset", index)
);
CREATE TABLE consumerd_positions (
    group_id text NOT NULL, topic text NOT NULL, broker integer NOT NULL, partition integer NOT NULL,
    epoch bigint NOT NULL DEFAULT 1, next_offset bigint, PRIMARY KEY (group_id, topic, broker, partition)
);
INSERT INTO messages VALUES ('t', 0, 1, 0, 0, NULL, NULL, 'one'), ('t', 0, 1, 1, 0, NULL, NULL, 'two');
INSERT INTO consumerd_positions VALUES ('g', 't', 0, 1, 5, 2);
"""


async def test_tables_of_older_versions_learn_of_logs(postgres: PostgresServer, sql: Any) -> None:
    await sql.execute(OLD)
    handler = await started(postgres)
    assert await told(handler) == (2, UNKNOWN_LOG)
    with pytest.raises(RowsOverlapError, match="offset 0 of t/0-1 is below 2"):  # whose rows are they?
        await handler.handle(of(A, 0, 0, b"one"))
    await handler.handle(of(A, 0, 2, b"three"))
    assert await told(handler) == (3, A._replace(leader_epoch=0))
    with pytest.raises(RowsOverlapError, match=r"has rows of t/0-1 .* let the primary key contain topic_id"):
        await handler.handle(of(B, 0, 0, b"other"))  # the key of the old table does not know logs
    assert await told(handler) == (3, A._replace(leader_epoch=0))
    await sql.execute(
        "ALTER TABLE messages DROP CONSTRAINT messages_pkey,"
        ' ADD PRIMARY KEY (topic, broker, partition, topic_id, "offset", index)'
    )
    await handler.handle(of(B, 0, 0, b"other"))
    assert [row[2] for row in await ids(sql)] == [b"one", b"two", b"three", b"other"]
    await handler.stop()


async def test_tables_that_may_not_be_changed_work_as_before(postgres: PostgresServer, sql: Any) -> None:
    await sql.execute(OLD)
    with capture_logs() as lines:
        handler = await started(postgres, create=False)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["postgres_tables_without_logs"]
    assert await told(handler) == (2, UNKNOWN_LOG)
    await handler.handle(of(A, 0, 2, b"three"))
    assert await told(handler) == (3, UNKNOWN_LOG)
    with pytest.raises(RowsOverlapError, match="offset 0 of t/0-1 is below 3"):
        await handler.handle(of(B, 0, 0, b"other"))
    assert len(await stored(sql)) == 3
    await handler.stop()


async def test_a_member_that_does_not_own_the_tables_starts(postgres: PostgresServer, sql: Any) -> None:
    await sql.execute(OLD)
    await sql.execute(
        "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN; GRANT CREATE ON SCHEMA public TO guest;"
        "GRANT ALL ON messages, consumerd_positions TO guest"
    )
    try:
        handler = await started(postgres, dsn=postgres.dsn.replace("postgres@", "guest@"))
        assert await told(handler) == (2, UNKNOWN_LOG)
        await handler.handle(of(A, 0, 2, b"three"))
        await handler.stop()
    finally:
        await sql.execute("DROP OWNED BY guest; DROP ROLE guest")
    assert len(await stored(sql)) == 3


async def test_members_that_start_at_once_make_the_tables_once(postgres: PostgresServer, sql: Any) -> None:
    handlers = await asyncio.gather(*(started(postgres) for _ in range(8)))
    await asyncio.gather(*(handler.stop() for handler in handlers))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": 'x"; DROP TABLE y'}, "table must be a table's name"),
        ({"positions": "a.b.c"}, "positions must be a table's name"),
        ({"connections": 0}, "connections must be a positive whole number"),
        ({"timeout": -1}, "timeout must be a positive number"),
    ],
)
async def test_wrong_options_are_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        load_handler("postgres", options)
