"""Mirrors to a modern cluster are killed, their target restarted, while messages come in: `migrate verify` is content.

The source is a 0.7 broker of three partitions, with plain, gzip and snappy messages, shared by two members. They ask
the target what it has of each partition that they come to own, so not even the tail comes again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.java import MissingRuntimeError
from consumerd.demo.processes import BrokerProcess, consumerd_command, format_toml
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from tests.kill.mirrors import BROKER_SETTINGS, TOPIC, MirrorProcess, producers
from tests.support.kafka import RELEASES, SHORT_SESSION, KafkaBroker, kafka_jars

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper, pytest.mark.interop]

PARTITIONS = 3


async def produce(port: int, stop: asyncio.Event) -> int:
    """Numbered messages in every codec, round the partitions, until `stop` is set, and 1,010 at least; how many."""
    batch = 0
    async with producers(port) as each:
        while batch <= 100 or not stop.is_set():
            lines = [b"%d-%d " % (batch, number) + b"x" * (number % 90) for number in range(10)]
            await each[batch % 3].send(TOPIC, lines, partition=batch % PARTITIONS)
            batch += 1
            await asyncio.sleep(0.004)
    return 10 * batch


def member(directory: Path, name: str, source: str, *arguments: str) -> MirrorProcess:
    config = directory / f"{name}.toml"
    tables: dict[str, dict[str, Any]] = {
        "group": {"id": "mirror", "topics": {TOPIC: 1}},
        "zookeeper": {"connect": source, "session_timeout": 2.0},
        "fetch": {"size": 20_000, "idle_backoff": 0.05},
        "commit": {"interval": 1.0},
        "log": {"format": "json"},
    }
    config.write_text(format_toml(tables))
    return MirrorProcess(directory, "-c", str(config), *arguments, name=name)


async def all_committed(source: str, broker: BrokerProcess) -> None:
    """Wait until the mirror has committed the end of every partition. ZooKeeper is the outside world: polled."""
    ends = {}
    for partition in range(PARTITIONS):
        folder = broker.log_directory / f"{TOPIC}-{partition}"
        ends[f"0-{partition}"] = sum(path.stat().st_size for path in folder.glob("*.kafka"))
    found: dict[str, int] = {}
    async with Session(source, clock=SystemClock(), rng=random.Random()) as zk:
        try:
            async with asyncio.timeout(60.0):
                while True:
                    for name in ends:
                        try:
                            found[name] = int((await zk.get(f"/consumers/mirror/offsets/{TOPIC}/{name}"))[0] or b"")
                        except NoNode:
                            found[name] = 0
                    if found == ends:
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"committed {found} of {ends}")


async def verify(*arguments: str) -> tuple[int | None, dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        *consumerd_command("migrate", "verify", *arguments, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, json.loads(output)


MODES = {
    "target": ("--resume", "target"),
    "committed": ("--resume", "committed"),
    "exactly_once": ("--exactly-once",),
}
VERIFIED = {"committed": ("--allow-duplicates",), "exactly_once": ("--isolation", "read_committed")}


@pytest.mark.parametrize("mode", ["target", "exactly_once", pytest.param("committed", marks=pytest.mark.long)])
async def test_loses_nothing_when_mirror_or_target_is_killed(
    tmp_path: Path, zookeeper_factory: Any, java: Any, missing: Callable[[str], NoReturn], mode: str
) -> None:
    zookeeper = await zookeeper_factory(tick_ms=250)
    place = f"{zookeeper.connect}/old"
    release = RELEASES["3.9.1"]
    try:
        jars = kafka_jars(release)
    except MissingRuntimeError as error:
        missing(str(error))
    target = KafkaBroker(tmp_path / "new", release, None, java=java, jars=jars, config=SHORT_SESSION)
    async with AsyncExitStack() as stack:
        source = BrokerProcess(tmp_path / "old", place, partitions=PARTITIONS, settings=BROKER_SETTINGS)
        stack.callback(target.kill)
        async with asyncio.TaskGroup() as starts:
            starts.create_task(target.start())
            starts.create_task(stack.enter_async_context(source))
        where = ("--to-bootstrap-server", target.address, "--partitions", "2", "--codec", "gzip", *MODES[mode])
        first, second = (member(tmp_path, name, place, *where) for name in ("first", "second"))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            fed = group.create_task(produce(source.port, stop))
            async with asyncio.TaskGroup() as starts:
                for each in (first, second):
                    starts.create_task(stack.enter_async_context(each))
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
        code, report = await verify(*arguments, *VERIFIED.get(mode, ()))
        assert code == 0, report
        totals = report["totals"]
        assert totals["source"] == fed.result() > 1000
        assert totals["missing"] == totals["changed"] == totals["foreign"] == totals["out_of_order"] == 0
        assert (totals["duplicated"] > 0) == (mode == "committed")
