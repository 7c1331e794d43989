"""Every log of the real 0.7.2 that has a dump decodes to it: as the file iterator sees it and as the consumer does."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.wire.v07 import BatchEnd, Codec, MessageBatch, check_produced_set, decode_batch, iter_outer

pytestmark = pytest.mark.usefixtures("either_codec")


CODECS = {
    Codec.NONE: "NoCompressionCodec",
    Codec.GZIP: "GZIPCompressionCodec",
    Codec.SNAPPY: "SnappyCompressionCodec",
    None: None,
}


def dumped(golden: Path) -> list[tuple[Path, int, dict[str, Any]]]:
    """Segment file, its start offset, and what the real classes made of it."""
    logs = golden / "kafka-0.7.2" / "logs"
    found = []
    for dump in sorted(logs.glob("*.dump.json")):
        folder = logs / dump.name.removesuffix(".dump.json")
        for name, seen in json.loads(dump.read_text()).items():
            found.append((folder / name, int((folder / name).stem), seen))
    assert len(found) >= 35
    return found


def test_reads_outer_messages_as_dumped(golden: Path) -> None:
    for path, start, seen in dumped(golden):
        found = [
            {
                "offset": message.offset,
                "next_offset": message.next_offset,
                "valid": message.valid,
                "magic": message.magic,
                "codec": CODECS[message.codec],
                "crc": message.crc,
                "size": message.size,
                "payload_hex": message.payload.hex(),
            }
            for message in iter_outer(path.read_bytes(), start)
        ]
        assert found == seen["shallow"], path


def view(batch: MessageBatch) -> list[tuple[int, str]]:
    return [(message.next_offset, message.payload.hex()) for message in batch.messages()]


def test_decodes_the_consumer_s_view_as_dumped(golden: Path) -> None:
    for path, start, seen in dumped(golden):
        assert seen["consumer_error"] is None
        batch = decode_batch(path.read_bytes(), start)
        assert view(batch) == [(leaf["offset_reported"], leaf["payload_hex"]) for leaf in seen["consumer_view"]], path
        assert (batch.next_offset, batch.end) == (seen["tail_offset"], BatchEnd.COMPLETE)
        assert batch.next_offset - start == seen["valid_bytes"] == seen["file_bytes"]


def test_commit_positions_are_those_of_the_real_consumer(golden: Path) -> None:
    for path, start, seen in dumped(golden):
        batch = decode_batch(path.read_bytes(), start)
        committed = [batch.prefix(count) for count in range(1, len(batch) + 1)]
        reported = [leaf["offset_reported"] for leaf in seen["consumer_view"]]
        # After the last leaf we also step over empty wrappers that follow; the real one reports the leaf's own end.
        assert committed[:-1] == reported[:-1], path


def test_accepts_what_the_real_broker_stored(golden: Path) -> None:
    for path, _, seen in dumped(golden):
        checked = check_produced_set(path.read_bytes())
        assert checked.valid_bytes == seen["valid_bytes"]
        assert (checked.outer_count, checked.leaf_count) == (len(seen["shallow"]), len(seen["consumer_view"]))


def test_dumps_the_same_entries(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected: dict[str, dict[str, Any]] = {str(path): seen for path, _, seen in dumped(golden)}
    logs = golden / "kafka-0.7.2" / "logs"
    names = [logs / dump.name.removesuffix(".dump.json") for dump in logs.glob("*.dump.json")]
    assert run(["log", "dump", "--json", *map(str, names)]) == ExitCode.OK
    printed: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, capsys.readouterr().out.splitlines()):
        printed.setdefault(line["file"], []).append(line)
    assert printed.keys() == {name for name, seen in expected.items() if seen["shallow"]}
    for name, lines in printed.items():
        shallow = expected[name]["shallow"]
        assert len(lines) == len(shallow)
        for line, seen in zip(lines, shallow, strict=True):
            assert {key: line[key] for key in ("offset", "next_offset", "valid", "magic", "size")} == {
                key: seen[key] for key in ("offset", "next_offset", "valid", "magic", "size")
            }
            assert (
                line["codec"]
                == {name: codec.name.lower() for codec, name in CODECS.items() if codec is not None}[seen["codec"]]
            )
        payloads = [base64.b64decode(payload).hex() for line in lines for payload in line["payloads_base64"]]
        assert payloads == [leaf["payload_hex"] for leaf in expected[name]["consumer_view"]]


def test_damaged_logs_lose_only_the_damage(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages before the damage equal those that recovery kept; the rest is shown as invalid, never left out."""
    before = golden / "kafka-0.7.2" / "logs" / "recovery-before"
    after = golden / "kafka-0.7.2" / "logs" / "recovery-after"
    cut = 0
    for path in sorted(before.rglob("*.kafka")):
        kept = after / path.relative_to(before)
        data, recovered = path.read_bytes(), kept.read_bytes()
        if data == recovered:
            continue
        cut += 1
        batch = decode_batch(data, 0)
        assert batch.next_offset == len(recovered), path
        assert batch.end is not BatchEnd.COMPLETE
        copy = tmp_path / path.name
        shutil.copyfile(path, copy)
        assert run(["log", "dump", "--json", str(copy)]) == ExitCode.OK
        captured = capsys.readouterr()
        lines = [json.loads(line) for line in captured.out.splitlines()]
        assert lines[-1]["next_offset"] == int(path.stem) + len(data)
        first_bad = next(line for line in lines if not line["valid"])
        assert first_bad["offset"] == int(path.stem) + len(recovered)
        assert first_bad["payloads_base64"] == []
        assert "not valid" in captured.err
    assert cut >= 5
