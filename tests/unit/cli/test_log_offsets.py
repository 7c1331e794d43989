from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.cli.main import run
from consumerd.operate.admin.offset_file import parse_offsets
from consumerd.wire.v08.records import encode_record_batch


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit(place: int, group: str, partition: int, offset: int, timestamp: int) -> bytes:
    key = struct.pack(">h", 1) + text(group) + text("events") + struct.pack(">i", partition)
    value = struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", timestamp)
    return encode_record_batch([value], keys=[key], base_offset=place, timestamps=timestamp)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    day = 1_700_000_000_000
    for partition, data in {
        3: commit(0, "a", 0, 10, day) + commit(1, "a", 1, 20, day) + commit(2, "a", 0, 30, day + 3_600_000),
        9: commit(0, "b", 0, 5, day),
    }.items():
        folder = tmp_path / f"__consumer_offsets-{partition}"
        folder.mkdir()
        (folder / f"{0:020}.log").write_bytes(data)
    (tmp_path / "events-0").mkdir()
    (tmp_path / "events-0" / f"{0:020}.log").write_bytes(encode_record_batch([b"x"]))
    return tmp_path


def rows(out: str) -> list[list[str]]:
    return [line.split("\t")[:3] for line in out.splitlines()]


def test_shows_the_last_commits(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "offsets", str(archive)]) == ExitCode.OK
    assert rows(capsys.readouterr().out) == [["a", "events/0", "30"], ["a", "events/1", "20"], ["b", "events/0", "5"]]


def test_shows_those_of_a_group_at_a_time(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["log", "offsets", "--group", "a", "--at-time", "2023-11-14T22:30", str(archive)]
    assert run(arguments) == ExitCode.OK
    assert rows(capsys.readouterr().out) == [["a", "events/0", "10"], ["a", "events/1", "20"]]


def test_names_a_group_that_the_archive_does_not_have(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "offsets", "--group", "b", "--group", "nosuch", str(archive)]) == ExitCode.NOT_FOUND
    said = capsys.readouterr()
    assert rows(said.out) == [["b", "events/0", "5"]]
    assert "no committed offsets of the groups nosuch" in said.err


def test_json_is_what_offsets_import_reads(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "offsets", "--json", str(archive)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert parse_offsets(out, "stdin")["a"] == {
        TopicPartition.numbered("events", 0): 30,
        TopicPartition.numbered("events", 1): 20,
    }
    assert json.loads(out)["problems"] == []


def test_damage_is_reported_and_the_rest_counts(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = archive / "__consumer_offsets-3" / f"{0:020}.log"
    file.write_bytes(file.read_bytes()[:-5])
    assert run(["log", "offsets", str(archive)]) == ExitCode.CHECK_FAILED
    captured = capsys.readouterr()
    assert [line.split("\t")[1:4] for line in captured.out.splitlines() if line.startswith("offset\t")] == [
        ["a", "events/0", "10"],
        ["a", "events/1", "20"],
        ["b", "events/0", "5"],
    ]
    assert "finding\ttorn-tail" in captured.out
    assert captured.err == "consumerd: unreadable parts of the archive: 1; offsets may be too old\n"


def test_shorter_copy_is_shown_and_nothing_is_missing(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    behind = archive / "broker-2" / "__consumer_offsets-3"
    behind.mkdir(parents=True)
    (behind / f"{0:020}.log").write_bytes(commit(0, "a", 0, 10, 1_700_000_000_000))
    assert run(["log", "offsets", str(archive)]) == ExitCode.OK
    captured = capsys.readouterr()
    assert [line.split("\t")[1:4] for line in captured.out.splitlines() if line.startswith("offset\t")] == [
        ["a", "events/0", "30"],
        ["a", "events/1", "20"],
        ["b", "events/0", "5"],
    ]
    assert f"finding\tshorter-copy\t{behind}" in captured.out
    assert captured.err == ""


def test_archive_without_the_topic_is_refused(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "offsets", str(archive / "events-0")]) == ExitCode.NOT_FOUND
    assert "the archive holds no segments of __consumer_offsets" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--execute"], ["--verify"], ["--rename", "a=b"], ["--to-config", "x.toml"]])
def test_options_of_a_cluster_need_one(archive: Path, capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert run(["log", "offsets", *option, str(archive)]) == ExitCode.USAGE
    assert f"{option[0]} is for a cluster (--to-bootstrap-server)" in capsys.readouterr().err


def test_group_that_the_archive_lacks_is_not_found(
    archive: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reached(_: object) -> None: ...

    monkeypatch.setattr("consumerd.cli.log_offsets_restore.check_reached", reached)
    arguments = ["log", "offsets", "--to-bootstrap-server", "127.0.0.1:1", "--group", "c", str(archive)]
    assert run(arguments) == ExitCode.NOT_FOUND
    assert "the archive has no committed offset to move" in capsys.readouterr().err
