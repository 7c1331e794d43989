"""Daemons of one group write files to one shared folder while they are killed, stopped and joined.

What must hold: every message of the log is in exactly one file, in order, whatever died when, and although offsets are
committed only every ten seconds: `files` and `parquet` own their positions.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet as pq

from consumerd.base.clock import SystemClock
from consumerd.net import connect
from consumerd.net.zk import Session
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.storage.broker import Broker, BrokerConfig
from consumerd.wire.v07 import (
    LATEST,
    Codec,
    FetchRequest,
    OffsetsRequest,
    decode_batch,
    decode_fetch_response,
    decode_offsets_response,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.asyncio, pytest.mark.kill]

SESSION_TIMEOUT = 2.0
PARTITIONS = 4

Record = tuple[int, int, str]


class Daemons:
    """`consumerd run` processes of one group, numbered."""

    def __init__(self, directory: Path, connect_string: str, handler: str) -> None:
        self.directory = directory
        self.handler = handler
        self.connect = connect_string
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, number: int) -> None:
        config = self.directory / f"{number}.toml"
        config.write_text(
            "\n".join(
                (
                    "[group]",
                    'id = "g"',
                    "topics = { t = 1 }",
                    "[zookeeper]",
                    f'connect = "{self.connect}"',
                    f"session_timeout = {SESSION_TIMEOUT}",
                    "[fetch]",
                    "size = 3000",  # other boundaries at every fetch, and many files
                    "idle_backoff = 0.05",
                    "[handler]",
                    f'name = "{self.handler}"',
                    f'options = {{ directory = "{self.directory / "out"}" }}',
                )
            )
        )
        log = os.open(self.directory / f"{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self.processes[number] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "consumerd",
                "run",
                "-c",
                str(config),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        finally:
            os.close(log)

    async def says(self, number: int, event: str) -> None:
        """Wait until the log of a daemon has `event`; it reports this in no other way."""
        async with asyncio.timeout(60):
            while f'"event": "{event}"' not in (self.directory / f"{number}.log").read_text():
                assert self.processes[number].returncode is None
                await asyncio.sleep(0.05)

    def send(self, number: int, what: signal.Signals) -> None:
        self.processes[number].send_signal(what)

    async def end(self, number: int, what: signal.Signals) -> int:
        process = self.processes.pop(number)
        process.send_signal(what)
        return await asyncio.wait_for(process.wait(), 60)

    async def kill_all(self) -> None:
        for number in list(self.processes):
            if self.processes[number].returncode is None:
                await self.end(number, signal.SIGKILL)


async def produced(broker: Broker) -> dict[int, list[Record]]:
    """Every message in the broker, by partition."""
    connection = await connect("127.0.0.1", broker.port)
    found = {}
    try:
        for partition in range(PARTITIONS):
            request = FetchRequest("t", partition, 0, 1 << 26)
            data = decode_fetch_response(await connection.request(request.encode())).data
            found[partition] = [(m.offset, m.index, m.payload.decode()) for m in decode_batch(data, 0).messages()]
    finally:
        await connection.close()
    return found


async def ends(broker: Broker) -> dict[int, int]:
    connection = await connect("127.0.0.1", broker.port)
    try:
        answers = {p: await connection.request(OffsetsRequest("t", p, LATEST, 1).encode()) for p in range(PARTITIONS)}
    finally:
        await connection.close()
    return {p: decode_offsets_response(body).offsets[0] for p, body in answers.items()}


def ranges(folder: Path) -> list[tuple[int, int, Path]]:
    found = []
    for path in [*folder.glob("*.ndjson"), *folder.glob("*.parquet")]:
        start, end = path.stem.split("-")
        found.append((int(start), int(end), path))
    return sorted(found)


def stored(folder: Path) -> list[Record]:
    """The records of a partition's folder; its ranges must follow upon each other."""
    position = 0
    records = []
    for start, end, path in ranges(folder):
        assert start == position, f"{path}: expected to begin at {position}"
        position = end
        records += read(path)
    return records


