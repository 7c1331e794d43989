import asyncio
import contextlib
import errno
import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.storage import (
    CLEAN_MARKER,
    CorruptLogError,
    DirectoryInUseError,
    FlushFailedError,
    OsSegmentFile,
    StorageError,
)
from consumerd.storage.broker import connections as connections_module
from consumerd.storage.broker import server as server_module
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.connections import ClientConnections
from consumerd.storage.broker.errors import ListenError
from consumerd.storage.broker.partitions import BrokerPartitions
from consumerd.storage.broker.registration import BrokerRegistration
from consumerd.storage.broker.requests import RequestHandlers
from consumerd.storage.broker.server import Broker
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.v07 import (
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    encode_message,
)
from tests.support.waiting import cancel

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def make(log_dir: Path, **settings: Any) -> Broker:
    config = BrokerConfig(
        **{"log_dir": log_dir, "port": 0, "use_zookeeper": False, "flush_messages": 1, "partitions": 2, **settings}
    )
    return Broker(config, clock=SystemClock(), rng=random.Random(1))


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


async def produce(broker: Broker, *requests: ProduceRequest | MultiProduceRequest) -> None:
    async with connected(broker) as (reader, writer):
        writer.write(b"".join(request.encode() for request in requests))
        writer.write_eof()
        assert await reader.read() == b""


async def test_answers_pipelined_requests_in_order(tmp_path: Path) -> None:
    sets = [encode_message(b"%d" % i) * (i % 7 + 1) for i in range(50)]
    offsets = [sum(map(len, sets[:i])) for i in range(51)]
    async with make(tmp_path) as broker, connected(broker) as (reader, writer):
        for i, data in enumerate(sets):
            writer.write(ProduceRequest("t", 0, data).encode())
            writer.write(FetchRequest("t", 0, offsets[i], 1 << 20).encode())
            writer.write(OffsetsRequest("t", 0, -1, 1).encode())
        for i, data in enumerate(sets):
            assert await answer(reader) == b"\0\0" + data
            assert await answer(reader) == struct.pack(">hiq", 0, 1, offsets[i + 1])


async def test_answers_a_large_multifetch_by_sendfile(tmp_path: Path) -> None:
    big = [encode_message(os.urandom(900_000)) for _ in range(4)]
    async with make(tmp_path, segment_bytes=1_000_000) as broker:
        for i, data in enumerate(big):
            await produce(broker, ProduceRequest("t", i % 2, data))
        fetches = (
            FetchRequest("t", 0, 0, 1 << 24),
            FetchRequest("t", 1, len(big[1]), 1 << 24),
            FetchRequest("t", 0, 1 << 40, 1 << 24),
            FetchRequest("t", 1, 0, 500_000),
        )
        async with connected(broker) as (reader, writer):
            writer.write(MultiFetchRequest(fetches).encode())
            parts = [
                struct.pack(">ih", 2 + len(big[0] + big[2]), 0) + big[0] + big[2],
                struct.pack(">ih", 2 + len(big[3]), 0) + big[3],
                struct.pack(">ih", 2, 1),
                struct.pack(">ih", 500_002, 0) + big[1][:500_000],
            ]
            assert await answer(reader) == b"\0\0" + b"".join(parts)


