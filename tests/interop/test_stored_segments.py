"""Segments on the disks of real brokers, beside what the DumpLogSegments of their own release sees in them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from consumerd.demo.processes import clean_environment, consumerd_command
from consumerd.wire.v08.records import RecordCodec
from tests.interop.test_record_conversions import COUNT, KEYS, VALUES, Topic
from tests.support.kafka import KafkaBroker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
CODECS = {
    "0.8.2.2": (0, "none gzip snappy"),
    "0.10.1.1": (1, "none gzip snappy lz4"),
    "4.1.0": (2, "none gzip snappy lz4 zstd"),
}


def said(*arguments: str, whole: bool = False) -> list[dict[str, Any]]:
    """What a command prints that finds nothing wrong: an object per line, or one in all."""
    command = consumerd_command(*arguments)
    done = subprocess.run(command, capture_output=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 0, done
    return [json.loads(text) for text in ([done.stdout] if whole else done.stdout.splitlines())]


def called(*arguments: str, cwd: Path) -> None:
    """A command that leaves its files in `cwd`."""
    command = consumerd_command(*arguments)
    done = subprocess.run(command, capture_output=True, env=clean_environment(), cwd=cwd, timeout=60, check=False)
    assert done.returncode == 0, done


def dumped(broker: KafkaBroker, file: Path) -> list[tuple[int, int, int, str]]:
    """(last offset, position, size or -1 where left out, codec) of each batch, as the release's own tool sees it."""
    command = broker._command("kafka.tools.DumpLogSegments", "--files", str(file))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    found = []
    for line in done.stdout.decode().splitlines():
        if (position := re.search(r"position: (\d+)", line)) is None:
            continue
        offset = re.search(r"(?:lastOffset|offset): (\d+)", line)
        size = re.search(r" size: (\d+)", line)
        codec = re.search(r"(?:compresscodec|codec): (\w+)", line)
        assert offset is not None
        assert codec is not None
        name = codec[1].removesuffix("CompressionCodec").lower().replace("nocompression", "none").replace("no", "none")
        name = name.replace("nonene", "none")
        found.append((int(offset[1]), int(position[1]), int(size[1]) if size else -1, name))
    return found


@pytest.mark.parametrize("version", CODECS)
async def test_archive_of_a_broker_is_what_its_own_tool_sees(
    kafka: Any, cluster_client: Any, tmp_path: Path, version: str
) -> None:
    magic, names = CODECS[version]
    broker = await kafka(version, partitions=1)
    codecs = [RecordCodec[name.upper()] for name in names.split()]
    async with cluster_client(broker) as client:
        topic = Topic(client, "events")
        if broker.release.kraft:
            await topic.create()
        else:  # made by the request for it
            await client.refresh(["events"])
        for codec in codecs:
            await topic.produce(magic, codec)
    arguments = ("offsets", "set", "--bootstrap-server", broker.address, "--group", "g", "--execute")
    for offset in (7, 11):
        await asyncio.to_thread(called, *arguments, f"events/0={offset}", cwd=tmp_path)
    await broker.stop()
    (file,) = (broker.log_directory / "events-0").glob("*.log")
    lines = said("log", "dump", "--json", str(file))
    theirs = await asyncio.to_thread(dumped, broker, file)
    told = [size >= 0 for _, _, size, _ in theirs]
    ours = [
        (line["last_offset"], line["position"], line["size"] if size else -1, line["codec"])
        for line, size in zip(lines, told, strict=True)
    ]
    assert ours == theirs
    assert [record["offset"] for line in lines for record in line["records"]] == list(range(COUNT * len(codecs)))
    assert sum(line["size"] for line in lines) == file.stat().st_size
    (summary,) = said("log", "verify", "--json", str(broker.log_directory))
    found = {row["partition"]: row for row in summary["summary"]["partitions"]}
    (row,) = [row for name, row in found.items() if name.endswith("/events-0")]
    assert (row["messages"], row["end"]) == (COUNT * len(codecs), COUNT * len(codecs))
    assert len(VALUES) == len(KEYS) == COUNT
    # The group's last commit, as the broker kept it.
    (kept,) = said("log", "offsets", "--json", str(broker.log_directory), whole=True)
    assert kept["groups"] == {"g": {"events": {"0": 11}}}
