"""Whole broker processes: killed, restarted, signalled, refused."""

import asyncio
import itertools
import json
import random
import re
import signal
import struct
import sys
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.demo.children import Child
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.wire.v07 import (
    BatchEnd,
    Codec,
    FetchRequest,
    OffsetsRequest,
    ProduceRequest,
    decode_batch,
    encode_message,
    encode_message_set,
)
from tests.conftest import ZooKeeperFactory

pytestmark = [pytest.mark.kill]

CONSUMERD = (sys.executable, "-m", "consumerd")


def child(log: Path, *arguments: str | Path) -> Child:
    return Child([*CONSUMERD, "broker", "--port", "0", *arguments], log=log, name="broker")


async def ready(process: Child) -> int:
    line = await process.wait_for_line(lambda text: '"event": "ready"' in text and "host" in text, 60)
    return int(json.loads(line)["port"])


async def ask(port: int, *requests: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"".join(requests))
        writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


#: The largest number of unread bytes of a partition: every life of the broker reads all produced messages again.
AHEAD = 300_000


async def flood(port: int, partition: int, name: bytes, codec: Codec, seen: dict[int, int]) -> None:
    """Produce numbered messages, up to `AHEAD` of what was `seen`, until the broker has ended."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    position = seen[partition]
    try:
        for start in itertools.count(0, 20):
            payloads = [b"%s %d " % (name, number) + b"x" * (number % 90) for number in range(start, start + 20)]
            messages = encode_message_set(payloads, codec=codec)
            position += len(messages)
            writer.write(ProduceRequest("t", partition, messages).encode())
            await writer.drain()
            while position > seen[partition] + AHEAD:
                await asyncio.sleep(0.005)
    except OSError:
        pass  # it is gone
    finally:
        writer.close()


async def end_of(port: int, partition: int) -> int:
    answer = await ask(port, OffsetsRequest("t", partition, -1, 1).encode())
    if not answer:
        raise ConnectionResetError("the broker was killed before it answered")
    (end,) = struct.unpack(">10xq", answer)
    return int(end)


async def watch(port: int, seen: dict[int, int]) -> None:
    """Note the furthest offset that the broker has shown of every partition: up to it all is flushed."""
    while True:
        for partition, known in seen.items():
            seen[partition] = max(known, await end_of(port, partition))


async def everything(port: int, partition: int) -> list[bytes]:
    """All payloads of a partition, which must hold nothing but whole messages."""
    offset = 0
    payloads: list[bytes] = []
    while data := (await ask(port, FetchRequest("t", partition, offset, 1 << 20).encode()))[6:]:
        batch = decode_batch(data, offset)
        assert batch.end is not BatchEnd.CORRUPT
        assert batch.next_offset > offset
        payloads += batch.payloads
        offset = batch.next_offset
    assert offset == await end_of(port, partition)
    return payloads


async def test_flushed_messages_survive_repeated_sigkill(tmp_path: Path) -> None:
    """Four lives on one directory, killed while three producers flood it: what was shown once is there ever after, in
    order, without a gap, and every message was sent.
    """
    settings = ("--set", "log.file.size=200000", "--set", "log.flush.interval=300", "--partitions", "3")
    arguments = ("--log-dir", tmp_path / "log", "--no-zookeeper", *settings)
    rng = random.Random(5)
    kept: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    seen = dict.fromkeys(kept, 0)
    for life in range(5):
        async with child(tmp_path / f"{life}.txt", *arguments) as process:
            port = await ready(process)
            for partition, before in kept.items():
                assert await end_of(port, partition) >= seen[partition]
                payloads = await everything(port, partition)
                assert payloads[: len(before)] == before
                name = b"%d/%d" % (life - 1, partition)
                new = [payload.split(b" ")[:2] for payload in payloads[len(before) :]]
                assert new == [[name, b"%d" % number] for number in range(len(new))]
                assert new or not life
                kept[partition] = payloads
                seen[partition] = await end_of(port, partition)
            if life == 4:
                break
            before_flood = dict(seen)
            codecs = (Codec.NONE, Codec.GZIP, Codec.NONE)
            tasks = [
                asyncio.create_task(flood(port, number, b"%d/%d" % (life, number), codecs[number], seen))
                for number in kept
            ]
            tasks.append(asyncio.create_task(watch(port, seen)))
            async with asyncio.timeout(200):
                while seen[0] < before_flood[0] + 150_000 or any(
                    seen[number] == before_flood[number] for number in kept
                ):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(rng.uniform(0, 0.2))
            process.kill()
            await process.wait()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError | OSError | None) for end in ends), ends


async def test_restart_within_the_session_timeout_waits_for_the_old_node(zk_root: str, tmp_path: Path) -> None:
    """In this case 0.7.2 exits with `A broker is already registered on the path` (golden notes, 4).

    The session outlasts the start of a process on a busy machine, so this test ends it;
    `tests/simulation/test_handover.py` waits for one that expires.
    """
    arguments = ("--log-dir", tmp_path / "log", "--broker-id", "3", "--zookeeper", zk_root)
    settings = ("--set", "zk.sessiontimeout.ms=60000")
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=4) as zk:
        async with child(tmp_path / "one.txt", *arguments, *settings) as process:
            await ready(process)
            before, old = await zk.get("/brokers/ids/3")
            process.kill()
            await process.wait()
        async with child(tmp_path / "two.txt", *arguments, *settings) as process:
            await process.wait_for_line(lambda text: "waiting_for_broker_id" in text, 60)
            assert (await zk.get("/brokers/ids/3"))[1] == old
            await zk.delete("/brokers/ids/3")
            port = await ready(process)
            after, new = await zk.get("/brokers/ids/3")
            assert before != after
            assert after is not None
            assert re.fullmatch(rb"127\.0\.0\.1-\d{13}:127\.0\.0\.1:%d" % port, after)
            assert old.ephemeral_owner != new.ephemeral_owner
            process.terminate()
            assert await process.wait() == 0
        with pytest.raises(NoNode):
            await zk.get("/brokers/ids/3")


async def test_reports_what_a_stop_with_a_frozen_zookeeper_left_undone(
    zookeeper_factory: ZooKeeperFactory, tmp_path: Path
) -> None:
    server = await zookeeper_factory(tick_ms=3000)
    settings = ("--zookeeper", server.connect, "--set", "zk.sessiontimeout.ms=60000")
    async with child(tmp_path / "out.txt", "--log-dir", tmp_path / "log", *settings) as process:
        await ready(process)
        server.pause()
        process.terminate()
        assert await process.wait() == 0
    lines = [json.loads(line) for line in process.output().splitlines() if line.startswith("{")]
    [told] = [line for line in lines if line["event"] == "deregistration_failed"]
    assert told["reason"] == "ZooKeeper did not answer within 5 s"
    assert all(line.get("reason", "-") for line in lines)


async def test_reports_a_broker_id_in_use_with_an_exit_code(zk_root: str, tmp_path: Path) -> None:
    # The first has to keep its session on a busy machine; the second waits for as long.
    arguments = ("--zookeeper", zk_root, "--set", "zk.sessiontimeout.ms=4000")
    async with child(tmp_path / "one.txt", "--log-dir", tmp_path / "a", *arguments) as first:
        await ready(first)
        async with child(tmp_path / "two.txt", "--log-dir", tmp_path / "b", *arguments) as second:
            assert await second.wait() == 9
            assert "consumerd: broker id 0 is already registered in ZooKeeper by another live broker" in second.output()
            assert "Traceback" not in second.output()
        first.terminate()
        assert await first.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--no-zookeeper",), 3, "consumerd: the broker needs a directory for its logs: give --log-dir or log.dir"),
        (("--log-dir", "LOG"), 3, "give --zookeeper HOST:PORT, or --no-zookeeper to run without it"),
        (("--log-dir", "LOG", "--no-zookeeper", "--zookeeper", "x:1"), 2, "contradict each other: give one of them"),
        (("--log-dir", "LOG", "--no-zookeeper", "--set", "port=1"), 2, "--port and --set port contradict each other"),
        (("--log-dir", "LOG", "--no-zookeeper", "--set", "num.partitons=1"), 3, "did you mean 'num.partitions'?"),
        (("--log-dir", "LOG", "--no-zookeeper", "--set", "x"), 2, "--set x has no value: write --set key=value"),
        (("--log-dir", "LOG", "--no-zookeeper", "--host", "192.0.2.1"), 6, "cannot listen on 192.0.2.1 port 0"),
        (("--log-dir", "BAD", "--no-zookeeper"), 7, "bad/nonsense is not a topic-partition folder such as words-0"),
        (("--log-dir", "LOG", "--config", "CONF"), 3, "log.flush.intervall is not a broker property, did you mean"),
        (("--log-dir", "LOG", "--config", "/no"), 3, "consumerd: cannot read /no: No such file"),
        (("--log-dir", "/proc/no", "--no-zookeeper"), 6, "cannot create /proc/no"),
        (("--log-dir", "LOG", "--zookeeper", "127.0.0.1:1", "--set", "zk.sessiontimeout.ms=500"), 5, "127.0.0.1:1"),
        (("--log-dir", "LOG", "--partitions", "0"), 2, "Invalid value for '--partitions'"),
    ],
)
async def test_reports_invalid_input_with_an_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    (tmp_path / "bad" / "nonsense").mkdir(parents=True)
    (tmp_path / "server.properties").write_text("# a typing error\nlog.flush.intervall=1\n")
    places = {
        "LOG": str(tmp_path / "log"),
        "BAD": str(tmp_path / "bad"),
        "CONF": str(tmp_path / "server.properties"),
    }
    async with child(tmp_path / "out.txt", *(places.get(word, word) for word in arguments)) as process:
        assert await process.wait() == code, process.output()
        assert sentence in process.output()
        assert "Traceback" not in process.output()


SERVER_PROPERTIES = """# what a 0.7 installation has, and what it does not
brokerid=5
hostname=localhost
port: 1
num.threads=2
socket.send.buffer=1048576
socket.receive.buffer=1048576
max.socket.request.bytes=104857600
log.dir={log}
num.partitions=2
topic.partition.count.map=wide:7
log.flush.interval=1
log.default.flush.interval.ms=1000
log.default.flush.scheduler.interval.ms=1000
log.retention.hours=168
topic.log.retention.size=wide:1000000
log.file.size=536870912
log.cleanup.interval.mins=1
monitoring.period.secs=600
zk.connect=localhost:2181
zk.connectiontimeout.ms=1000000
zk.synctime.ms=2000
"""


async def test_starts_with_server_properties_of_0_7(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(SERVER_PROPERTIES.format(log=tmp_path / "log"))
    arguments = ("--config", file, "--no-zookeeper", "--set", "log.file.size=100", "--broker-id", "6")
    async with child(tmp_path / "out.txt", *arguments) as process:
        line = await process.wait_for_line(lambda text: '"event": "ready"' in text and "host" in text, 60)
        assert json.loads(line)["broker"] == 6
        port = int(json.loads(line)["port"])  # `--port 0` wins, too
        one = encode_message(b"x" * 200)
        assert await ask(port, *[ProduceRequest("wide", 6, one).encode()] * 3) == b""
        assert (await ask(port, FetchRequest("wide", 6, 0, 10_000).encode()))[4:] == b"\0\0" + one
        assert (await ask(port, FetchRequest("other", 2, 0, 10_000).encode()))[4:] == b"\0\3"
        output = process.output()
        assert output.count("property_without_effect") == 2
        for sentence in ("this broker has no JMX", "no part of this broker waits for other ZooKeeper servers"):
            assert sentence in output
        process.terminate()
        assert await process.wait() == 0
    assert len(list((tmp_path / "log" / "wide-6").iterdir())) == 3


async def test_second_signal_forces_the_exit(tmp_path: Path) -> None:
    """A client that does not read holds up the graceful stop; the second signal does not wait for it."""
    arguments = ("--log-dir", tmp_path / "log", "--no-zookeeper", "--set", "log.flush.interval=1")
    async with child(tmp_path / "out.txt", *arguments) as process:
        port = await ready(process)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ProduceRequest("t", 0, encode_message(bytes(900_000)) * 20).encode())
        for _ in range(500):
            writer.write(FetchRequest("t", 0, 0, 1 << 30).encode())
        await writer.drain()
        async with asyncio.timeout(60):
            while struct.unpack(">10xq", await ask(port, OffsetsRequest("t", 0, -1, 1).encode())) == (0,):
                await asyncio.sleep(0.02)
        process.signal(signal.SIGTERM)
        await process.wait_for_line(lambda text: "broker_stopping" in text, 60)
        process.signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 12
        writer.close()
    assert not (tmp_path / "log" / ".kafka_cleanshutdown").exists()
