"""Copies of partitions in every form that an archive has: each command reads the same from all of them."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from consumerd.base.errors import ConfigError, ExitCode
from consumerd.cli.main import run
from consumerd.operate.migrate.archived_topics import find_archived
from consumerd.storage.archives import folders
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.archives.folders import PackedTarFiles, RemoteFiles, find_folders, tar_files
from consumerd.storage.archives.listing import ListedPartition, list_partition
from consumerd.storage.archives.segment_ends import SegmentPlace, ends_of, ends_of_stream
from consumerd.storage.archives.sources import find_sources, local_source
from consumerd.storage.log.archive_items import FlawKind
from consumerd.wire.v07 import encode_message_set
from consumerd.wire.v08.records.crc32c import crc32c
from tests.support.archives import batch, write_segment

ID = "MkTsQ5zXQ2uVGZ0p3Zy4ag"
MAGIC_2_BATCH = batch(0, b"value")


def disks(root: Path) -> list[Path]:
    """Two disks of a partition's copies, of which the second one has a message more."""
    found = []
    for number, more in ((1, b""), (2, batch(4, b"e", leader_epoch=1))):
        disk = root / f"disk{number}"
        write_segment(disk, "events-0", 0, batch(0, b"a", b"b"), batch(2, b"c"))
        write_segment(disk, "events-0", 3, batch(3, b"d", leader_epoch=1), more)
        (disk / "events-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 3\n")
        (disk / "events-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID}\n")
        (disk / "meta.properties").write_text(f"version=1\nbroker.id={number}\n")
        found.append(disk)
    return found


