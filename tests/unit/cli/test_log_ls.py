from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli import log_page
from consumerd.cli.main import run
from consumerd.storage.archives.listing import ListedPartition
from consumerd.storage.log.archive_items import FlawKind
from consumerd.wire.v07 import encode_message_set
from consumerd.wire.v08.records import RecordCodec, encode_record_batch
from consumerd.wire.v08.records import encode_message_set as encode_old_set
from consumerd.wire.v08.records.crc32c import crc32c

DAY = 1_700_000_000_000


def segment(folder: Path, start: int, data: bytes, suffix: str = ".log", *, index: bytes | None = b"") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{start:020}{suffix}"
    file.write_bytes(data)
    if index is not None and suffix == ".log":
        file.with_suffix(".index").write_bytes(index)
    return file


def batch(offset: int, timestamp: int = DAY, value: bytes = b"x") -> bytes:
    return encode_record_batch([value, value], base_offset=offset, timestamps=[timestamp, timestamp + 1000])


def listed(capsys: pytest.CaptureFixture[str], *paths: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    assert run(["log", "ls", "--json", *map(str, paths)]) == ExitCode.OK
    *partitions, total = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return partitions, total["summary"]


def only(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    (partition,), _ = listed(capsys, path)
    return partition


def kinds(partition: dict[str, Any]) -> list[str]:
    return [finding["finding"] for finding in partition["findings"]]


def test_shows_a_partition_of_a_brokers_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=3\n")
    folder = tmp_path / "a-b-7"
    segment(folder, 5, encode_old_set([b"m"], magic=1, timestamps=DAY - 5000, base_offset=5) + batch(6))
    segment(folder, 8, batch(8, DAY + 60_000) + batch(10, DAY + 120_000))
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: MkTsQ5zXQ2uVGZ0p3Zy4ag\n")
    (folder / "leader-epoch-checkpoint").write_text("0\n0\n")
    partition = only(capsys, tmp_path)
    size = sum(file.stat().st_size for file in folder.glob("*.log"))
    assert partition == {
        "folder": str(folder),
        "topic": "a-b",
        "partition": 7,
        "state": "",
        "topic_id": "MkTsQ5zXQ2uVGZ0p3Zy4ag",
        "broker": 3,
        "segments": 2,
        "bytes": size,
        "start": 5,
        "end": 12,
        "first_time": DAY - 5000,
        "last_time": DAY + 121_000,
        "formats": ["1", "2"],
        "findings": [],
        "leader_epoch": None,
        "read": True,
    }


def test_the_time_of_a_compacted_batch_is_not_that_of_its_delete_horizon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The header has the time in the place of the first timestamp (KIP-534)."""
    data = bytearray(batch(0))
    horizon = DAY + 86_400_000
    data[22] |= 0x40
    data[27:35] = horizon.to_bytes(8)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4)
    path = segment(tmp_path / "a-0", 0, bytes(data))
    partition = only(capsys, tmp_path)
    assert (partition["first_time"], partition["last_time"], partition["end"]) == (None, DAY + 1000, 2)
    for content, shown in ((data, horizon), (batch(0), None)):
        path.write_bytes(content)
        assert run(["log", "dump", "--json", str(path)]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out)["delete_horizon"] == shown


def test_shows_both_dialects_in_order_of_partitions_and_totals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, size = encode_message_set([b"a", b"b"]), str(len(batch(0)))
    times = ["2023-11-14 22:13:20", "2023-11-14 22:13:21"]
    segment(tmp_path / "one" / "events-10", 0, old, ".kafka")
    segment(tmp_path / "one" / "events-10", len(old), old, ".kafka")
    segment(tmp_path / "two" / "events-2", 0, batch(0))
    segment(tmp_path / "two" / "other", 0, batch(0))
    assert run(["log", "ls", str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path)]) == ExitCode.OK
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:10] for line in lines if line[0] == "partition"] == [
        ["partition", "events/2", "", "1", size, "0", "2", *times, "2"],
        ["partition", "events/10", "", "2", str(2 * len(old)), "0", str(2 * len(old)), "", "", "0.7"],
        ["partition", "?", "", "1", size, "0", "2", *times, "2"],
    ]
    assert lines[-1] == ["total", "1", "2", "3", "4", str(2 * len(old) + 2 * len(batch(0))), "0"]


def test_shows_what_a_broker_was_doing_with_folders_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for state in ("future", "delete", "stray"):
        segment(tmp_path / f"events-0.{'0' * 32}-{state}", 0, batch(0))
    segment(tmp_path / "events-0", 0, batch(0))
    (tmp_path / "events-0" / f"{9:020}.log.deleted").write_bytes(batch(9))
    (tmp_path / "events-0" / f"{8:020}.log.swap").write_bytes(batch(8))
    partitions, summary = listed(capsys, tmp_path)
    assert [each["state"] for each in partitions] == ["", "delete", "future", "stray"]
    assert {(each["topic"], each["partition"], each["segments"]) for each in partitions} == {("events", 0, 1)}
    (finding,) = partitions[0]["findings"]
    assert (finding["finding"], finding["count"]) == ("leftover-file", 2)
    assert summary["findings"] == 2
    assert (summary["partitions"], summary["folders"]) == (1, 4)


@pytest.mark.parametrize(
    ("tail", "kind", "end"),
    [
        (batch(4)[:-3], "torn-tail", 4),
        (batch(4)[:9], "torn-tail", 4),
        (bytes(4096), "torn-tail", 4),
        (b"nonsense" * 9, "nonsense-block", None),
        (batch(4)[:-1] + b"?", "bad-crc", 4),
    ],
)
def test_damaged_end_is_found(
    tail: bytes, kind: str, end: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(tmp_path / "events-0", 0, batch(0) + batch(2, DAY + 5000) + tail)
    partition = only(capsys, tmp_path)
    assert kinds(partition) == [kind]
    assert partition["end"] == end
    assert partition["last_time"] == (None if end is None else DAY + 6000)


def test_torn_end_of_0_7_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = encode_message_set([b"a", b"b"])
    segment(tmp_path / "events-0", 100, whole + whole[:7], ".kafka")
    partition = only(capsys, tmp_path)
    assert kinds(partition) == ["torn-tail"]
    assert partition["end"] == 100 + len(whole)


def test_gap_is_a_guess_since_0_8_and_a_fact_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment(tmp_path / "new-0", 0, batch(0))
    segment(tmp_path / "new-0", 5, batch(5))
    old = encode_message_set([b"a"])
    segment(tmp_path / "old-0", 0, old, ".kafka")
    segment(tmp_path / "old-0", 100, old, ".kafka")
    (new, before), _ = listed(capsys, tmp_path)
    assert kinds(new) == kinds(before) == ["gap"]
    assert "ends at offset 2, and the next segment begins at 5 (a guess" in new["findings"][0]["problem"]
    assert before["findings"][0]["problem"].endswith(f"ends at offset {len(old)}, and the next segment begins at 100")


def test_missing_indexes_are_one_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for start in (0, 2, 4):
        segment(tmp_path / "events-0", start, batch(start), index=None)
    (finding,) = only(capsys, tmp_path)["findings"]
    assert (finding["finding"], finding["count"]) == ("unusable-index", 3)


class Pread:
    """Counts the bytes that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        self._read = os.pread
        monkeypatch.setattr(os, "pread", self)

    def __call__(self, fd: int, size: int, position: int) -> bytes:
        data = self._read(fd, size, position)
        self.bytes += len(data)
        return data


def indexed() -> tuple[bytes, bytes]:
    """A segment of 2 MB, and its index with an entry for every 50th batch."""
    one = len(batch(0))
    batches = [batch(2 * number) for number in range(2_000_000 // one)]
    entries = [struct.pack(">ii", 2 * number + 1, number * one) for number in range(50, len(batches), 50)]
    return b"".join(batches), b"".join(entries)


def test_only_the_ends_of_a_segment_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, index = indexed()
    segment(tmp_path / "events-0", 0, data, index=index + bytes(1 << 20))
    reads = Pread(monkeypatch)
    partition = only(capsys, tmp_path)
    assert partition["end"] == 2 * (len(data) // len(batch(0)))
    assert partition["findings"] == []
    assert reads.bytes < 10_000


def test_end_that_cannot_be_reached_is_absent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = indexed()
    segment(tmp_path / "events-0", 0, data, index=None)
    partition = only(capsys, tmp_path)
    assert (partition["start"], partition["end"], partition["last_time"]) == (0, None, None)
    assert partition["first_time"] == DAY


@pytest.mark.parametrize("entry", [(3, 40), (0, len(batch(0)))])
def test_index_with_a_wrong_entry_is_reported_and_not_used(
    entry: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(tmp_path / "events-0", 0, batch(0) + batch(2), index=struct.pack(">ii", *entry))
    partition = only(capsys, tmp_path)
    assert kinds(partition) == ["unusable-index"]
    assert partition["end"] == 4


def test_compressed_message_of_magic_1_has_no_first_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = encode_old_set([b"c", b"d"], magic=1, codec=RecordCodec.GZIP, timestamps=DAY, base_offset=0)
    segment(tmp_path / "events-0", 0, data)
    partition = only(capsys, tmp_path)
    assert (partition["first_time"], partition["last_time"], partition["end"]) == (None, DAY, 2)


def test_hostile_trees_end_and_stay_printable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "\x1b[31m\n-0"
    segment(folder, 0, batch(0))
    (folder / "loop").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(folder / f"{2:020}.log")
    (folder / f"{4:020}.log").symlink_to("missing")
    (folder / f"{6:020}.log").write_bytes(b"\xff" * 1000)
    (folder / f"{'9' * 20}.log").write_bytes(b"")
    os.mkfifo(folder / "partition.metadata")
    os.mkfifo(folder / f"{6:020}.index")
    assert run(["log", "ls", str(tmp_path)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert [line.split("\t")[1] for line in out.splitlines() if line.startswith("finding\t")] == [
        "no-plain-file",
        "unreadable-file",
        "nonsense-block",
        "gap",
    ]
    partition = only(capsys, tmp_path)
    assert partition["segments"] == 2


def test_findings_of_a_partition_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for start in range(0, 600, 5):
        segment(tmp_path / "events-0", start, batch(start))
    partition = only(capsys, tmp_path)
    assert len(partition["findings"]) == 101
    assert partition["findings"][-1]["count"] == 19
    assert kinds(partition)[-1] == "more-findings"


def test_paths_without_segments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "ls", str(tmp_path)]) == ExitCode.NOT_FOUND
    assert "holds no segments; name directories with" in capsys.readouterr().err
    assert run(["log", "ls", str(tmp_path / "missing")]) == ExitCode.NOT_FOUND
    assert "does not exist; name directories" in capsys.readouterr().err


def test_page_has_what_was_listed_and_nothing_of_hostile_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "<b>disk&"
    segment(root / "events-0", 0, batch(0) + batch(2, DAY + 60_000))
    segment(root / "events-1", 0, batch(0, DAY + 30_000) + batch(2)[:30])
    page = tmp_path / "archive.html"
    assert run(["log", "ls", "--html", str(page), str(root)]) == ExitCode.OK
    assert "events/1" in capsys.readouterr().out
    text = page.read_text("utf-8")
    assert "&lt;b&gt;disk&amp;" in text
    assert "<b>" not in text
    assert "default-src 'none'" in text
    assert text.count('class="bar"') == 1
    assert text.count('class="bar flawed"') == 1
    assert "torn-tail" in text
    assert "margin-left:min(0.00%,100% - 3px);width:100.00%" in text
    assert run(["log", "ls", "--html", str(tmp_path / "no" / "page.html"), str(root)]) == ExitCode.BROKER
    assert "name another file" in capsys.readouterr().err


def test_page_shows_partitions_with_findings_first_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_page, "MOST_ROWS", 2)
    listed = [ListedPartition(f"/a/t-{number}", "t", number) for number in range(4)]
    listed[3].note(FlawKind.TORN, "", "torn")
    text = log_page.archive_page(["/a"], listed, listed[3].findings, {"bytes": 3 << 20})
    assert [number for number in range(4) if f"t/{number}<" in text] == [0, 3]
    assert "2 of 4 partitions" in text
    assert "3.0 MiB" in text