def read(path: Path) -> list[Record]:
    if path.suffix == ".parquet":
        rows = pq.read_table(path, partitioning=None).to_pylist()
        return [(row["offset"], row["index"], row["payload"].decode()) for row in rows]
    return [(r["offset"], r["index"], r["payload"]) for r in map(json.loads, path.read_bytes().splitlines())]


async def feed(producer: Producer, stop: asyncio.Event) -> None:
    """Produce batches of random size to random partitions until stopped."""
    rng = random.Random(7)
    number = 0
    while not stop.is_set():
        batch = [b"message %d %s" % (number + n, b"x" * rng.randrange(300)) for n in range(rng.randrange(1, 20))]
        number += len(batch)
        await producer.send("t", batch, partition=rng.randrange(PARTITIONS))
        await asyncio.sleep(0.005)


async def caught_up(daemons: Daemons, broker: Broker) -> None:
    """Wait until the files reach the end of every partition."""
    out = daemons.directory / "out" / "t"
    wanted = await ends(broker)
    async with asyncio.timeout(60):
        while True:  # other processes write: nothing here to await
            there = {p: max((end for _, end, _ in ranges(out / f"0-{p}")), default=0) for p in range(PARTITIONS)}
            if there == wanted:
                return
            for number, process in daemons.processes.items():
                assert process.returncode is None, (daemons.directory / f"{number}.log").read_text()
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("handler", ["files", "parquet"])
async def test_files_have_no_duplicates_or_gaps_after_kill_stop_and_join(
    zk_root: str, tmp_path: Path, handler: str
) -> None:
    daemons = Daemons(tmp_path, zk_root, handler)
    config = BrokerConfig(log_dir=tmp_path / "log", port=0, partitions=PARTITIONS, flush_messages=1)
    stop = asyncio.Event()
    try:
        async with (
            Session(zk_root, clock=SystemClock(), rng=random.Random()) as zk,
            Broker(config, clock=SystemClock(), rng=random.Random(1), zookeeper=zk) as broker,
            Producer(
                StaticRouter([("127.0.0.1", broker.port)], rng=random.Random(2)),
                connect=connect,
                clock=SystemClock(),
                rng=random.Random(3),
                settings=ProducerSettings(codec=Codec.GZIP),
            ) as compressed,
            Producer(
                StaticRouter([("127.0.0.1", broker.port)], rng=random.Random(4)),
                connect=connect,
                clock=SystemClock(),
                rng=random.Random(5),
            ) as plain,
            asyncio.TaskGroup() as group,
        ):
            feeds = [group.create_task(feed(producer, stop)) for producer in (compressed, plain)]
            for number in (1, 2):
                await daemons.start(number)
                await daemons.says(number, "partition_started")
            await daemons.start(3)  # joins
            await daemons.says(3, "partition_started")
            await asyncio.sleep(1.0)
            await daemons.end(1, signal.SIGKILL)  # its partitions move when its session expires
            daemons.send(2, signal.SIGSTOP)  # a zombie: sleeps for twice its session
            await daemons.start(4)
            await asyncio.sleep(2 * SESSION_TIMEOUT)
            await daemons.says(4, "partition_started")
            daemons.send(2, signal.SIGCONT)
            await daemons.says(2, "session_expired")
            await asyncio.sleep(1.0)
            assert await daemons.end(3, signal.SIGTERM) == 0
            stop.set()
            await asyncio.wait(feeds)  # each may have a last batch on its way
            await caught_up(daemons, broker)
            expected = await produced(broker)
            for number in list(daemons.processes):
                assert await daemons.end(number, signal.SIGTERM) == 0, (tmp_path / f"{number}.log").read_text()
            for partition, records in expected.items():
                assert stored(tmp_path / "out" / "t" / f"0-{partition}") == records
            assert sum(map(len, expected.values())) > 1000
    finally:
        stop.set()
        await daemons.kill_all()
