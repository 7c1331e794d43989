"""A disk on which a sync takes as long as the test wants: sessions, health and other clients do not wait for it.

Strategy: the processes run with the library of `tests.support.slow_disk`. A sync is held, then the test awaits what
must go on meanwhile, then the sync may end, and nothing is lost. So no test depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.demo.processes import BrokerProcess
from consumerd.net.connect import connect
from consumerd.testing.fault_proxy import Direction, FaultProxy
from consumerd.wire.v07 import OffsetsRequest, ProduceRequest, decode_offsets_response, encode_message_set
from tests.support.dead_letters import read_letters
from tests.support.slow_disk import SlowDisk, library_or_skip
from tests.support.waiting import until

pytestmark = [pytest.mark.zookeeper]

HOURS = 9000.0
#: Seconds for whatever has to come on a busy machine.
PATIENCE = 60.0
#: More than the default executor of asyncio has threads.
MANY = min(32, (os.cpu_count() or 1) + 4) + 2


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library_or_skip(tmp_path_factory.mktemp("library"))


@pytest.fixture
def slow(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    """Of the processes that the test starts."""
    (folder := tmp_path / "slow").mkdir()
    with SlowDisk(library, tmp_path / "control", folder) as disk:
        for name, value in disk.environment.items():
            monkeypatch.setenv(name, value)
        yield disk
        disk.seconds = 0.0


class Watched:
    """A proxy before ZooKeeper that counts what the process sends, reached by a name that has to be looked up."""

    def __init__(self, root: str) -> None:
        server, _, self._path = root.partition("/")
        host, _, port = server.partition(":")
        self.requests = 0
        self.proxy = FaultProxy(host, int(port), frames=True, hook=self._count)

    @property
    def connect(self) -> str:
        return f"localhost:{self.proxy.port}/{self._path}"

    def _count(self, direction: Direction, frame: bytes) -> bytes:
        if direction is Direction.TO_SERVER:
            self.requests += 1
        return frame


@pytest_asyncio.fixture
async def watched(zk_root: str) -> AsyncIterator[Watched]:
    made = Watched(zk_root)
    async with made.proxy:
        yield made


async def health(port: int) -> bytes:
    """The status line of /healthz."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            return await reader.readline()
    finally:
        writer.close()


async def session_goes_on(watched: Watched) -> None:
    """Heartbeats go on, and after a cut the session is established again."""
    seen = watched.requests
    await until(lambda: watched.requests > seen + 1)
    connections = watched.proxy.accepted
    watched.proxy.cut()
    await until(lambda: watched.proxy.accepted > connections)
    seen = watched.requests
    await until(lambda: watched.requests > seen + 1)


@pytest.mark.parametrize(
    ("sink", "loop"),
    [
        ("files", "asyncio"),
        pytest.param("files", "uvloop", marks=pytest.mark.long),
        pytest.param("dead letters", "asyncio", marks=pytest.mark.long),
        pytest.param("dead letters", "uvloop", marks=pytest.mark.long),
    ],
)
async def test_session_and_health_do_not_wait_for_a_sync(
    slow: SlowDisk,
    watched: Watched,
    world: Any,  # ends before the others
    tmp_path: Path,
    sink: str,
    loop: str,
) -> None:
    """Also with a partition for each thread of the process and more."""
    letters, partitions = tmp_path / "slow" / "dead.ndjson", [TopicPartition("t", 0, number) for number in range(MANY)]
    handler: dict[str, Any] = {"name": "files", "options": {"directory": str(tmp_path / "slow" / "out")}}
    if sink == "dead letters":
        handler = {"name": "bad_handlers:Failing", "options": {"text": "x"}, "max_attempts": 1}
        handler |= {"on_failure": "dead_letter", "dead_letter": str(letters)}
    await world.broker(partitions=MANY)
    daemon = await world.daemon(
        handler=handler, commit={"interval": 0.1}, daemon={"loop": loop},
        zookeeper={"connect": watched.connect}, health={"listen": f"127.0.0.1:{(port := free_port())}"},
    )  # fmt: skip
    ends = {each: await world.append(each, b"x first") for each in partitions}

    async def committed() -> bool:
        return all([await world.offset(each) == end for each, end in ends.items()])

    await world.until(committed)
    slow.seconds = HOURS
    before = dict(ends)
    ends = {each: await world.append(each, b"x second") for each in partitions}
    # Files have a thread each, the dead letters of all partitions one file.
    await until(lambda: slow.waiting >= (MANY - 2 if sink == "files" else 1))
    await session_goes_on(watched)
    assert b" 200 " in await health(port)
    assert [await world.offset(each) for each in partitions] == [before[each] for each in partitions]
    slow.seconds = 0.0
    await world.until(committed)
    assert not [event for event in daemon.events() if event["event"] == "session_expired"]
    stored = len(list(read_letters(letters))) if sink == "dead letters" else 0
    for path in (tmp_path / "slow").rglob("[0-9]*.ndjson"):
        stored += len(path.read_text().splitlines())
    assert stored == 2 * MANY


@pytest.mark.long
async def test_broker_answers_other_clients_while_a_flush_lasts(
    slow: SlowDisk, watched: Watched, tmp_path: Path
) -> None:
    broker = BrokerProcess(
        tmp_path / "slow", watched.connect, partitions=MANY,
        settings={"log.flush.interval": 1, "zk.sessiontimeout.ms": 2000},
    )  # fmt: skip
    messages = encode_message_set([b"x"])
    async with broker:
        connection = await connect("127.0.0.1", broker.port)

        async def end_of(number: int) -> int:
            request = OffsetsRequest("t", number, -1, 1)
            return decode_offsets_response(await connection.request(request.encode())).offsets[0]

        try:
            for number in range(MANY):
                await connection.send(ProduceRequest("t", number, messages).encode())
                assert await end_of(number) == len(messages)
            slow.seconds = HOURS
            writing = [await connect("127.0.0.1", broker.port) for _ in range(MANY)]
            for number, each in enumerate(writing):
                await each.send(ProduceRequest("t", number, messages).encode())
            await until(lambda: slow.waiting >= MANY - 2)
            await session_goes_on(watched)
            async with asyncio.timeout(PATIENCE):
                assert [await end_of(number) for number in range(MANY)] == [len(messages)] * MANY
            slow.seconds = 0.0
            for number in range(MANY):
                async with asyncio.timeout(PATIENCE):
                    while await end_of(number) < 2 * len(messages):
                        await asyncio.sleep(0.02)
            for each in writing:
                await each.close()
        finally:
            slow.seconds = 0.0
            await connection.close()
