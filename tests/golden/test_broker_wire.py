"""The broker answers every recorded case of 0.7.2 byte for byte (golden wire/cases.json, wire/topic_creation.json)."""

import asyncio
import json
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker

SETTINGS = {
    "num.partitions": "2",
    "topic.partition.count.map": "four:4",
    "topic.log.file.size": "roll:300",
    "max.message.size": "2000",
    "max.socket.request.bytes": "100000",
    "log.flush.interval": "1",
    "enable.zookeeper": "false",
    "port": "0",
}
#: Names of topics whose cases need nothing of other cases; all others need nothing of one another.
TOPICS_APART = ((b"wire-a", b"mp-"), (b"wire-b",), (b"wire-c",), (b"roll",))
#: The largest number of cases in a share that may be divided: cases that only read, and cases of any other topic.
SHARE = 12
#: The request types that write: PRODUCE and MULTIPRODUCE.
WRITES = (0, 3)
Case = dict[str, Any]
#: The script with another silence after which an answer is whole. Arguments: the script, the seconds, then its own.
_JUDGE = """
import importlib.util, sys
script, silence = sys.argv[1:3]
del sys.argv[1:3]
spec = importlib.util.spec_from_file_location("replay_wire", script)
replay_wire = importlib.util.module_from_spec(spec)
spec.loader.exec_module(replay_wire)
replay_wire.SILENCE = float(silence)
sys.exit(replay_wire.main())
"""
#: Seconds: the script's own silence, and one that outlasts the answer of a busy machine.
SILENCE, LONG_SILENCE = 0.6, 3.0


@asynccontextmanager
async def broker(log_dir: Path, **settings: str) -> AsyncIterator[Broker]:
    config = BrokerConfig.from_properties({**SETTINGS, **settings, "log.dir": str(log_dir)})
    async with Broker(config, clock=SystemClock(), rng=random.Random(7)) as running:
        yield running


