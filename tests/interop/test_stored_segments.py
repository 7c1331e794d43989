"""Segments on the disks of real brokers, beside what the DumpLogSegments of their own release sees in them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from consumerd.demo.processes import clean_environment, consumerd_command
from consumerd.wire.v08.records import RecordCodec
from tests.interop.test_record_conversions import COUNT, KEYS, TIMES, VALUES, Topic
from tests.interop.test_restore import produce
from tests.support.kafka import KafkaBroker
from tests.support.maven import fetch_jars

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
CODECS = {
    "0.8.2.2": (0, "none gzip snappy"),
    "0.10.1.1": (1, "none gzip snappy lz4"),
    "0.11.0.3": (2, "none gzip snappy lz4"),
    "2.8.2": (2, "none gzip snappy lz4 zstd"),
    "3.9.1": (2, "none gzip snappy lz4 zstd"),
    "4.1.0": (2, "none gzip snappy lz4 zstd"),
    "4.3.1": (2, "none gzip snappy lz4 zstd"),
}
EVERYDAY = ("0.8.2.2", "0.10.1.1", "4.1.0")
VERSIONS = [pytest.param(version, marks=[] if version in EVERYDAY else pytest.mark.long) for version in CODECS]
CLEANER = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": 100, "log.cleaner.min.cleanable.ratio": "0.001"}
#: Of topics that are made by the request for them.
OLD_TOPICS = {"log.cleanup.policy": "compact", "log.segment.bytes": 11_000}
#: What DumpLogSegments shows of a record, in small letters.
RECORD_FIELDS = ("offset", "keysize", "valuesize", "payloadsize", "createtime", "headerkeys")
#: How releases name the kinds of timestamps of `log dump --json`.
CLOCKS = {"create_time": "createtime", "log_append_time": "logappendtime", "none": "notimestamptype"}


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


def dumped(broker: KafkaBroker, files: list[Path], *more: str) -> list[dict[str, str]]:
    """What the release's own tool says of each batch, or record, by the names of its fields in small letters."""
    arguments = ("--files", ",".join(map(str, files)), *more)
    if broker.release.number < (4, 2):
        command = broker._command("kafka.tools.DumpLogSegments", *arguments)
    else:  # in an artifact of its own
        command = broker._command("org.apache.kafka.tools.DumpLogSegments", *arguments)
        jars = fetch_jars([f"org.apache.kafka:kafka-tools:{broker.release.version}"])
        command[command.index("-cp") + 1] = ":".join(map(str, jars))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    found = []
    for line in done.stdout.decode().splitlines():
        fields = {name.lower(): value for name, value in re.findall(r"(\w+): (\[.*?\]|\S+)", line)}
        if "position" in fields or "keysize" in fields:
            found.append(fields)
    return found


def as_dumped(line: dict[str, Any], data: bytes) -> dict[str, str]:
    """A batch of `log dump --json` by the names of DumpLogSegments; `data`: the file's bytes."""
    is_old = line["magic"] < 2
    codec = {"none": "NoCompression"}.get(line["codec"], line["codec"]) if is_old else line["codec"]
    place = line["position"] + (12 if is_old else 17)
    time = -1 if line["max_timestamp"] is None else line["max_timestamp"]
    producer = {name: line[name] for name in ("producer_id", "producer_epoch", "base_sequence")}
    numbers = {name: -1 if value is None else value for name, value in producer.items()}
    # A plain message of magic 0 or 1 is its own record.
    alone = line["records"][0] if is_old and line["codec"] == "none" else {"key_base64": None, "value_base64": ""}
    key_size = 0 if alone["key_base64"] is None else len(b64decode(alone["key_base64"]))
    payload_size = line["size"] - key_size - 12 - (14, 22, 0)[line["magic"]]
    sequence, span = numbers["base_sequence"], line["last_offset"] - line["offset"]
    fields = {
        "offset": line["last_offset"],
        "baseoffset": line["offset"],
        "lastoffset": line["last_offset"],
        "count": 1 if line["control"] else len(line["records"]),
        "basesequence": sequence,
        "lastsequence": -1 if sequence < 0 else sequence + span,
        "producerid": numbers["producer_id"],
        "producerepoch": numbers["producer_epoch"],
        "partitionleaderepoch": -1 if line["leader_epoch"] is None else line["leader_epoch"],
        "istransactional": line["transactional"],
        "iscontrol": line["control"] is not None,
        "deletehorizonms": "OptionalLong.empty" if (at := line["delete_horizon"]) is None else f"OptionalLong[{at}]",
        "position": line["position"],
        CLOCKS[line["timestamp_type"]]: time,
        "size": line["size"],
        "keysize": key_size,
        "payloadsize": -1 if alone["value_base64"] is None else payload_size,
        "magic": line["magic"],
        "compresscodec": f"{codec}CompressionCodec".replace("NoCompressionC", "NoC") if is_old else codec,
        "crc": int.from_bytes(data[place : place + 4]),
        "isvalid": line["valid"],
    }
    return {name: str(value).lower() for name, value in fields.items()}


def data_of(deep: list[dict[str, str]]) -> list[dict[str, str]]:
    """The records, of what is shown with `--deep-iteration`: beside batches since 2.x, and markers of transactions."""
    return [
        {name: fields[name] for name in RECORD_FIELDS if name in fields}
        for fields in deep
        if "offset" in fields and "endtxnmarker" not in fields
    ]


def record_as_dumped(record: dict[str, Any]) -> dict[str, str]:
    """A record of `log dump --json` by the names of DumpLogSegments."""
    sizes = [-1 if record[name] is None else len(b64decode(record[name])) for name in ("key_base64", "value_base64")]
    fields = {
        "offset": record["offset"],
        "keysize": sizes[0],
        "valuesize": sizes[1],
        "payloadsize": sizes[1],
        "createtime": record["timestamp"],
        "headerkeys": "[" + ",".join(name for name, _ in record["headers"]) + "]",
    }
    return {name: str(value).lower() for name, value in fields.items()}