@pytest.mark.parametrize("topic", ["t", "unknown", "no/topic"])
async def test_serves_other_clients_during_the_largest_multifetch(
    tmp_path: Path, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    entries = 32767
    async with make(tmp_path) as broker, connected(broker) as (reader, writer), connected(broker) as other:
        await produce(broker, ProduceRequest("t", 0, encode_message(b"one")))
        writer.write(MultiFetchRequest((FetchRequest(topic, 0, 0, 100),) * entries).encode())
        answered = asyncio.create_task(answer(reader))
        turns = 0
        while not answered.done():
            other[1].write(OffsetsRequest("t", 0, -1, 1).encode())
            await answer(other[0])
            turns += 1
        body = encode_message(b"one") if topic == "t" else b""
        error = -1 if topic == "no/topic" else 0
        assert await answered == b"\0\0" + (struct.pack(">ih", 2 + len(body), error) + body) * entries
        assert turns > 20
    # one line, not one for each entry
    assert capfd.readouterr().out.count("fetch_failed") == (1 if topic == "no/topic" else 0)


async def test_answers_an_empty_multifetch(tmp_path: Path) -> None:
    async with make(tmp_path) as broker, connected(broker) as (reader, writer):
        writer.write(MultiFetchRequest(()).encode())
        assert await answer(reader) == b"\0\0"


async def test_keeps_logs_over_a_restart_and_writes_and_removes_the_marker(tmp_path: Path) -> None:
    data = encode_message(b"hello")
    async with make(tmp_path) as broker:
        await produce(broker, ProduceRequest("t", 1, data))
        assert not (tmp_path / CLEAN_MARKER).exists()
    assert (tmp_path / CLEAN_MARKER).exists()
    async with make(tmp_path) as broker, connected(broker) as (reader, writer):
        writer.write(FetchRequest("t", 1, 0, 100).encode())
        assert await answer(reader) == b"\0\0" + data


async def test_stop_finishes_what_clients_have_sent(tmp_path: Path) -> None:
    """Requests that have arrived when the broker stops are done, pipelined ones too, and then a FIN comes."""
    data = encode_message(b"x" * 1000)
    async with make(tmp_path, flush_messages=1_000_000) as broker, connected(broker) as (reader, writer):
        for _ in range(300):
            writer.write(ProduceRequest("t", 0, data).encode())
        writer.write(FetchRequest("none", 0, 0, 10).encode())
        await writer.drain()
        await broker.stop()
        assert await reader.read() == struct.pack(">ih", 2, 0)
    assert (tmp_path / "t-0" / f"{0:020d}.kafka").read_bytes() == data * 300


async def test_stop_does_not_wait_for_ever_for_a_client_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_STOP_PATIENCE", 0.2)
    async with make(tmp_path) as broker:
        await produce(broker, ProduceRequest("t", 0, encode_message(bytes(900_000)) * 20))
        async with connected(broker) as (_, writer):
            for _ in range(20):
                writer.write(FetchRequest("t", 0, 0, 1 << 30).encode())
            await writer.drain()
            await asyncio.sleep(0.1)
            async with asyncio.timeout(60):
                await broker.stop()
    assert (tmp_path / CLEAN_MARKER).exists()


async def test_cancellation_leaves_no_marker_and_releases_the_directory(tmp_path: Path) -> None:
    broker = make(tmp_path)
    task = asyncio.create_task(broker.run())
    await broker.ready.wait()
    await produce(broker, ProduceRequest("t", 0, encode_message(b"a")))
    await cancel(task)
    assert task.cancelled()
    assert not (tmp_path / CLEAN_MARKER).exists()
    async with make(tmp_path):
        pass


async def test_failed_sync_stops_the_broker_without_a_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: OsSegmentFile) -> None:
        raise StorageError("cannot sync it: Input/output error")

    broker = make(tmp_path)
    await broker.start()
    async with connected(broker) as (reader, writer):
        with monkeypatch.context() as patch:
            patch.setattr(OsSegmentFile, "sync", fail)
            writer.write(ProduceRequest("t", 0, encode_message(b"a")).encode())
            assert await reader.read() == b""
            with pytest.raises(FlushFailedError, match="restart the broker"):
                await broker.wait()
    assert not (tmp_path / CLEAN_MARKER).exists()


async def test_full_disk_rejects_the_set_and_the_broker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: OsSegmentFile, position: int, data: bytes) -> None:
        raise StorageError("cannot append to it: No space left on device")

    data = encode_message(b"a")
    async with make(tmp_path) as broker:
        await produce(broker, ProduceRequest("t", 0, data))
        with monkeypatch.context() as patch:
            patch.setattr(OsSegmentFile, "write_at", full)
            await produce(broker, ProduceRequest("t", 0, data), ProduceRequest("t", 0, data))
        await produce(broker, ProduceRequest("t", 0, data))
    assert (tmp_path / "t-0" / f"{0:020d}.kafka").read_bytes() == data * 2


async def test_reports_failed_starts(tmp_path: Path) -> None:
    async with make(tmp_path / "a") as broker:
        with pytest.raises(DirectoryInUseError):
            await make(tmp_path / "a").start()
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1 port {broker.port}: Address already in use"):
            await make(tmp_path / "b", port=broker.port).start()
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1 port 0: Cannot assign"):
        await make(tmp_path / "b", host="192.0.2.1").start()
    assert not (tmp_path / "b" / CLEAN_MARKER).exists()
    (tmp_path / "c" / "nonsense").mkdir(parents=True)
    with pytest.raises(CorruptLogError, match="not a topic-partition folder"):
        await make(tmp_path / "c").start()