def tar_of(disk: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(disk, disk.name)
    return file.getvalue()


def as_directories(disks: Sequence[Path]) -> list[str]:
    return [str(disk) for disk in disks]


def as_file_urls(disks: Sequence[Path]) -> list[str]:
    return [f"file://{disk}" for disk in disks]


def as_memory(disks: Sequence[Path]) -> list[str]:
    fsspec.filesystem("memory").store.clear()
    for disk in disks:
        for path in disk.rglob("*"):
            if path.is_file():
                fsspec.filesystem("memory").pipe(f"/{disk.name}/{path.relative_to(disk)}", path.read_bytes())
    return [f"memory://{disk.name}" for disk in disks]


def packed(suffix: str, compress: Callable[[bytes], bytes]) -> Callable[[Sequence[Path]], list[str]]:
    def pack(disks: Sequence[Path]) -> list[str]:
        for disk in disks:
            for path in disk.rglob("*.log"):
                path.with_name(path.name + suffix).write_bytes(compress(path.read_bytes()))
                path.unlink()
        return as_directories(disks)

    return pack


def tars(suffix: str, compress: Callable[[bytes], bytes] = bytes) -> Callable[[Sequence[Path]], list[str]]:
    def pack(disks: Sequence[Path]) -> list[str]:
        found = []
        for disk in disks:
            path = disk.with_name(disk.name + suffix)
            path.write_bytes(compress(tar_of(disk)))
            found.append(str(path))
        return found

    return pack


def memory_tars(suffix: str, compress: Callable[[bytes], bytes] = bytes) -> Callable[[Sequence[Path]], list[str]]:
    def pack(disks: Sequence[Path]) -> list[str]:
        for disk in disks:
            fsspec.filesystem("memory").pipe(f"/tars/{disk.name}{suffix}", compress(tar_of(disk)))
        return [f"memory://tars/{disk.name}{suffix}" for disk in disks]

    return pack


FORMS = {
    "directories": as_directories,
    "file URLs": as_file_urls,
    "memory URLs": as_memory,
    ".log.gz": packed(".gz", gzip.compress),
    ".log.zst": packed(".zst", zstandard.compress),
    ".tar": tars(".tar"),
    ".tar.gz": tars(".tar.gz", gzip.compress),
    ".tar.zst": tars(".tar.zst", zstandard.compress),
    "memory .tar": memory_tars(".tar"),
    "memory .tgz": memory_tars(".tgz", gzip.compress),
}


@pytest.fixture(params=FORMS)
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return FORMS[request.param](disks(tmp_path))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    run(["log", *arguments])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lists_the_same_wherever_copies_are(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    one, two, summary = printed(capsys, "ls", "--json", *paths)
    assert summary["summary"]["partitions"] == 1
    assert summary["summary"]["bytes"] == 4 * len(batch(2, b"c")) + 2 * len(batch(0, b"a", b"b")) + len(batch(4, b"e"))
    for each, read, end, broker in ((one, False, 4, 1), (two, True, 5, 2)):
        assert (each["topic"], each["partition"], each["start"], each["end"]) == ("events", 0, 0, end)
        assert (each["read"], each["segments"], each["leader_epoch"], each["formats"]) == (read, 2, 1, ["2"])
        assert (each["broker"], each["topic_id"]) == (broker, ID)
    kinds = [finding["finding"] for finding in one["findings"]]
    assert [kind for kind in kinds if kind != "unusable-index"] == ["shorter-copy"]


def test_reads_the_longest_copy_wherever_it_is(
    paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *found, summary = printed(capsys, "verify", "--json", "--workers", "1", *paths)
    assert [(each["finding"], each["offset"], each["end"]) for each in found] == [("shorter-copy", 4, 5)]
    assert summary["summary"]["messages"] == 9
    out = tmp_path / "out"
    assert run(["log", "export", "--workers", "1", "-o", str(out), *paths]) == ExitCode.CHECK_FAILED
    rows = [json.loads(line) for path in sorted(out.rglob("*.ndjson")) for line in path.read_text().splitlines()]
    assert [(row["offset"], row["payload"]) for row in rows] == [*enumerate("abcde")]
    assert all("disk2" in row["source"] for row in rows)


def test_dumps_every_copy_wherever_it_is(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "dump", "--json", *paths)
    assert [(each["offset"], each["last_offset"]) for each in found] == 2 * [(0, 1), (2, 2), (3, 3)] + [(4, 4)]
    assert {each["file"].rpartition("/")[2].partition(".")[0] for each in found} == {f"{0:020}", f"{3:020}"}


def test_a_replay_reads_the_longest_copy_wherever_it_is(paths: list[str]) -> None:
    if any(path.endswith((".gz", ".zst", ".tgz")) for path in paths):
        with pytest.raises(ConfigError, match=r"which cannot be read in order: "):
            find_archived(find_sources(paths))
        return
    (found,) = find_archived(find_sources(paths))
    assert [message.payload for chunk in found.read() for message in chunk] == [b"a", b"b", b"c", b"d", b"e"]
    (note,) = found.notes
    assert "it ends at offset 4" in note


def test_dump_of_one_partition_leaves_aborted_transactions_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_segment(tmp_path / "disk", "t-0", 0, batch(0, b"a", producer=5), batch(1, b"b"))
    path = tars(".tgz", gzip.compress)([tmp_path / "disk"])[0]
    assert [each["offset"] for each in printed(capsys, "dump", "--json", path)] == [0, 1]
    found = printed(capsys, "dump", "--json", "--isolation", "read_committed", path)
    assert [each["offset"] for each in found] == [1]


def test_dump_continues_after_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = encode_message_set([os.urandom(200), os.urandom(200)])
    write_segment(tmp_path, "t-1", 0, batch(0, b"a"))
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{0:020}.kafka.gz").write_bytes(gzip.compress(old)[:300])
    assert run(["log", "dump", "--json", str(tmp_path)]) == ExitCode.OK
    out = capsys.readouterr()
    plain, whole, cut = [json.loads(line) for line in out.out.splitlines()]
    assert (plain["valid"], whole["valid"], cut["valid"]) == (True, True, False)
    assert "is cut off: the gzip data is truncated" in cut["problem"]
    assert "1 of 3 entries in 2 files are not valid" in out.err
    with tarfile.open(tmp_path / "odd.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("t-0/other.kafka"))
        tar.addfile(tarfile.TarInfo(f"t-0/../{0:020}.log"))
    assert run(["log", "dump", "--json", str(tmp_path / "odd.tar")]) == ExitCode.OK
    err = capsys.readouterr().err
    assert "other.kafka is not named by its first message's offset; it was not read" in err
    assert "points outside of its archive; it was not read" in err


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (MAGIC_2_BATCH + batch(1, b"v") + batch(2, b"v")[:-3], ".log"),
        (MAGIC_2_BATCH + bytes(100), ".log"),
        (MAGIC_2_BATCH + b"\xff" * 100, ".log"),
        (MAGIC_2_BATCH + batch(1, b"v")[:-1] + b"?", ".log"),
        (MAGIC_2_BATCH + batch(1, b"v" * (5 << 20)), ".log"),
        (MAGIC_2_BATCH + batch(1, b"v" * (5 << 20))[:-1], ".log"),
        (b"", ".log"),
        (b"nonsense" * 100, ".log"),
        (encode_message_set([b"one", b"two"]), ".kafka"),
        (encode_message_set([b"one", b"two"])[:-1], ".kafka"),
        (encode_message_set([b"one", b"two"]) + bytes(7), ".kafka"),
    ],
    ids=range(11),
)
def test_a_stream_shows_the_ends_that_a_file_shows(data: bytes, name: str) -> None:
    whole = ends_of(io.BytesIO(data), SegmentPlace(0, f"{0:020}{name}", len(data)), None)
    assert ends_of_stream(io.BytesIO(data), f"{0:020}{name}", 0) == whole


def test_a_last_batch_whose_offsets_cannot_be_is_a_flaw() -> None:
    odd = bytearray(batch(5, b"v"))
    odd[23:27] = (-2).to_bytes(4, signed=True)  # the last offset, counted from the first one
    odd[17:21] = crc32c(bytes(odd[21:])).to_bytes(4)
    data = batch(4, b"v") + bytes(odd)
    found = ends_of(io.BytesIO(data), SegmentPlace(4, f"{4:020}.log", len(data)), None)
    assert (found.end, found.flaw) == (5, (FlawKind.NONSENSE, "the last batch, at position 69, has impossible offsets"))
    assert ends_of_stream(io.BytesIO(data), f"{4:020}.log", 4) == found
    found = ends_of(io.BytesIO(2 * bytes(odd)), SegmentPlace(4, f"{4:020}.log", 2 * len(odd)), None)
    assert (found.end, found.first_time) == (None, None)
    assert ends_of_stream(io.BytesIO(2 * bytes(odd)), f"{4:020}.log", 4) == found


def test_what_is_damaged_or_no_file_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (disk, _) = disks(tmp_path / "disks")
    write_segment(disk, "other-0", 0, os.urandom(50_000))
    data = gzip.compress(tar_of(disk))
    (tmp_path / "cut.tar.gz").write_bytes(data[: len(data) // 2])
    (tmp_path / "cut.tar").write_bytes(tar_of(disk)[:5000])
    os.mkfifo(tmp_path / "pipe.tar")
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        member = tarfile.TarInfo(f"t-0/{0:020}.log")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    found = printed(capsys, "ls", "--json", *map(str, sorted(tmp_path.glob("*.*"))[:3]))[:-1]
    kinds = [each["finding"] for line in found for each in line.get("findings", [line])]
    assert kinds.count("damaged-archive") >= 2
    assert "no-plain-file" in kinds
    problems = [each.problem for each in find_folders(str(tmp_path)) if isinstance(each, ArchiveFinding)]
    assert any("pipe.tar is not a regular file" in problem for problem in problems)


def test_a_tar_of_many_small_files_takes_no_more_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_KEPT_BYTES", 2500)
    with tarfile.open(tmp_path / "many.tar.gz", "w:gz") as tar:
        for number in range(5):
            member = tarfile.TarInfo(f"t-{number}/partition.metadata")
            member.size = 1000
            tar.addfile(member, io.BytesIO(bytes(1000)))
    files = tar_files(local_source(str(tmp_path / "many.tar.gz")))
    assert isinstance(files, PackedTarFiles)
    kept = []
    for folder in files.folders():
        try:
            with files.open(f"{folder}/partition.metadata") as file:
                kept.append(len(file.read(2000)))
        except OSError as error:
            assert "in a tar that cannot be read in any order" in str(error)  # noqa: PT017 - some are kept
    assert kept == [1000, 1000]


def test_what_a_store_refuses_is_a_finding() -> None:
    class Refusing:
        def _strip_protocol(self, url: str) -> str:
            return url.removeprefix("odd://")

        def info(self, path: str) -> dict[str, Any]:
            return {"size": 5, "type": "file"}

        def open(self, path: str, mode: str, *, block_size: int) -> Any:
            assert block_size < 1 << 20
            raise KeyError(path)

    files = RemoteFiles(Refusing())
    listed = list_partition(folders.ArchiveFolder("odd://a/t-0", [f"{0:020}.log"], files))
    assert isinstance(listed, ListedPartition)
    (finding,) = [each for each in listed.findings if each.kind != "unusable-index"]
    assert finding.kind == "unreadable-file"
    assert "KeyError" in finding.problem


def test_a_damaged_packed_segment_has_no_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    data = gzip.compress(b"".join(batch(number, os.urandom(500)) for number in range(10)))
    (folder / f"{0:020}.log.gz").write_bytes(data[:3000])
    found, _ = printed(capsys, "ls", "--json", str(tmp_path))
    assert (found["end"], found["formats"]) == (None, ["2"])
    (finding,) = found["findings"]
    assert finding["finding"] == str(FlawKind.ARCHIVE)


def test_says_what_a_place_of_segments_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_segment(tmp_path, "t-0", 0, batch(0, b"a"))
    for path, problem in (
        (str(file), "is not a directory"),
        (f"file://{file}", "is not a directory"),
        (str(tmp_path / "none"), "does not exist"),
    ):
        assert run(["log", "ls", path]) == ExitCode.NOT_FOUND
        assert f"{problem}; name directories that hold segments, tars, or URLs of these" in capsys.readouterr().err
