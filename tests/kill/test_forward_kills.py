"""Mirrors to a modern cluster are killed, their target restarted, while messages come in: `migrate verify` is content.

The source is a 0.7 broker of three partitions, with plain, gzip and snappy messages, shared by two members. They ask
the target what it has of each partition that they come to own, so not even the tail comes again.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from consumerd.clock import SystemClock
from consumerd.embedded import MissingRuntimeError
from consumerd.embedded.kafka import RELEASES, KafkaBroker, kafka_jars
from consumerd.embedded.processes import BrokerProcess, Process, consumerd_command, format_toml
from consumerd.net import connect
from consumerd.producer import Producer, ProducerSettings, StaticRouter
from consumerd.wire.compression import Codec
from consumerd.zk import NoNode, Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper, pytest.mark.interop, pytest.mark.asyncio]

TOPIC = "events"
PARTITIONS = 3


class MirrorProcess(Process):
    def __init__(self, directory: Path, name: str, source: str, *arguments: str) -> None:
        super().__init__(name, directory)
        self.arguments = arguments
        self.config = directory / f"{name}.toml"
        tables: dict[str, dict[str, Any]] = {
            "group": {"id": "mirror", "topics": {TOPIC: 1}},
            "zookeeper": {"connect": source, "session_timeout": 2.0},
            "fetch": {"size": 20_000, "idle_backoff": 0.05},
            "commit": {"interval": 1.0},
            "log": {"format": "json"},
        }
        self.config.write_text(format_toml(tables))

    async def start(self, timeout: float = 60.0) -> None:
        await self._launch(consumerd_command("mirror", "-c", str(self.config), *self.arguments), "ready", timeout)


async def produce(port: int, stop: asyncio.Event) -> int:
    """Numbered messages in every codec, round the partitions, until `stop` is set; how many."""
    async with AsyncExitStack() as stack:
        producers = []
        for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY):
            router = StaticRouter([("127.0.0.1", port)], rng=random.Random())
            settings = ProducerSettings(codec=codec)
            made = Producer(router, connect=connect, clock=SystemClock(), rng=random.Random(), settings=settings)
            producers.append(await stack.enter_async_context(made))
        batch = 0
        while not stop.is_set():
            lines = [b"%d-%d " % (batch, number) + b"x" * (number % 90) for number in range(10)]
            await producers[batch % 3].send(TOPIC, lines, partition=batch % PARTITIONS)
            batch += 1
            await asyncio.sleep(0.004)
    return 10 * batch


async def all_committed(place: str, broker: BrokerProcess, limit: float = 60.0) -> None:
    """Wait until the mirror has committed the end of every partition. ZooKeeper is the outside world: polled."""
    ends = {
        f"0-{partition}": sum(
            path.stat().st_size for path in (broker.log_directory / f"{TOPIC}-{partition}").glob("*.kafka")
        )
        for partition in range(PARTITIONS)
    }
    found: dict[str, int] = {}
    async with Session(place, clock=SystemClock(), rng=random.Random()) as zk, asyncio.timeout(limit):
        while found != ends:
            await asyncio.sleep(0.1)
            for name in ends:
                try:
                    found[name] = int((await zk.get(f"/consumers/mirror/offsets/{TOPIC}/{name}"))[0] or b"")
                except NoNode:
                    found[name] = 0


async def verify(*arguments: str) -> tuple[int | None, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        *consumerd_command("migrate", "verify", *arguments, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, json.loads(output)


@pytest.mark.parametrize("resume", ["target", pytest.param("committed", marks=pytest.mark.long)])
async def test_sigkill_of_the_mirror_and_of_the_target(
    tmp_path: Path, zookeeper_factory: Any, java: Any, missing: Callable[[str], NoReturn], resume: str
) -> None:
    zookeeper = await zookeeper_factory(tick_ms=250)
    place = f"{zookeeper.connect}/old"
    release = RELEASES["3.9.1"]
    try:
        jars = kafka_jars(release)
    except MissingRuntimeError as error:
        missing(str(error))
    target = KafkaBroker(tmp_path / "new", release, None, java=java, jars=jars)
    settings: dict[str, str | int] = {
        "log.flush.interval": 1, "log.file.size": 100_000, "zk.sessiontimeout.ms": 2000,
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        await target.start()
        stack.callback(target.kill)
        source = BrokerProcess(tmp_path / "old", place, partitions=PARTITIONS, settings=settings)
        await stack.enter_async_context(source)
        where = ("--to-bootstrap-server", target.address, "--partitions", "2", "--codec", "gzip", "--resume", resume)
        first, second = (MirrorProcess(tmp_path, name, place, *where) for name in ("first", "second"))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            fed = group.create_task(produce(source.port, stop))
            await stack.enter_async_context(first)
            await stack.enter_async_context(second)
            await asyncio.sleep(1.3)
            first.kill()
            await first.start()
            await asyncio.sleep(1.0)
            second.kill()
            target.kill()
            await asyncio.sleep(0.5)
            await target.start()
            await second.start()
            await asyncio.sleep(0.5)
            first.kill()
            await first.start()
            stop.set()
        await all_committed(place, source)
        assert await first.stop() == 0
        assert await second.stop() == 0
        arguments = (
            "--from-zookeeper", place, "--topic", TOPIC, "--to-bootstrap-server", target.address, "--range", "500",
        )  # fmt: skip
        code, report = await verify(*arguments, *(["--allow-duplicates"] if resume == "committed" else []))
        assert code == 0, report
        totals = report["totals"]
        assert totals["source"] == fed.result() > 1000
        assert totals["missing"] == totals["changed"] == totals["foreign"] == totals["out_of_order"] == 0
        assert (totals["duplicated"] > 0) == (resume == "committed")