def differences(theirs: dict[str, str], ours: dict[str, str]) -> dict[str, tuple[str, str | None]]:
    """The fields, of those that the tool shows, whose values are not the same."""
    return {name: (value, ours.get(name)) for name, value in theirs.items() if value.lower() != ours.get(name)}


async def compared(broker: KafkaBroker, files: list[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The batches and the records of `log dump --json`, which are those that the release's own tool shows."""
    lines = said("log", "dump", "--json", *map(str, files))
    theirs = await asyncio.to_thread(dumped, broker, files)
    data = {str(file): file.read_bytes() for file in files}
    assert sum(line["size"] for line in lines) == sum(map(len, data.values()))
    assert [
        differences(fields, as_dumped(line, data[line["file"]])) for fields, line in zip(theirs, lines, strict=True)
    ] == [{}] * len(lines)
    records = [record for line in lines if not line["control"] for record in line["records"]]
    deep = await asyncio.to_thread(dumped, broker, files, "--deep-iteration")
    assert [
        differences(fields, record_as_dumped(record)) for fields, record in zip(data_of(deep), records, strict=True)
    ] == [{}] * len(records)
    return lines, records


@pytest.mark.parametrize("version", VERSIONS)
async def test_archive_of_a_broker_is_what_its_own_tool_sees(
    kafka: Any, cluster_client: Any, tmp_path: Path, version: str
) -> None:
    magic, names = CODECS[version]
    broker = await kafka(version, partitions=1)
    codecs = [RecordCodec[name.upper()] for name in names.split()]
    async with cluster_client(broker) as client:
        topic = Topic(client, "events")
        if magic == 2:
            await topic.create()
        else:  # made by the request for it
            await client.refresh(["events"])
        for codec in codecs:
            await topic.produce(magic, codec)
        if magic == 2:
            await produce(client, 1)
    arguments = ("offsets", "set", "--bootstrap-server", broker.address, "--group", "g", "--execute")
    for offset in (7, 11):
        await asyncio.to_thread(called, *arguments, f"events/0={offset}", cwd=tmp_path)
    await broker.stop()
    # Several ones: the messages of transactions are younger.
    files = sorted((broker.log_directory / "events-0").glob("*.log"))
    lines, records = await compared(broker, files)
    count = COUNT * len(codecs)
    assert [record["offset"] for record in records[:count]] == list(range(count))
    assert {line["control"] for line in lines} == ({None} if magic < 2 else {None, "commit", "abort"})
    committed = said("log", "dump", "--json", "--isolation", "read_committed", *map(str, files))
    aborted = [
        line
        for line in lines
        if b64encode(b"aborted").decode() in [record["value_base64"] for record in line["records"]]
    ]
    assert len(aborted) == (magic == 2)
    assert committed == [line for line in lines if line not in aborted]
    (summary,) = said("log", "verify", "--json", str(broker.log_directory))
    found = {row["partition"]: row for row in summary["summary"]["partitions"]}
    (row,) = [row for name, row in found.items() if name.endswith("/events-0")]
    assert (row["messages"], row["end"]) == (len(records), lines[-1]["next_offset"])
    assert len(VALUES) == len(KEYS) == COUNT
    # The group's last commit, as the broker kept it.
    (kept,) = said("log", "offsets", "--json", str(broker.log_directory), whole=True)
    assert kept["groups"] == {"g": {"events": {"0": 11}}}


@pytest.mark.long
@pytest.mark.parametrize("version", CODECS)
async def test_compacted_log_is_what_its_own_tool_sees(
    kafka: Any, cluster_client: Any, tmp_path: Path, version: str
) -> None:
    magic, names = CODECS[version]
    codecs = [RecordCodec[name.upper()] for name in names.split()[: None if magic else 1]]  # 0.8 compacts plain ones
    broker = await kafka(version, partitions=1, config=CLEANER | ({} if magic == 2 else OLD_TOPICS))
    folder = broker.log_directory / "events-0"
    async with cluster_client(broker) as client:
        topic = Topic(client, "events")
        if magic == 2:
            size = "segment_bytes" if broker.release.number < (4,) else "internal_segment_bytes"
            await topic.create(cleanup_policy="compact", **{size: "11000"})
        else:
            await client.refresh(["events"])
        for number, codec in enumerate([*codecs, RecordCodec.NONE, RecordCodec.NONE]):
            await topic.produce(magic, codec, [b"%d-%d" % (number, n // 3) for n in range(COUNT)])
        clean = await broker.wait_compacted("events-0")
    await broker.stop()
    files = sorted(folder.glob("*.log"))
    lines, records = await compared(broker, files)
    before, after = (
        [record for record in records if (record["offset"] < clean) == is_clean] for is_clean in (True, False)
    )
    assert len(before) <= clean // 3
    assert [record["offset"] for record in after] == list(range(clean, lines[-1]["next_offset"]))
    kept = {record["offset"] for record in before}
    assert {n for n in range(2, clean, 3) if VALUES[n % COUNT] is not None} <= kept
    horizons = {line["offset"]: line["delete_horizon"] for line in lines if line["delete_horizon"] is not None}
    assert bool(horizons) == (broker.release.number >= (3, 1))
    assert all(record["timestamp"] in {None, *TIMES} for record in records)
    listed, _ = said("log", "ls", "--json", str(folder))
    assert (listed["start"], listed["end"]) == (0, lines[-1]["next_offset"])
    assert listed["first_time"] in {None, *TIMES}
