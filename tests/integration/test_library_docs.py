"""The snippets of docs/library.md and the README run, except for addresses, on a real ZooKeeper and broker."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import sys
from pathlib import Path
from typing import Any

from consumerd import LATEST, SimpleConsumer
from consumerd.base.clock import SystemClock
from consumerd.demo.processes import BrokerProcess, clean_environment
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.wire.v07 import Codec, OffsetsRequest, ProduceRequest, encode_message_set

ROOT = Path(__file__).resolve().parents[2]


def examples(document: str) -> dict[str, str]:
    """The Python blocks, by the file name in their first line."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
    return {block.splitlines()[0].removeprefix("# "): block for block in blocks}


async def run(script: Path, *, ends_with: str = "") -> str:
    """The output of the script; `ends_with` is the error that it is expected to end with."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-W",
        "error",
        str(script),
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode != 0) == bool(ends_with), errors.decode()
    assert ends_with in errors.decode()
    return "\n".join(line for line in out.decode().splitlines() if "[info " not in line and "[warning" not in line)


async def test_runs_the_examples(zk_root: str, tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path, zk_root, settings={"log.flush.interval": 1}) as broker:
        connection = await connect("127.0.0.1", broker.port)
        for topic in ("clicks", "orders"):
            data = encode_message_set([b"one", b"two"]) + encode_message_set([b"three", b"four"], codec=Codec.GZIP)
            await connection.send(ProduceRequest(topic, 0, data).encode())
            await connection.request(OffsetsRequest(topic, 0, LATEST, 1).encode())
        await connection.close()
        scripts = {}
        endless = examples("README.md")["clicks.py"].replace('/kafka"', '/kafka", consumer_timeout=1')
        for name, text in {**examples("docs/library.md"), "clicks.py": endless}.items():
            if name in ("cluster.py", "enrich.py"):  # on brokers (tests/interop/test_library.py, test_transactions.py)
                continue
            if name == "oauth.py":  # which sends nothing
                made: dict[str, Any] = {"secret": "hush", "tls": ssl.create_default_context()}
                exec(compile(text, name, "exec"), made)
                assert made["config"].sasl().name == "OAUTHBEARER"
                continue
            text = text.replace("zk1:2181,zk2:2181/kafka", zk_root)
            text = text.replace('"broker1", 9092', f'"127.0.0.1", {broker.port}')
            scripts[name] = tmp_path / name
            scripts[name].write_text(text, "utf-8")
        assert set(scripts) == {"clicks.py", "consume.py", "listen.py", "look.py"}

        printed = await run(scripts["consume.py"])
        for topic in ("clicks", "orders"):
            found = re.findall(rf"{topic} 0 (\d+) (\d+) (\w+)", printed)
            assert [payload for _, _, payload in found] == ["one", "two", "three", "four"]
            assert found[2][0] == found[3][0]
        assert printed.count("no message for 2 seconds: <MessageStream") == 3

        printed = await run(scripts["clicks.py"], ends_with="ConsumerTimeoutError")  # in the same group
        assert "Identity" not in printed
        async with SimpleConsumer("127.0.0.1", broker.port) as consumer:
            (end,) = await consumer.get_offsets_before("clicks", 0, LATEST, 1)
        async with Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as zk:
            committed, _ = await zk.get("/consumers/events/offsets/clicks/0-0")
            assert int(committed or b"-1") == end
            await zk.delete("/consumers/events/offsets/clicks/0-0")
        printed = await run(scripts["clicks.py"], ends_with="ConsumerTimeoutError")
        assert re.findall(r"Identity\(topic='clicks'.*b'(\w+)'", printed) == ["one", "two", "three", "four"]

        printed = await run(scripts["listen.py"])
        assert "15 bytes" in printed
        assert "revoked: orders/0-0" in printed

        printed = await run(scripts["look.py"])
        assert re.findall(r"^\d+ (\d) (\w+)$", printed, re.MULTILINE) == [
            ("0", "one"),
            ("0", "two"),
            ("0", "three"),
            ("1", "four"),
        ]
        assert "it has no such offset" in printed
