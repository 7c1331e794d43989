"""`consumerd migrate verify` with an archive of segments and a real broker: it finds one difference of each kind."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import HandlerSection
from consumerd.demo.processes import consumerd_command
from consumerd.handlers import Batch, HandlerContext, load_handler
from consumerd.handlers.forward.identity import SourceMark
from consumerd.handlers.recorded import batches, segment_messages
from consumerd.producer.v08.producer import V08Producer
from consumerd.storage import segment_name
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from tests.support.archives import batch, write_segment

pytestmark = [pytest.mark.interop]
CLOCK = SystemClock()


def archive(folder: Path, partition: TopicPartition, count: int) -> bytes:
    """Two segments with plain, gzip and snappy messages; the log's bytes."""
    log = b""
    place = folder / f"broker-{partition.broker}" / f"{partition.topic}-{partition.partition}"
    place.mkdir(parents=True)
    for half in range(2):
        payloads = [b"%d-%d " % (half, n) + b"x" * (n % 50) for n in range(count // 2)]
        sets = [
            encode_message_set(payloads[n : n + 10], codec=codec, magic=1)
            for n, codec in zip(
                range(0, len(payloads), 10), [Codec.NONE, Codec.GZIP, Codec.SNAPPY] * count, strict=False
            )
        ]
        (place / segment_name(len(log))).write_bytes(b"".join(sets))
        log += b"".join(sets)
    return log


async def verify(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *consumerd_command("migrate", "verify", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode() + errors.decode()


async def test_finds_each_kind_of_difference(kafka: Any, cluster_client: Any, tmp_path: Path) -> None:
    broker = await kafka("3.9.1", partitions=2)
    sources = [TopicPartition("events", 3, number) for number in range(2)]
    logs = {source: archive(tmp_path / "old", source, 400) for source in sources}
    options = {"bootstrap": [broker.address], "topics": {"events": "new"}, "partitions": 2, "partitions_per_broker": 2}
    handler = load_handler("forward", options)
    await handler.start(HandlerContext("g", "g_c", CLOCK))
    for source, log in logs.items():
        await handler.handle(Batch(source, decode_batch(log, 0)))
    await handler.stop()
    where = (
        "--from-directory", str(tmp_path / "old"), "--layout", "broker-{broker}/{topic}-{partition}",
        "--to-bootstrap-server", broker.address, "--topic", "events", "--range", "100",
    )  # fmt: skip
    code, output = await verify(*where, "--rename", "events=new", "--json")
    assert code == 0, output
    report = json.loads(output)
    assert report["clean"]
    assert report["totals"] == {
        "source": 800, "there": 800, "missing": 0, "changed": 0, "duplicated": 0, "out_of_order": 0, "foreign": 0,
    }  # fmt: skip
    assert [each["places"] for each in report["partitions"]] == [[0], [1]]
    assert all(each["sum"]["source"] == each["sum"]["target"] for p in report["partitions"] for each in p["ranges"])
    assert all(each["order"]["source"] == each["order"]["target"] for p in report["partitions"] for each in p["ranges"])

    # The same by hand, with differences.
    async with (
        cluster_client(broker) as client,
        V08Producer(client, clock=CLOCK, rng=random.Random(1)) as producer,
    ):
        for source, log in logs.items():
            mark = SourceMark(source)
            messages = list(decode_batch(log, 0).messages())
            wrong = source.partition == 1
            for number, message in enumerate(messages):
                if wrong and number == 77:
                    continue
                payload = b"changed" if wrong and number == 205 else message.payload
                for _ in range(2 if wrong and number == 333 else 1):
                    headers = mark.headers(message.offset, message.index, message.payload)
                    await producer.send("bad", payload, partition=source.partition, headers=headers)
        await producer.send("bad", b"stranger", partition=0)
    code, output = await verify(*where, "--topic-template", "bad")
    assert code == ExitCode.CHECK_FAILED
    lines = [line.split("\t") for line in output.splitlines()]
    assert [line[1:] for line in lines if line[0] == "total"] == [["2", "800", "798", "1", "1", "1", "0", "1"]]
    ranges = [line for line in lines if line[0] == "range"]
    assert [line[4:11] for line in ranges] == [
        ["100", "99", "1", "0", "0", "0", "0"],
        ["100", "99", "0", "1", "0", "0", "0"],
        ["100", "100", "0", "0", "1", "0", "0"],
    ]
    messages = list(decode_batch(logs[sources[1]], 0).messages())
    for kind, number in (("missing", 77), ("changed", 205), ("duplicated", 333)):
        told = f"events/3-1 offset {messages[number].offset} index {messages[number].index}"
        assert ["example", kind, told] in lines
    assert ["strangers", "bad/0", "1"] in lines
    code, output = await verify(*where, "--topic-template", "nowhere")
    assert code == ExitCode.NOT_FOUND
    assert "the target has no topic 'nowhere'; give --rename" in output

    # An archive since 0.8, forwarded as it lies there.
    write_segment(
        tmp_path / "disk", "stored-0", 0, *(batch(n, b"a %d" % n, None, keys=[b"k", b"g"]) for n in (0, 2, 4))
    )
    handler = load_handler("forward", {"bootstrap": [broker.address], "topics": {"stored": "kept"}, "partitions": 1})
    await handler.start(HandlerContext("g", "g_c", CLOCK))
    kept = segment_messages(str(tmp_path / "disk" / "stored-0"), "stored", 0, on_deleted=pytest.fail)
    size = HandlerSection(max_batch=4)
    for found in batches(kept, size):
        await handler.handle(found)
    await handler.stop()
    stored = ("--from-directory", f"file://{tmp_path}/disk", "--to-bootstrap-server", broker.address)
    code, output = await verify(*stored, "--rename", "stored=kept")
    assert (code, output.splitlines()[-1].split("\t")) == (0, ["total", "1", "6", "6", "0", "0", "0", "0", "0"])
    write_segment(tmp_path / "disk", "stored-0", 6, batch(6, b"later"))
    code, output = await verify(*stored, "--rename", "stored=kept")
    assert code == ExitCode.CHECK_FAILED
    assert ["example", "missing", "stored/0 offset 6 index 0"] in [line.split("\t") for line in output.splitlines()]