async def test_goes_on_accepting_after_a_shortage_of_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_ACCEPT_PAUSE", 0.01)
    failures = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ECONNABORTED, "Connection aborted")]
    accept = connections_module._accepted

    async def shaky(listener: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(connections_module, "_accepted", shaky)
    async with make(tmp_path) as broker, connected(broker) as (reader, writer):
        writer.write(OffsetsRequest("t", 0, -1, 1).encode())
        assert await answer(reader) == struct.pack(">hiq", 0, 1, 0)
    assert not failures


async def test_runs_retention_while_a_reader_holds_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    due = asyncio.Event()

    class Gated(SystemClock):
        async def sleep(self, seconds: float) -> None:
            await (due.wait() if seconds == server_module._FIRST_CLEANUP else super().sleep(seconds))

    monkeypatch.setattr(f"{__name__}.SystemClock", Gated)
    data = encode_message(os.urandom(990_000))
    async with make(tmp_path, segment_bytes=9_000_000, retention_bytes=1_000_000) as broker:
        await produce(
            broker, ProduceRequest("t", 0, data * 10), ProduceRequest("t", 0, data), ProduceRequest("t", 0, data)
        )
        async with connected(broker) as (reader, writer):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(FetchRequest("t", 0, 0, 1 << 24).encode())
            segment = broker._logs.get("t", 0).segments[0]  # type: ignore[union-attr]
            while not segment._readers:
                await asyncio.sleep(0.01)
            due.set()
            while (tmp_path / "t-0" / f"{0:020d}.kafka").exists():
                await asyncio.sleep(0.02)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            assert await answer(reader) == b"\0\0" + data * 10
            writer.write(FetchRequest("t", 0, 0, 1 << 24).encode())
            assert await answer(reader) == b"\0\x01"
            writer.write(OffsetsRequest("t", 0, -2, 1).encode())
            assert await answer(reader) == struct.pack(">hiq", 0, 1, 10 * len(data))


async def test_sets_socket_buffers_where_configured(tmp_path: Path) -> None:
    async with (
        make(tmp_path, send_buffer=50_000, receive_buffer=60_000) as broker,
        connected(broker) as (reader, writer),
    ):
        writer.write(OffsetsRequest("t", 0, -1, 1).encode())
        await answer(reader)
        (stream,) = broker._connections._streams.values()
        assert stream._sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 50_000
        assert stream._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 60_000


async def test_spreads_random_partitions(tmp_path: Path) -> None:
    async with make(tmp_path, partitions=3) as broker:
        await produce(broker, *[ProduceRequest("t", -1, encode_message(b"a"))] * 60)
    sizes = [(tmp_path / f"t-{i}" / f"{0:020d}.kafka").stat().st_size for i in range(3)]
    assert sum(sizes) == 60 * len(encode_message(b"a"))
    assert min(sizes) > 0


async def test_serves_all_other_logs_beside_a_damaged_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """0.7.2 would not start. All that the protocol can say about it is the code for unknown errors, and a FIN."""
    one = encode_message(b"a")
    for name in ("t-1", "u-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020d}.kafka").write_bytes(one)
    (tmp_path / "t-1" / f"{len(one) + 5:020d}.kafka").write_bytes(one)
    before = sorted((path, path.read_bytes()) for path in (tmp_path / "t-1").iterdir())
    async with make(tmp_path, partitions=3) as broker:
        for request in (ProduceRequest("t", 1, one), OffsetsRequest("t", 1, -1, 1)):
            async with connected(broker) as (reader, writer):
                writer.write(request.encode())
                assert await reader.read() == b""
        async with connected(broker) as (reader, writer):
            fetches = (FetchRequest("t", 1, 0, 100), FetchRequest("u", 0, 0, 100), FetchRequest("t", 0, 0, 100))
            writer.write(MultiFetchRequest(fetches).encode())
            assert await answer(reader) == bytes.fromhex("0000 00000002 ffff") + struct.pack(
                ">ih", 2 + len(one), 0
            ) + one + bytes.fromhex("00000002 0000")
        await produce(broker, *[ProduceRequest("t", -1, one)] * 40)  # never to the one that cannot take it
        sizes = [(tmp_path / f"t-{number}" / f"{0:020d}.kafka").stat().st_size for number in (0, 2)]
        assert sum(sizes) == 40 * len(one)
        assert min(sizes) > 0
    assert sorted((path, path.read_bytes()) for path in (tmp_path / "t-1").iterdir()) == before
    output = capfd.readouterr().out
    assert "log_offline" in output
    assert f"should end at offset {len(one) + 5}" in output


async def test_creates_no_more_logs_than_max_logs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with make(tmp_path, max_logs=3) as broker:
        for number in range(6):
            await produce(broker, ProduceRequest(f"t{number}", 0, encode_message(b"x")))
        await produce(broker, ProduceRequest("t0", 1, encode_message(b"x")))
        await produce(broker, ProduceRequest("t0", 0, encode_message(b"more")))  # existing logs still accept messages
        async with connected(broker) as (reader, writer):
            writer.write(FetchRequest("t0", 0, 0, 1000).encode() + FetchRequest("t5", 0, 0, 1000).encode())
            assert await answer(reader) == b"\0\0" + encode_message(b"x") + encode_message(b"more")
            assert await answer(reader) == b"\0\0"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["t0-0", "t1-0", "t2-0"]
    assert (
        "partition 0 of topic 't3' was not created: the limit of 3 logs is reached (max.logs)" in capfd.readouterr().out
    )


async def test_produce_creates_no_topic_with_a_deceptive_name(tmp_path: Path) -> None:
    theirs = "their\u202edrow"
    (tmp_path / f"{theirs}-0").mkdir()
    (tmp_path / f"{theirs}-0" / f"{0:020d}.kafka").write_bytes(encode_message(b"one"))
    async with make(tmp_path) as broker:
        for topic in ("our\u202edrow", ".hidden", "line\u2028end", "party\U0001f388"):
            await produce(broker, ProduceRequest(topic, 0, encode_message(b"x")))
        for partition in (0, 1):  # a log that another program made is served like any other
            await produce(broker, ProduceRequest(theirs, partition, encode_message(b"two")))
        async with connected(broker) as (reader, writer):
            writer.write(FetchRequest(theirs, 0, 0, 1000).encode())
            assert await answer(reader) == b"\0\0" + encode_message(b"one") + encode_message(b"two")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [f"{theirs}-0", f"{theirs}-1"]


def open_segments(folder: Path) -> int:
    """The number of segment files below `folder` that this process has open."""
    targets = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            targets.append(entry.readlink())
    return sum(target.is_relative_to(folder) and target.suffix == ".kafka" for target in targets)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
async def test_closes_files_of_idle_logs_and_reopens_them_on_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_REST", 0.05)
    sets = [encode_message(b"%d" % number) for number in range(4)]
    async with make(tmp_path, segment_bytes=1, flush_messages=1) as broker, asyncio.timeout(60):
        for number in range(20):
            await produce(broker, ProduceRequest(f"t{number}", 0, sets[0]))
        while open_segments(tmp_path):
            await asyncio.sleep(0.02)
        for data in sets[1:]:  # each makes a new segment
            await produce(broker, ProduceRequest("t7", 0, data))
        async with connected(broker) as (reader, writer):
            for number, data in enumerate(sets):
                writer.write(FetchRequest("t7", 0, number * len(data), 1000).encode())
                assert await answer(reader) == b"\0\0" + data
            writer.write(OffsetsRequest("t3", 0, -1, 1).encode())
            assert await answer(reader) == struct.pack(">hiq", 0, 1, len(sets[0]))
        while open_segments(tmp_path):
            await asyncio.sleep(0.02)
    async with make(tmp_path) as broker, connected(broker) as (reader, writer):
        assert open_segments(tmp_path) == 0  # a start needs a descriptor for one at a time
        writer.write(FetchRequest("t9", 0, 0, 1000).encode())
        assert await answer(reader) == b"\0\0" + sets[0]


def readers(broker: Broker) -> int:
    """The number of readers that hold a segment's file open."""
    return sum(segment._readers for _, _, log in broker.logs() for segment in log.segments)


async def test_releases_every_segment_after_each_kind_of_answer(tmp_path: Path) -> None:
    big = encode_message(bytes(900_000))
    data, end = FetchRequest("t", 0, 0, 1 << 24), FetchRequest("t", 0, 8 * len(big), 100)
    negative, outside = FetchRequest("t", 0, 0, -7), FetchRequest("t", 0, 1 << 40, 100)
    async with make(tmp_path, segment_bytes=2 * len(big)) as broker, asyncio.timeout(60):
        for _ in range(8):
            await produce(broker, ProduceRequest("t", 0, big))
        for fetches in ((data, end, data), (data, outside, data), (end,), (data, negative, data, end)):
            async with connected(broker) as (reader, writer):
                writer.write(MultiFetchRequest(fetches).encode())
                writer.write_eof()
                await reader.read()
        for request in (data, end, negative):
            async with connected(broker) as (reader, writer):
                writer.write(request.encode())
                writer.write_eof()
                await reader.read()
        while readers(broker):  # the last connection may still be ending
            await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(MultiFetchRequest((data,) * 40).encode())
        await reader.readexactly(100)
        assert readers(broker) == 40
        writer.transport.abort()
        while readers(broker):
            await asyncio.sleep(0.001)


async def test_a_cancelled_multifetch_releases_what_it_has_found(tmp_path: Path) -> None:
    async with make(tmp_path) as broker:
        await produce(broker, ProduceRequest("t", 0, encode_message(b"one")))
        partitions = BrokerPartitions(broker._logs, SystemClock(), broker.stats)
        requests = RequestHandlers(broker.config, partitions, SystemClock(), random.Random(1))
        task = asyncio.create_task(requests.handle(MultiFetchRequest((FetchRequest("t", 0, 0, 100),) * 300)))
        await asyncio.sleep(0)  # it has found 256 of them
        assert readers(broker) == 256
        await cancel(task)
        assert readers(broker) == 0


async def test_stops_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No consumer finds it, nobody can connect, clients are served to the end, and only then the logs are closed."""
    zookeeper = MemoryZooKeeper()
    steps: list[str] = []

    def refuses_connections(broker: Broker) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", broker.port)) == errno.ECONNREFUSED

    async with zookeeper.session() as zk:
        config = BrokerConfig(log_dir=tmp_path, port=0, flush_messages=1)
        broker = Broker(config, clock=SystemClock(), rng=random.Random(1), zookeeper=zk)
        withdraw, stop = BrokerRegistration.withdraw, ClientConnections.stop
        close = broker._logs.close

        async def noted_withdraw(registration: BrokerRegistration) -> None:
            assert refuses_connections(broker)
            assert broker.connections == 1
            steps.append("withdraw")
            await withdraw(registration)

        async def noted_stop(connections: ClientConnections, patience: float) -> None:
            assert "/brokers/ids/0" not in zookeeper.dump()
            assert broker.connections == 1
            steps.append("clients")
            await stop(connections, patience)

        def noted_close(now: float) -> None:
            assert broker.connections == 0
            steps.append("logs")
            close(now)

        monkeypatch.setattr(BrokerRegistration, "withdraw", noted_withdraw)
        monkeypatch.setattr(ClientConnections, "stop", noted_stop)
        monkeypatch.setattr(broker._logs, "close", noted_close)
        async with broker, connected(broker) as (reader, writer):
            writer.write(ProduceRequest("t", 0, encode_message(b"one")).encode())
            writer.write(OffsetsRequest("t", 0, -1, 1).encode())
            await answer(reader)
            async with asyncio.timeout(60):
                while "/brokers/topics/t/0" not in zookeeper.dump():
                    await asyncio.sleep(0.001)
            await broker.stop()
            assert await reader.read() == b""
            assert "/brokers/topics/t/0" not in zookeeper.dump()
    assert steps == ["withdraw", "clients", "logs"]


async def test_is_ready_only_once_it_is_registered(tmp_path: Path, server: MemoryZooKeeper, zk: MemorySession) -> None:
    server.put("/brokers/ids/0", b"h-1300000000000:127.0.0.1:9", session_id=7)
    (tmp_path / "t-0").mkdir()
    config = BrokerConfig(log_dir=tmp_path, port=0)
    broker = Broker(config, clock=SystemClock(), rng=random.Random(1), zookeeper=zk)
    with capture_logs() as logs:
        starting = asyncio.create_task(broker.start())
        async with asyncio.timeout(60):
            while "waiting_for_broker_id" not in [each["event"] for each in logs]:
                await asyncio.sleep(0.001)
    assert not broker.ready.is_set()
    server.end(7)
    await starting
    assert {"/brokers/ids/0", "/brokers/topics/t/0"} <= server.dump().keys()
    await broker.stop()
