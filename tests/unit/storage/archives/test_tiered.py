"""Tiered segments by the layouts of public plugins: plain, in frames of zstd, and encrypted ones, which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from consumerd.base.errors import CorruptDataError, ExitCode
from consumerd.cli.main import run
from consumerd.operate.migrate.archived_topics import find_archived
from consumerd.storage.archives.sources import find_sources
from consumerd.storage.log.archive_tiered import TieredManifest, parse_manifest, parse_tiered_folder, tiered_start
from consumerd.wire.v08.records import encode_record_batch

ID, OTHER_ID = "MkTsQ5zXQ2uVGZ0p3Zy4ag", "ZkTsQ5zXQ2uVGZ0p3Zy4ag"
DATA = encode_record_batch([b"v"] * 3) + encode_record_batch([b"w"], base_offset=3)


def aiven(root: Path, data: bytes, *, encrypted: bool = False) -> Path:
    path = root / f"events-{ID}" / "0" / f"{0:020}-{ID}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    manifest = {"version": "1", "compression": data != DATA} | ({"encryption": {"aad": ""}} if encrypted else {})
    path.with_suffix(".rsm-manifest").write_text(json.dumps(manifest))
    return path


def exported(root: Path) -> int:
    assert run(["log", "export", "-o", str(root / "out"), str(root)]) == ExitCode.OK
    return sum(file.read_text().count("\n") for file in (root / "out" / "events" / "0").iterdir())


def test_reads_plain_segments_and_frames_of_zstd(tmp_path: Path) -> None:
    aiven(tmp_path / "plain", DATA)
    chunks = [zstandard.compress(DATA[at : at + 50]) for at in range(0, len(DATA), 50)]
    aiven(tmp_path / "frames", b"".join(chunks))
    local = tmp_path / "local" / f"events-0-{ID}" / f"0-{ID}.log"
    local.parent.mkdir(parents=True)
    local.write_bytes(DATA)
    assert [exported(tmp_path / name) for name in ("plain", "frames", "local")] == [4, 4, 4]


def on_the_disk(root: Path, topic_id: str) -> None:
    """The last segments of the same partition."""
    folder = root / "disk" / "events-0"
    folder.mkdir(parents=True)
    for offset in (3, 4):
        data = encode_record_batch([b"w"], base_offset=offset, timestamps=[1_700_000_000_000])
        (folder / f"{offset:020}.log").write_bytes(data)
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def exported_offsets(root: Path) -> list[int]:
    files = sorted((root / "out" / "events" / "0").iterdir())
    return [json.loads(row)["offset"] for file in files for row in file.read_text().splitlines()]


@pytest.mark.parametrize("packed", [False, True])
def test_segments_that_are_on_the_disk_still_are_read_once(tmp_path: Path, packed: bool) -> None:
    first = encode_record_batch([b"v"] * 3)
    path = aiven(tmp_path, zstandard.compress(first) if packed else first)
    second = encode_record_batch([b"w"], base_offset=3, timestamps=[1_700_000_000_000])
    path.with_name(f"{3:020}-{OTHER_ID}.log").write_bytes(zstandard.compress(second) if packed else second)
    on_the_disk(tmp_path, ID)
    archived = find_archived(find_sources([str(tmp_path)]))
    assert [[m.offset for piece in each.read() for m in piece] for each in archived] == [[0, 1, 2, 3, 4]]
    assert [(each.damage, each.notes) for each in archived] == [([], [])]
    assert run(["log", "export", "-o", str(tmp_path / "out"), str(tmp_path)]) == ExitCode.OK
    assert exported_offsets(tmp_path) == [0, 1, 2, 3, 4]


def test_encrypted_segments_before_those_on_the_disk_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = aiven(tmp_path, b"\x01" * 100, encrypted=True)
    on_the_disk(tmp_path, ID)
    assert run(["log", "export", "-o", str(tmp_path / "out"), str(tmp_path)]) == ExitCode.CHECK_FAILED
    assert f"encrypted-segment\t{path}" in capsys.readouterr().out
    assert exported_offsets(tmp_path) == [3, 4]


def test_a_disk_that_ends_before_tiered_segments_do_is_a_shorter_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aiven(tmp_path, zstandard.compress(encode_record_batch([b"v"] * 9)))
    on_the_disk(tmp_path, ID)
    assert run(["log", "export", "-o", str(tmp_path / "out"), str(tmp_path)]) == ExitCode.CHECK_FAILED
    assert "shorter-copy" in capsys.readouterr().out
    assert exported_offsets(tmp_path) == list(range(9))


def test_segments_of_a_topic_that_was_deleted_are_not_mixed_with_those_of_its_namesake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aiven(tmp_path, DATA)
    on_the_disk(tmp_path, OTHER_ID)
    assert run(["log", "export", "-o", str(tmp_path / "out"), str(tmp_path)]) == ExitCode.CHECK_FAILED
    assert "other-topic-id" in capsys.readouterr().out
    assert exported_offsets(tmp_path) == [3, 4]


def test_refuses_encrypted_segments_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = aiven(tmp_path, b"\x01" * 100, encrypted=True)
    assert run(["log", "verify", "--json", str(tmp_path)]) == ExitCode.CHECK_FAILED
    finding = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (finding["finding"], finding["source"]) == ("encrypted-segment", str(path))


def test_log_ls_shows_tiered_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aiven(tmp_path, zstandard.compress(DATA))
    assert run(["log", "ls", "--json", str(tmp_path)]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (found["topic"], found["partition"], found["state"], found["topic_id"]) == ("events", 0, "tiered", ID)
    assert (found["formats"], found["end"]) == (["zstd"], None)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version":"1"}', b"\xff", b"[" * 100_000])
def test_other_manifests_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        parse_manifest(data)


def test_names() -> None:
    assert parse_manifest(b'{"version":"1","compression":true}') == TieredManifest(True, False)
    assert tiered_start("00.log") is None
    assert parse_tiered_folder("a", "b") is None
