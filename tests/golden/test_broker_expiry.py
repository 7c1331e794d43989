"""A broker that is stopped beyond its session and wakes again: the states of the recording, in its order."""

import asyncio
import json
import random
import re
import sys
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.demo.children import Child
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.wire.v07 import ProduceRequest, encode_message

pytestmark = [pytest.mark.kill]


def child(number: int, folder: Path, zk_root: str) -> Child:
    argv: list[str | Path] = [sys.executable, "-m", "consumerd", "broker", "--port", "0", "--broker-id", str(number)]
    argv += ["--zookeeper", zk_root, "--log-dir", folder / str(number), "--set", "zk.sessiontimeout.ms=2000"]
    return Child(argv, log=folder / f"{number}.txt", name=f"broker {number}")


async def ready(process: Child) -> int:
    line = await process.wait_for_line(lambda text: '"event": "ready"' in text, 30)
    return int(json.loads(line)["port"])


async def produce(port: int, *topics: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for topic in topics:
        writer.write(ProduceRequest(topic, 0, encode_message(b"a")).encode())
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


async def children(zk: Session, path: str) -> list[str]:
    try:
        return await zk.children(path)
    except NoNode:
        return []


async def until_below(zk: Session, path: str, names: list[str]) -> None:
    """Poll: what other sessions do to nodes cannot be awaited from here."""
    async with asyncio.timeout(60):
        while await children(zk, path) != names:
            await asyncio.sleep(0.02)


async def test_expires_sessions_as_recorded(golden: Path, zk_root: str, tmp_path: Path) -> None:
    recorded = json.loads((golden / "kafka-0.7.2" / "behaviour" / "session_expiry.json").read_bytes())
    before, gone, back, after = recorded[:4]
    host, creator = re.compile(r"(.*)-\d{13}:(127\.0\.0\.1):\d+"), re.compile(r"127\.0\.0\.1-(\d{13}):.*")
    async with (
        Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=4) as zk,
        child(0, tmp_path, zk_root) as zero,
        child(1, tmp_path, zk_root) as one,
    ):
        ports = [await ready(zero), await ready(one)]
        for port in ports:
            await produce(port, "alpha", "beta")

        async def address() -> str:
            data, _ = await zk.get("/brokers/ids/1")
            assert data is not None
            return data.decode()

        for topic in ("alpha", "beta"):
            await until_below(zk, f"/brokers/topics/{topic}", ["0", "1"])
        assert await zk.children("/brokers/ids") == before["ids"]
        first = await address()
        one.pause()
        await until_below(zk, "/brokers/ids", ["0"])
        assert await zk.children("/brokers/topics/alpha") == gone["topics_alpha"]
        one.resume()
        await until_below(zk, "/brokers/ids", before["ids"])
        for topic in ("alpha", "beta"):
            await until_below(zk, f"/brokers/topics/{topic}", after[topic])
        second = await address()
        for text, golden_text in ((first, before["b1"]), (second, back["b1"])):
            ours, theirs = host.fullmatch(text), host.fullmatch(golden_text)
            assert ours is not None
            assert theirs is not None
            assert ours.groups() == theirs.groups()
        for earlier, later in ((first, second), (before["b1"], back["b1"])):
            found = [creator.fullmatch(text) for text in (earlier, later)]
            assert int(found[0][1]) < int(found[1][1])  # type: ignore[index]
        assert first.rpartition(":")[2] == second.rpartition(":")[2] == str(ports[1])
        await produce(ports[1], "gamma")  # and it works as before
        await until_below(zk, "/brokers/topics/gamma", ["1"])
