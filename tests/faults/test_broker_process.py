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

from consumerd.clock import SystemClock
from consumerd.embedded import Child
from consumerd.wire.v07 import FetchRequest, OffsetsRequest, ProduceRequest, encode_message
from consumerd.zk import Session
from consumerd.zk.errors import NoNode

pytestmark = [pytest.mark.asyncio, pytest.mark.kill]

CONSUMERD = (sys.executable, "-m", "consumerd")


def child(log: Path, *arguments: str | Path) -> Child:
    return Child([*CONSUMERD, "broker", "--port", "0", *arguments], log=log, name="broker")


async def ready(process: Child) -> int:
    line = await process.wait_for_line(lambda text: '"event": "ready"' in text and "host" in text, 30)
    return int(json.loads(line)["port"])


async def ask(port: int, *requests: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(requests))
    writer.write_eof()
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


async def test_what_was_flushed_survives_kill_nine(tmp_path: Path) -> None:
    """Killed in the middle of a flood: what a fetch has ever shown is there after the restart, and nothing invented."""
    messages = [encode_message(b"%07d" % i + b"x" * (i % 200)) for i in range(20_000)]
    whole = b"".join(messages)
    arguments = ("--log-dir", tmp_path / "log", "--no-zookeeper", "--set", "log.file.size=300000")
    settings = ("--set", "log.flush.interval=50")
    async with child(tmp_path / "one.txt", *arguments, *settings) as process:
        port = await ready(process)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for start in range(0, len(messages), 10):
            writer.write(ProduceRequest("t", 0, b"".join(messages[start : start + 10])).encode())
        seen = 0
        async with asyncio.timeout(20):
            while seen < 400_000:
                answer = await ask(port, OffsetsRequest("t", 0, -1, 1).encode())
                (seen,) = struct.unpack(">10xq", answer)
        process.kill()
        await process.wait()
        writer.close()
    assert not (tmp_path / "log" / ".kafka_cleanshutdown").exists()
    async with child(tmp_path / "two.txt", *arguments) as process:
        port = await ready(process)
        (end,) = struct.unpack(">10xq", await ask(port, OffsetsRequest("t", 0, -1, 1).encode()))
        assert end >= seen
        kept = b""
        while len(kept) < end:
            kept += (await ask(port, FetchRequest("t", 0, len(kept), 1 << 24).encode()))[6:]
        assert kept == whole[:end]
        assert end in set(itertools.accumulate(map(len, messages)))  # cut at a message, not within
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert (tmp_path / "log" / ".kafka_cleanshutdown").exists()


async def test_a_restart_within_the_session_timeout_waits_for_its_old_node(zk_root: str, tmp_path: Path) -> None:
    """Where 0.7.2 dies with `A broker is already registered on the path` (golden notes, 4)."""
    arguments = ("--log-dir", tmp_path / "log", "--broker-id", "3", "--zookeeper", zk_root)
    settings = ("--set", "zk.sessiontimeout.ms=2000")
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=4) as zk:
        async with child(tmp_path / "one.txt", *arguments, *settings) as process:
            await ready(process)
            before, old = await zk.get("/brokers/ids/3")
            process.kill()
            await process.wait()
        async with child(tmp_path / "two.txt", *arguments, *settings) as process:
            port = await ready(process)
            after, new = await zk.get("/brokers/ids/3")
            assert before != after
            assert after is not None
            assert re.fullmatch(rb"127\.0\.0\.1-\d{13}:127\.0\.0\.1:%d" % port, after)
            assert old.ephemeral_owner != new.ephemeral_owner
            assert "waiting_for_broker_id" in process.output()
            process.terminate()
            assert await process.wait() == 0
        with pytest.raises(NoNode):
            await zk.get("/brokers/ids/3")


async def test_an_id_taken_is_one_sentence_and_a_code(zk_root: str, tmp_path: Path) -> None:
    arguments = ("--zookeeper", zk_root, "--set", "zk.sessiontimeout.ms=1000")
    async with child(tmp_path / "one.txt", "--log-dir", tmp_path / "a", *arguments) as first:
        await ready(first)
        async with child(tmp_path / "two.txt", "--log-dir", tmp_path / "b", *arguments) as second:
            assert await second.wait() == 9
            assert "consumerd: broker id 0 is held by another live broker" in second.output()
            assert "Traceback" not in second.output()
        first.terminate()
        assert await first.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--no-zookeeper",), 3, "consumerd: the broker needs a directory for its logs: give --log-dir or log.dir"),
        (("--log-dir", "LOG"), 3, "give --zookeeper HOST:PORT, or --no-zookeeper to do without"),
        (("--log-dir", "LOG", "--no-zookeeper", "--zookeeper", "x:1"), 3, "contradict each other: give one of them"),
        (("--log-dir", "LOG", "--no-zookeeper", "--set", "port=1"), 3, "--port and --set port contradict each other"),
        (("--log-dir", "LOG", "--no-zookeeper", "--set", "num.partitons=1"), 3, "did you mean num.partitions?"),
        (("--log-dir", "LOG", "--no-zookeeper", "--set", "x"), 3, "--set x has no value: write --set key=value"),
        (("--log-dir", "LOG", "--no-zookeeper", "--host", "192.0.2.1"), 6, "cannot listen on 192.0.2.1 port 0"),
        (("--log-dir", "BAD", "--no-zookeeper"), 7, "bad/nonsense is not a topic-partition folder such as words-0"),
        (("--log-dir", "LOG", "--config", "CONF"), 3, "log.flush.intervall is not a broker property; did you mean"),
        (("--log-dir", "LOG", "--config", "/no"), 3, "consumerd: cannot read /no: No such file"),
        (("--log-dir", "/proc/no", "--no-zookeeper"), 6, "cannot create /proc/no"),
        (("--log-dir", "LOG", "--zookeeper", "127.0.0.1:1", "--set", "zk.sessiontimeout.ms=500"), 5, "127.0.0.1:1"),
        (("--log-dir", "LOG", "--partitions", "0"), 2, "Invalid value for '--partitions'"),
    ],
)
async def test_bad_input_is_one_sentence_and_a_code(
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


async def test_a_second_signal_forces(tmp_path: Path) -> None:
    """A client that does not read holds up the graceful stop; the second signal does not wait for it."""
    arguments = ("--log-dir", tmp_path / "log", "--no-zookeeper", "--set", "log.flush.interval=1")
    async with child(tmp_path / "out.txt", *arguments) as process:
        port = await ready(process)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ProduceRequest("t", 0, encode_message(bytes(900_000)) * 20).encode())
        for _ in range(500):
            writer.write(FetchRequest("t", 0, 0, 1 << 30).encode())
        await writer.drain()
        async with asyncio.timeout(10):
            while struct.unpack(">10xq", await ask(port, OffsetsRequest("t", 0, -1, 1).encode())) == (0,):
                await asyncio.sleep(0.02)
        process.signal(signal.SIGTERM)
        await process.wait_for_line(lambda text: "broker_stopping" in text, 10)
        process.signal(signal.SIGTERM)
        async with asyncio.timeout(3):
            assert await process.wait() == 12
        writer.close()
    assert not (tmp_path / "log" / ".kafka_cleanshutdown").exists()
