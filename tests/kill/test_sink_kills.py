"""Members with built-in sinks are killed at random moments: nothing is lost, exactly-once sinks have nothing twice.

Everything runs as an operator would run it; what the broker's segment files hold at the end is compared, message by
message, with what is in the sink.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyarrow import parquet as pq

from consumerd.storage.log.dump import read_segment
from consumerd.testing.brokers import segments_of
from tests.support.postgres import PostgresServer
from tests.support.receiver import OncePerKey, Receiver
from tests.support.small_disk import fill, small_disk

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper]

#: Kills of one test; `make test-long` has more.
KILLS = 2 if "CONSUMERD_LONG_SECONDS" not in os.environ else int(os.environ["CONSUMERD_LONG_SECONDS"])
PATIENCE = 120.0

#: `broker-partition`, offset, index.
Place = tuple[str, int, int]


def held(cluster: Any) -> dict[Place, bytes]:
    """All messages of the log, by their identities."""
    found = {}
    for partition in cluster.partitions:
        folder = cluster.broker.log_directory / f"{partition.topic}-{partition.partition}"
        for path, start in segments_of(folder):
            for entry in read_segment(path, start):
                for index, payload in enumerate(entry.payloads):
                    found[(partition.name, entry.offset, index)] = payload
    return found


async def until_committed(cluster: Any) -> None:
    """Wait until the end of every partition is committed. ZooKeeper is the outside world: polled."""
    ends = {}
    for partition in cluster.partitions:
        folder = cluster.broker.log_directory / f"{partition.topic}-{partition.partition}"
        ends[partition] = sum(path.stat().st_size for path in folder.glob("*.kafka"))
    start = time.monotonic()
    while (found := await cluster.committed()) != ends:
        if time.monotonic() - start > PATIENCE:
            pytest.fail(f"committed {found} of {ends}; logs in {cluster.directory}")
        await asyncio.sleep(0.1)


async def killed_at_random(cluster: Any, seed: int, **tables: Any) -> dict[Place, bytes]:
    """Two members, of which one after the other is killed and replaced while messages come in; what the log holds."""
    rng = random.Random(seed)
    members = [await cluster.member(**tables) for _ in range(2)]
    async with cluster.producing():
        for number in range(KILLS):
            await cluster.goes_on()
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            members[number % 2].kill()
            members[number % 2] = await cluster.member(**tables)
    await until_committed(cluster)
    for member in members:
        assert await member.stop() == 0
    messages = held(cluster)
    assert len(messages) > 300
    return messages


def places(records: Iterable[dict[str, Any]]) -> Counter[Place]:
    return Counter((f"{each['broker']}-{each['partition']}", each["offset"], each["index"]) for each in records)


#: Appends what it reads to a file of its own, one write for each message, and acknowledges it.
PROGRAM = """
import os, sys
out = os.open(f"{sys.argv[1]}/{os.getpid()}.ndjson", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for line in sys.stdin.buffer:
    os.write(out, line)
    print(flush=True)
"""


async def test_a_program_gets_every_message(cluster: Any, tmp_path: Path) -> None:
    out, program = tmp_path / "out", tmp_path / "program.py"
    out.mkdir()
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(out)]
    messages = await killed_at_random(cluster, 1, handler={"name": "exec", "options": {"command": command}})
    lines = [line for path in out.iterdir() for line in path.read_bytes().split(b"\n")[:-1]]
    assert places(map(json.loads, lines)).keys() == messages.keys()


async def test_print_writes_every_message(cluster: Any) -> None:
    messages = await killed_at_random(cluster, 5, handler={"name": "print", "options": {}})
    # A line that SIGKILL cut off is the last one of its process.
    lines = [line for member in cluster.members for line in member.stdout_path.read_bytes().split(b"\n")[:-1]]
    assert places(map(json.loads, lines)).keys() == messages.keys()


@pytest.mark.parametrize("name", ["files", "parquet", "tests.support.object_store:parquet"])
async def test_files_have_every_message_once(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # for the store of objects
    out = tmp_path / "out"
    handler = {"name": name, "options": {"directory": str(out)}, "max_batch": 50, "linger": 0.01}
    messages = await killed_at_random(cluster, 4, handler=handler)
    found = [record for path in sorted(out.rglob("[0-9]*-[0-9]*.*")) for record in file_records(path)]
    assert places(found) == Counter(messages.keys())
    assert not [path for path in out.rglob(".writer-*") if any(path.iterdir())]


async def test_a_member_waits_on_a_full_disk_and_continues_after_sigkill(cluster: Any, tmp_path: Path) -> None:
    handler = {"name": "files", "max_batch": 50, "linger": 0.01, "max_backoff": 0.2}
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        handler["options"] = {"directory": str(disk / "out")}
        ballast = fill(disk, spare=200_000)
        first = await cluster.member(handler=handler)
        async with cluster.producing():
            await first.wait_for_event("disk_full", PATIENCE)
            assert first.running
            ballast.unlink()
            await first.wait_for_event("disk_space_recovered", PATIENCE)
            ballast = fill(disk)
            await found_full(first, 2)
            first.kill()
            ballast.unlink()
            second = await cluster.member(handler=handler)
            await cluster.goes_on()
        await until_committed(cluster)
        assert await second.stop() == 0
        found = [record for path in (disk / "out").rglob("*.ndjson") for record in file_records(path)]
        assert places(found) == Counter(held(cluster).keys())


async def found_full(member: Any, times: int) -> None:
    """Wait until a member has found its disk full so often. Its log is a file: polled."""
    async with asyncio.timeout(PATIENCE):
        while sum(event["event"] == "disk_full" for event in member.events()) < times:
            await asyncio.sleep(0.05)


def file_records(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".ndjson":
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    rows: list[dict[str, Any]] = pq.read_table(path, partitioning=None).to_pylist()
    return rows


async def test_postgres_has_every_message_once(cluster: Any) -> None:
    with PostgresServer() as server:
        messages = await killed_at_random(
            cluster,
            2,
            handler={"name": "postgres", "options": {"dsn": server.dsn}, "max_batch": 50, "linger": 0.01},
        )
        connection = await asyncpg.connect(server.dsn)
        rows = await connection.fetch('SELECT broker, partition, "offset", index, payload FROM messages')
        await connection.close()
    # The primary key would refuse a second row of the same identity: a duplicate would have stopped a member.
    assert {(f"{row[0]}-{row[1]}", row[2], row[3]): row[4] for row in rows} == messages
    assert len(rows) == len(messages)


async def test_http_receiver_that_heeds_the_keys_has_every_message_once(cluster: Any) -> None:
    async with Receiver(pause=0.05) as receiver:
        options = {"url": receiver.url, "gzip": True}
        messages = await killed_at_random(cluster, 3, handler={"name": "http", "options": options, "max_batch": 50})
    every, once = Counter[Place](), OncePerKey()
    for request in receiver.requests:
        every += places(request.records)
        once.take(request)
    assert every.keys() == messages.keys()
    assert places(once.records) == Counter(messages.keys())
