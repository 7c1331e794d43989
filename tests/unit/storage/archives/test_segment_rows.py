from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from consumerd.base import native
from consumerd.storage.archives import segment_rows
from consumerd.storage.archives.errors import CorruptSegmentError
from consumerd.storage.archives.export import ExportReport
from consumerd.storage.archives.options import ExportFormat, OnCorrupt
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch

Export = Callable[..., ExportReport]
Files = Callable[[Path], dict[str, bytes]]
OLD = encode_message_set([b"old", None], magic=0, base_offset=5)
NEW = encode_record_batch(
    [b"\xff\x00", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n".encode(), None],
    keys=[b"k", b"\xfe", None],
    headers={0: (("h", b"v"), ("n", None))},
    codec=RecordCodec.SNAPPY,
    timestamps=[1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002],
    base_offset=7,
    leader_epoch=4,
)
SERVER = encode_record_batch([b"stamped"], base_offset=10, leader_epoch=4, log_append_time=1_700_000_000_009)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log" / "events-1"
    folder.mkdir(parents=True)
    (folder / f"{5:020}.log").write_bytes(OLD + NEW)
    (folder / f"{10:020}.log").write_bytes(SERVER)
    return tmp_path / "log"


def rows(found: dict[str, bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for name in sorted(found) for line in found[name].decode().splitlines()]


def test_rows_of_ndjson_have_keys_timestamps_and_headers(
    log: Path, tmp_path: Path, export: Export, files: Files
) -> None:
    report = export(log, out=tmp_path / "out", broker=3)
    found = files(tmp_path / "out")
    assert sorted(found) == [f"events/3-1/{5:020}-{10:020}.ndjson", f"events/3-1/{10:020}-{11:020}.ndjson"]
    assert report.rows == 6
    assert report.is_sound(allow_torn_tail=False)
    old, null, binary, text, empty, stamped = rows(found)
    source = f"{log}/events-1/{5:020}.log"
    assert old == {
        "topic": "events",
        "broker": 3,
        "partition": 1,
        "offset": 5,
        "index": 0,
        "next_offset": 6,
        "codec": "none",
        "magic": 0,
        "crc_ok": True,
        "leader_epoch": None,
        "timestamp": None,
        "timestamp_type": None,
        "key": None,
        "payload": "old",
        "headers": [],
        "source": source,
    }
    assert (null["payload"], null["offset"]) == (None, 6)
    assert {
        key: binary[key] for key in ("offset", "codec", "magic", "leader_epoch", "timestamp", "timestamp_type")
    } == {
        "offset": 7,
        "codec": "snappy",
        "magic": 2,
        "leader_epoch": 4,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": "CreateTime",
    }
    assert (binary["key"], binary["payload_base64"]) == ("k", "/wA=")
    assert binary["headers"] == [{"key": "h", "value": "v"}, {"key": "n", "value": None}]
    assert (text["key_base64"], text["payload"]) == ("/g==", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n")
    assert (empty["payload"], empty["next_offset"]) == (None, 10)
    assert (stamped["timestamp"], stamped["timestamp_type"]) == (1_700_000_000_009, "LogAppendTime")


def test_parquet_has_the_same_rows(log: Path, tmp_path: Path, export: Export, files: Files) -> None:
    export(log, out=tmp_path / "text", base64=True)
    export(log, out=tmp_path / "table", format=ExportFormat.PARQUET)
    found = [
        row
        for path in sorted((tmp_path / "table").rglob("*.parquet"))
        for row in pyarrow.parquet.read_table(path).to_pylist()
    ]
    expected = rows(files(tmp_path / "text"))
    assert [(row["offset"], row["next_offset"], row["leader_epoch"], row["codec"]) for row in found] == [
        (row["offset"], row["next_offset"], row["leader_epoch"], row["codec"]) for row in expected
    ]
    assert [row["payload"] for row in found] == [b"old", None, b"\xff\x00", "gr\xfcn".encode(), None, b"stamped"]
    assert [row["key"] for row in found] == [None, None, b"k", b"\xfe", None, None]
    (table,) = [pyarrow.parquet.ParquetFile(path) for path in (tmp_path / "table").rglob("*.parquet")][:1]
    group = table.metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    grows = {column.path_in_schema for column in columns if "DELTA_BINARY_PACKED" in column.encodings}
    assert grows == {"offset", "next_offset", "timestamp"}
    assert found[2]["headers"] == [{"key": "h", "value": b"v"}, {"key": "n", "value": None}]
    stamps = [row["timestamp"] and round(row["timestamp"].timestamp() * 1000) for row in found]
    assert stamps == [row["timestamp"] for row in expected]


def test_selects_records_by_their_offsets(log: Path, tmp_path: Path, export: Export, files: Files) -> None:
    export(log, out=tmp_path / "out", first=6, last=9)
    assert [row["offset"] for row in rows(files(tmp_path / "out"))] == [6, 7, 8]


def test_damaged_batch_ends_the_export_or_is_skipped_or_kept(
    log: Path, tmp_path: Path, export: Export, files: Files
) -> None:
    damaged = bytearray(NEW)
    damaged[-1] ^= 1
    (log / "events-1" / f"{5:020}.log").write_bytes(OLD + bytes(damaged))
    with pytest.raises(CorruptSegmentError, match=r"the batch at offset 7 has a CRC of .* --on-corrupt skip or keep"):
        export(log, out=tmp_path / "fail")
    report = export(log, out=tmp_path / "skip", on_corrupt=OnCorrupt.SKIP)
    assert [row["offset"] for row in rows(files(tmp_path / "skip"))] == [5, 6, 10]
    # What the damaged batch had is missing between the segments.
    assert [str(finding.kind) for finding in report.findings()] == ["bad-crc", "lost-block"]
    export(log, out=tmp_path / "keep", on_corrupt=OnCorrupt.KEEP, base64=True)
    kept = rows(files(tmp_path / "keep"))[2]
    assert (kept["offset"], kept["crc_ok"], kept["codec"]) == (7, False, None)
    assert kept["problem"].startswith("the batch at offset 7 has a CRC of ")


def test_second_run_judges_as_the_first(log: Path, tmp_path: Path, export: Export, files: Files) -> None:
    """What the manifest keeps of a segment is what the view of the whole partition needs."""
    (log / "events-1" / f"{20:020}.log").write_bytes(encode_record_batch([b"x"], base_offset=20, leader_epoch=3))
    first = export(log, out=tmp_path / "out")
    found = files(tmp_path / "out")
    second = export(log, out=tmp_path / "out")
    assert (second.made, second.kept) == (0, 3)
    assert second.findings() == first.findings()
    assert [str(finding.kind) for finding in first.findings()] == ["gap", "leader-epoch-order"]
    assert files(tmp_path / "out") == found


def test_abandoned_folder_is_not_exported(log: Path, tmp_path: Path, export: Export, files: Files) -> None:
    folder = log / f"events-1.{'0123456789abcdef' * 2}-delete"
    (log / "events-1").rename(folder)
    report = export(log, out=tmp_path / "out")
    assert files(tmp_path / "out") == {}
    assert [str(finding.kind) for finding in report.findings()] == ["abandoned-folder"] * 2


@pytest.mark.parametrize("form", ExportFormat)
def test_both_codecs_export_the_same_bytes(
    log: Path, tmp_path: Path, export: Export, files: Files, form: ExportFormat
) -> None:
    """With keys and headers in some batches, row groups that end within a batch, and a damaged batch."""
    many = [
        encode_record_batch(
            [b"x" * (number % 50), None, b"y"],
            keys=[b"k", None, b""] if number % 3 else None,
            headers={1: (("h", b"v"), ("n", None))} if number % 5 == 0 else None,
            codec=RecordCodec.ZSTD if number % 7 == 0 else RecordCodec.NONE,
            timestamps=[5, -1, 7] if number % 4 else -1,
            base_offset=100 + 4 * number,
            leader_epoch=4 + number // 50,
        )
        for number in range(100)
    ]
    damaged = bytearray(many[60])
    damaged[-1] ^= 1
    many[60] = bytes(damaged)
    (log / "events-1" / f"{100:020}.log").write_bytes(b"".join(many))
    found = []
    for codec in (native.codec(), None):
        out = tmp_path / f"{codec is None}"
        with native.using(codec), pytest.MonkeyPatch.context() as patch:
            patch.setattr(segment_rows, "GROUP_ROWS", 70)
            report = export(log, out=out, format=form, on_corrupt=OnCorrupt.KEEP)
        found.append((report.rows, files(out)))
    assert found[0] == found[1]
    assert found[0][0] == 6 + 3 * 99 + 1
