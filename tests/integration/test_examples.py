"""The programs in `examples/` run as they stand.

The plugin has `test_example_plugin`, and Spark's `tests/spark/test_examples`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from consumerd.demo.processes import BrokerProcess, clean_environment
from consumerd.net.connect import connect
from consumerd.testing.plugin import HandlerFactory
from consumerd.wire.v07 import LATEST, Codec, OffsetsRequest, ProduceRequest, encode_message_set

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


async def test_library_consumer_prints_every_message_once(zk_root: str, tmp_path: Path) -> None:
    words = [b"one", b"two", b"three", b"four"]
    async with BrokerProcess(tmp_path, zk_root, settings={"log.flush.interval": 1}) as broker:
        connection = await connect("127.0.0.1", broker.port)
        await connection.send(ProduceRequest("clicks", 0, encode_message_set(words, codec=Codec.GZIP)).encode())
        await connection.request(OffsetsRequest("clicks", 0, LATEST, 1).encode())  # stored when this is answered
        await connection.close()
        tail = [sys.executable, "-P", "-W", "error", EXAMPLES / "library-consumer" / "tail.py"]
        for expected in (words, []):  # the second time everything is committed
            process = await asyncio.create_subprocess_exec(
                *map(str, tail),
                zk_root,
                "my-group",
                "clicks",
                env=clean_environment(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, errors = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 0, errors.decode()
            printed = [line.split()[-1] for line in out.splitlines() if line.startswith(b"clicks")]
            assert printed == expected
            assert f"{len(expected)} messages, nothing for" in errors.decode()


@pytest.fixture
def sink_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "exactly-once-sqlite"))


def payloads(database: Path) -> list[bytes]:
    with closing(sqlite3.connect(database)) as db:
        return [row[0] for row in db.execute("SELECT payload FROM message ORDER BY offset, idx")]


@pytest.mark.usefixtures("sink_path")
async def test_sqlite_sink_stores_each_message_once_through_crashes(
    consumerd_handler: HandlerFactory, tmp_path: Path
) -> None:
    database = tmp_path / "events.db"
    async with consumerd_handler("sqlite_sink:SqliteSink", {"database": str(database)}) as harness:
        await harness.deliver([b"a", b"b"])
        await harness.deliver([b"c", b"d"], codec=Codec.GZIP)
        await harness.crash()  # stored, and nothing was committed
        await harness.start()
        assert await harness.claim() == harness.end()
        await harness.deliver([b"e"])
        assert await harness.redeliver() == []
        await harness.stop()
        harness.append([b"f", b"g"])
        await harness.start()
        await harness.redeliver(at_most=1)
    assert payloads(database) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


@pytest.mark.usefixtures("sink_path")
async def test_sqlite_sink_stores_neither_rows_nor_position_of_a_failed_batch(
    consumerd_handler: HandlerFactory, tmp_path: Path
) -> None:
    database = tmp_path / "events.db"
    async with consumerd_handler("sqlite_sink:SqliteSink", {"database": str(database)}) as harness:
        await harness.deliver([b"a"])
        end = harness.end()
        with closing(sqlite3.connect(database)) as db, db:
            db.execute("CREATE TRIGGER full BEFORE INSERT ON position BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        with pytest.raises(Exception, match="disk full"):
            await harness.deliver([b"b"])
        assert payloads(database) == [b"a"]
        with closing(sqlite3.connect(database)) as db, db:
            db.execute("DROP TRIGGER full")
        await harness.crash()
        await harness.start()
        assert await harness.claim() == end
        await harness.redeliver()
    assert payloads(database) == [b"a", b"b"]