class Client:
    """One raw connection: sends what a case sends and reads no more than is expected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator["Client"]:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        try:
            async with asyncio.timeout(60):
                yield client
        finally:
            client.writer.close()

    async def expect(self, answer: bytes) -> None:
        assert await self.reader.readexactly(len(answer)) == answer

    async def expect_end(self) -> None:
        assert await self.reader.read() == b""


def _segments(log_dir: Path) -> dict[str, dict[str, int]]:
    return {
        folder.name: {path.name: path.stat().st_size for path in folder.glob("*.kafka")}
        for folder in log_dir.iterdir()
        if folder.is_dir()
    }


async def _seed_roll(running: Broker) -> int:
    """The data that the recording wrote to topic `roll`; the time (ms) between its two bursts, set by file times."""
    for i in range(12):
        payload = b"roll-%02d-" % i + b"x" * 90
        message = struct.pack(">iBBI", len(payload) + 6, 1, 0, zlib.crc32(payload)) + payload
        body = struct.pack(">hh4sii", 0, 4, b"roll", 0, len(message)) + message
        async with Client.to(running.port) as client:
            client.writer.write(struct.pack(">i", len(body)) + body)
            client.writer.write_eof()
            await client.expect_end()
    now = time.time()
    for path in sorted((running.config.log_dir / "roll-0").glob("*.kafka"))[:2]:
        os.utime(path, (now - 10, now - 10))
    return int((now - 5) * 1000)


async def _play(running: Broker, case: dict[str, Any], request: bytes, probe: bytes) -> None:
    async with Client.to(running.port) as client:
        client.writer.write(request)
        if case["name"].endswith("halfclose"):
            client.writer.write_eof()
        await client.expect(bytes.fromhex(case["response_hex"]))
        followup = case.get("followup_probe_on_same_connection")
        if case["connection_closed"]:
            await client.expect_end()
        elif followup and "response_hex" in followup:
            client.writer.write(probe)
            await client.expect(bytes.fromhex(followup["response_hex"]))
    after = case.get("log_files_after")
    if after is not None and case["name"] != "produce_partition_minus1":  # there the partition is random
        now = _segments(running.config.log_dir)
        for folder, files in after.items():
            assert now[folder] == files


async def test_answers_every_recorded_request(golden: Path, tmp_path: Path) -> None:
    recording = json.loads((golden / "kafka-0.7.2" / "wire" / "cases.json").read_bytes())
    probe = bytes.fromhex(recording["probe_request_hex"])
    assert len(recording["cases"]) == 113
    middle: int | None = None
    async with broker(tmp_path) as running:
        for case in recording["cases"]:
            request = bytes.fromhex(case["request_hex"])
            if middle is None and b"\x00\x04roll" in request[:12]:
                middle = await _seed_roll(running)
            if case["name"].startswith("offsets_timestamp_mid"):
                assert middle is not None
                request = request[:-12] + struct.pack(">q", middle) + request[-4:]
            try:
                await _play(running, case, request, probe)
            except (AssertionError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
                pytest.fail(f"{case['name']} ({case['description']}): {error!r}")
    wire_a = (tmp_path / "wire-a-0" / f"{0:020d}.kafka").read_bytes()
    assert wire_a == (golden / "kafka-0.7.2/logs/wire-broker/wire-a-0" / f"{0:020d}.kafka").read_bytes()


def _is_write(case: Case) -> bool:
    request = bytes.fromhex(case["request_hex"])
    return len(request) >= 6 and int.from_bytes(request[4:6]) in WRITES


def _shares(cases: list[Case]) -> list[tuple[list[Case], list[Case]]]:
    """The cases in shares that need nothing of one another, each with the writes that have to come before it."""
    groups: list[list[Case]] = [[] for _ in range(len(TOPICS_APART) + 1)]
    for case in cases:
        request = bytes.fromhex(case["request_hex"])
        which = (number for number, names in enumerate(TOPICS_APART) if any(name in request for name in names))
        groups[next(which, -1)].append(case)
    rest = groups.pop()
    shares: list[tuple[list[Case], list[Case]]]
    shares = [([], rest[first : first + SHARE]) for first in range(0, len(rest), SHARE)]
    for group in groups:
        writes, reads = [each for each in group if _is_write(each)], [each for each in group if not _is_write(each)]
        assert group == writes + reads
        shares += [([], writes), *((writes, reads[first : first + SHARE]) for first in range(0, len(reads), SHARE))]
    return [share for share in shares if share[1]]


async def _replay(
    script: Path,
    recording: dict[str, Any],
    before: list[Case],
    cases: list[Case],
    folder: Path,
    silence: float = SILENCE,
) -> str:
    """The last verdict of the script on these cases, in order, on a new broker that has handled those `before`."""
    folder.mkdir()
    file = folder.with_suffix(".json")
    file.write_text(json.dumps({**recording, "cases": cases}))
    probe = bytes.fromhex(recording["probe_request_hex"])
    async with broker(folder) as running:
        for case in before:
            await _play(running, case, bytes.fromhex(case["request_hex"]), probe)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _JUDGE, str(script), str(silence)),
            *(f"127.0.0.1:{running.port}", "--log-dir", str(folder), "--quiet", "--cases", str(file)),
            stdout=subprocess.PIPE,
        )
        output, _ = await child.communicate()
    return output.decode()


@pytest.mark.timeout(300)
async def test_agrees_with_the_replay_script(golden: Path, tmp_path: Path) -> None:
    """The given judge, with its silences of 0.6 s: it would notice unexpected bytes and closes.

    Writes to one topic depend on each other, and stay together; the silences of different shares pass at one time. A
    share that differs, as where answers come late, is judged again by longer silences, in which more would be noticed.
    """
    script = golden.parent / "tools" / "replay_wire.py"
    if not script.is_file():
        pytest.skip(f"no {script}")
    recording = json.loads((golden / "kafka-0.7.2" / "wire" / "cases.json").read_bytes())
    shares = _shares(recording["cases"])
    outputs = await asyncio.gather(
        *(_replay(script, recording, *share, tmp_path / f"share-{number}") for number, share in enumerate(shares))
    )
    assert sum(len(cases) for _, cases in shares) == 113
    late = [number for number, output in enumerate(outputs) if " 0 differ" not in output]
    again = await asyncio.gather(
        *(_replay(script, recording, *shares[number], tmp_path / f"again-{number}", LONG_SILENCE) for number in late)
    )
    for number, output in zip(late, again, strict=True):
        outputs[number] = output
    for (_, cases), output in zip(shares, outputs, strict=True):
        assert output.splitlines()[-1] == f"{len(cases)} agree, 0 differ, 0 not compared", output


async def test_creates_topics_upon_the_recorded_requests(golden: Path, tmp_path: Path) -> None:
    recording = json.loads((golden / "kafka-0.7.2" / "wire" / "topic_creation.json").read_bytes())
    assert recording["cases"]
    # the recording ran with num.partitions=4 and the default max.message.size
    settings = {"num.partitions": "4", "max.message.size": "1000000", "max.socket.request.bytes": "10000000"}
    async with broker(tmp_path, **settings) as running:
        for case in recording["cases"]:
            if case["request_hex"] == "payload 1000001 bytes":
                payload = bytes(1_000_001)
                message = struct.pack(">iBBI", len(payload) + 6, 1, 0, zlib.crc32(payload)) + payload
                body = struct.pack(">hh10sii", 0, 10, b"newbad-big", 0, len(message)) + message
                request = struct.pack(">i", len(body)) + body
            else:
                request = bytes.fromhex(case["request_hex"])
            before = set(_segments(tmp_path))
            async with Client.to(running.port) as client:
                client.writer.write(request)
                if not case["closed"]:
                    client.writer.write_eof()
                await client.expect(bytes.fromhex(case["response_hex"]))
                await client.expect_end()
            assert sorted(set(_segments(tmp_path)) - before) == case["log_dirs_created"], case["what"]


async def _latest_and_fetches(running: Broker, file_size: int) -> tuple[int, list[int], list[int]]:
    async with Client.to(running.port) as client:
        name = struct.pack(">h5s", 5, b"gated")
        client.writer.write(struct.pack(">ih", 25, 4) + name + struct.pack(">iqi", 0, -1, 1))
        (latest,) = struct.unpack(">10xq", await client.reader.readexactly(18))
        answers = []
        for offset in (0, file_size):
            client.writer.write(struct.pack(">ih", 25, 1) + name + struct.pack(">iqi", 0, offset, 100000))
            length, error = struct.unpack(">ih", await client.reader.readexactly(6))
            await client.reader.readexactly(length - 2)
            answers.append([error, length - 2])
        return latest, answers[0], answers[1]


async def test_flushes_as_recorded(golden: Path, tmp_path: Path) -> None:
    """behaviour/flush_gating.json: what is visible follows the flushes, by count and by time.

    Sets of 20-byte entries; the recording waited for its 3 s, here the scheduler is quick and its effect is awaited.
    """
    events = json.loads((golden / "kafka-0.7.2" / "behaviour" / "flush_gating.json").read_bytes())["events"]
    entry = struct.pack(">iBBI", 16, 1, 0, zlib.crc32(b"0123456789")) + b"0123456789"
    inner = zlib.compressobj(wbits=31)
    wrapped = inner.compress(entry * 3) + inner.flush()
    wrapper = struct.pack(">iBBI", len(wrapped) + 6, 1, 1, zlib.crc32(wrapped)) + wrapped
    path = tmp_path / "gated-0" / f"{0:020d}.kafka"

    async def produce(running: Broker, messages: bytes) -> None:
        body = struct.pack(">hh5sii", 0, 5, b"gated", 0, len(messages)) + messages
        async with Client.to(running.port) as client:
            client.writer.write(struct.pack(">i", len(body)) + body)
            client.writer.write_eof()
            await client.expect_end()

    settings = {"log.flush.interval": "5", "log.default.flush.interval.ms": "4000"}
    async with broker(tmp_path, **settings, **{"log.default.flush.scheduler.interval.ms": "4000"}) as running:
        await produce(running, entry * 3)
        assert path.stat().st_size == events[0]["file_size"] == 60
        seen = await _latest_and_fetches(running, 60)
        assert seen == (events[0]["latest_offset"], events[0]["fetch_from_0"], events[0]["fetch_from_file_end"])
        async with asyncio.timeout(60):
            while (seen := await _latest_and_fetches(running, 60))[0] == 0:
                await asyncio.sleep(0.05)
        assert seen == (events[1]["latest_offset"], events[1]["fetch_from_0"], events[1]["fetch_from_file_end"])
        await produce(running, entry * 4)
        assert path.stat().st_size == events[2]["file_size"] == 140
        seen = await _latest_and_fetches(running, 140)
        assert seen == (events[2]["latest_offset"], events[2]["fetch_from_0"], events[2]["fetch_from_file_end"])
        await produce(running, wrapper)
        end = 140 + len(wrapper)  # the recording's gzip was another: 59 bytes
        assert await _latest_and_fetches(running, end) == (end, [0, end], [0, 0])
        assert events[3]["latest_offset"] == events[3]["file_size"]
