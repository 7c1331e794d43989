from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.storage.archives.contiguity import ArchiveReport
from consumerd.storage.archives.findings import ArchiveFindingKind
from consumerd.storage.archives.pool import NoProgress, StopFlag
from consumerd.storage.archives.sources import find_sources
from consumerd.storage.archives.verify import VerifyOptions, verify
from consumerd.storage.segments.dialect import SegmentDialect
from consumerd.wire.v07 import encode_message
from consumerd.wire.v08.records import RecordCodec, encode_record_batch
from consumerd.wire.v08.records.crc32c import crc32c

HELLO = encode_message(b"hello")


def verified(*paths: Path, workers: int = 1, **options: Any) -> ArchiveReport:
    sources = find_sources([str(path) for path in paths])
    return verify(sources, VerifyOptions(**options), workers=workers, progress=NoProgress(), stop=StopFlag())


def kinds(report: ArchiveReport) -> list[str]:
    return [str(finding.kind) for finding in report.findings()]


def test_reports_nothing_for_a_sound_tree(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    segments(tmp_path / "events-0", HELLO * 3, HELLO * 2)
    segments(tmp_path / "events-1", HELLO, start=500)
    report = verified(tmp_path)
    assert report.is_sound(allow_torn_tail=False)
    assert [(p.name, p.size, p.messages) for p in report.partitions] == [
        (f"{tmp_path}/events-0", 75, 5),
        (f"{tmp_path}/events-1", 15, 1),
    ]


@pytest.mark.parametrize("packed", ["", "tar", "tar.gz"])
def test_counts_the_batches_of_many_windows(tmp_path: Path, packed: str) -> None:
    """What begins in one window and ends in the next one is read again, or kept, whatever the file is packed in."""
    folder = tmp_path / "events-0"
    folder.mkdir()
    batch = encode_record_batch([b"x" * 999] * 9, leader_epoch=1)
    data = b"".join((number * 9).to_bytes(8) + batch[8:] for number in range(500))
    (folder / f"{0:020d}.log").write_bytes(data + data[:100])
    place = folder
    if packed:
        place = tmp_path / f"a.{packed}"
        with tarfile.open(place, "w:gz" if packed.endswith("gz") else "w") as tar:
            tar.add(folder, "events-0")
    for shallow in (False, True):
        report = verified(place, shallow=shallow)
        (partition,) = report.partitions
        assert (partition.messages, partition.size) == (4500, len(data) + 100)
        assert kinds(report) == ["torn-tail"]


def test_allows_torn_tails_on_request(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    segments(tmp_path / "events-0", HELLO * 3, HELLO + HELLO[:4])
    report = verified(tmp_path)
    assert kinds(report) == ["torn-tail"]
    assert not report.is_sound(allow_torn_tail=False)
    assert report.is_sound(allow_torn_tail=True)
    segments(tmp_path / "events-1", HELLO[:-1])
    segments(tmp_path / "events-1", HELLO, start=15)
    assert not verified(tmp_path).is_sound(allow_torn_tail=True)


def test_finds_the_same_with_worker_processes(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    for number in range(4):
        segments(tmp_path / f"events-{number}", HELLO * 3, HELLO + b"\0" * number)
    alone, together = verified(tmp_path), verified(tmp_path, workers=2)
    assert together.findings() == alone.findings()
    assert kinds(together) == ["torn-tail"] * 3
    assert together.partitions == alone.partitions


def test_reports_misnamed_files(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    (path,) = segments(tmp_path / "events-0", HELLO)
    path.rename(path.with_name("copy.kafka"))
    segments(tmp_path / "loose", HELLO)
    report = verified(tmp_path)
    assert kinds(report) == ["misnamed-segment"]
    assert [partition.name for partition in report.partitions] == [f"{tmp_path}/loose"]


def test_merges_a_broker_s_partition_from_several_folders(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    """A tar per day: only together they are without a gap."""
    paths = []
    for day in range(3):
        segments(tmp_path / "logs" / "events-0", HELLO * 2, start=day * 30)
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(tmp_path / "logs" / "events-0" / f"{day * 30:020}.kafka", f"events-0/{day * 30:020}.kafka")
        paths.append(tmp_path / f"broker-1-day-{day}.tar.gz")
        paths[-1].write_bytes(gzip.compress(file.getvalue()))
    layout = "broker-{broker}-*/{topic}-{partition}"
    report = verified(*paths, layout=layout)
    assert (kinds(report), [partition.name for partition in report.partitions]) == ([], ["events/1-0"])
    assert kinds(verified(*paths[::2], layout=layout)) == ["gap"]
    assert kinds(verified(*paths[::2], broker=1)) == ["gap"]
    assert len(verified(*paths).partitions) == 3


def test_reports_damaged_containers(tmp_path: Path) -> None:
    path = tmp_path / "events-0" / "00000000000000000000.kafka.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(HELLO * 100_000)[:-20])
    report = verified(path)
    assert kinds(report) == ["damaged-archive"]
    assert report.partitions[0].messages > 0


def test_reports_an_unreadable_file(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    (path,) = segments(tmp_path / "events-0", HELLO)
    segments(tmp_path / "events-1", HELLO)
    sources = find_sources([str(tmp_path)])
    path.unlink()
    path.mkdir()
    report = verify(sources, VerifyOptions(), workers=1, progress=NoProgress(), stop=StopFlag())
    assert kinds(report) == ["unreadable-file"]
    assert not report.is_sound(allow_torn_tail=True)
    assert len(report.partitions) == 1


@pytest.mark.parametrize("gone", [[0], [2], [4], [0, 2, 4]])
def test_files_that_a_running_broker_deletes_are_neither_damage_nor_gaps(tmp_path: Path, gone: list[int]) -> None:
    folder = tmp_path / "events-0"
    files = {start: since_08(folder, start, batch(start)) for start in (0, 2, 4)}
    sources = find_sources([str(folder)])
    for start in gone:
        files[start].unlink()
    report = verify(sources, VerifyOptions(), workers=1, progress=NoProgress(), stop=StopFlag())
    assert [(each.kind, each.source, each.offset) for each in report.findings()] == [
        (ArchiveFindingKind.DELETED, str(files[start]), start) for start in gone
    ]
    assert report.is_sound(allow_torn_tail=False)


def test_a_file_that_was_deleted_elsewhere_explains_no_gap(tmp_path: Path) -> None:
    for start in (0, 4):
        since_08(tmp_path / "events-0", start, batch(start))
    gone = since_08(tmp_path / "events-1", 2, batch(2))
    sources = find_sources([str(tmp_path)])
    gone.unlink()
    report = verify(sources, VerifyOptions(), workers=1, progress=NoProgress(), stop=StopFlag())
    assert {each.kind for each in report.findings()} == {ArchiveFindingKind.GAP, ArchiveFindingKind.DELETED}
    assert not report.is_sound(allow_torn_tail=True)


def test_rejects_an_invalid_layout(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    segments(tmp_path / "events-0", HELLO)
    with pytest.raises(ConfigError, match="must name"):
        verified(tmp_path, layout="{topic}")


def since_08(folder: Path, start: int, *batches: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{start:020}.log"
    path.write_bytes(b"".join(batches))
    return path


def batch(offset: int, count: int = 2, epoch: int = 1) -> bytes:
    return encode_record_batch([b"x"] * count, codec=RecordCodec.GZIP, base_offset=offset, leader_epoch=epoch)


def test_data_directory_of_08_and_later_is_sound(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    """As it lies on a disk: beside indexes, checkpoints, and a partition that 0.7 wrote."""
    folder = tmp_path / "events-0"
    since_08(folder, 0, batch(0), batch(2))
    since_08(folder, 4, batch(4, 3))
    since_08(folder, 7)
    for name in (f"{0:020}.index", f"{0:020}.timeindex", "leader-epoch-checkpoint", "partition.metadata", "x.log"):
        (folder / name).write_bytes(b"\0" * 20)
    since_08(folder, 0, batch(0)).rename(folder / f"{0:020}.log.deleted")
    since_08(folder, 0, batch(0), batch(2))
    segments(tmp_path / "old-0", HELLO)
    report = verified(tmp_path)
    assert report.findings() == []
    assert [(p.messages, p.start, p.end) for p in report.partitions] == [(7, 0, 7), (1, 0, 15)]
    assert [segment.dialect for p in report.partitions for segment in p.segments] == [SegmentDialect.V08] * 3 + [
        SegmentDialect.V07
    ]


def test_segment_of_08_is_recognised_under_the_suffix_of_07(tmp_path: Path) -> None:
    since_08(tmp_path / "events-0", 4, batch(4)).rename(tmp_path / "events-0" / f"{4:020}.kafka")
    report = verified(tmp_path)
    assert report.findings() == []
    assert [partition.messages for partition in report.partitions] == [2]


def test_findings_in_segments_of_08_and_later(tmp_path: Path) -> None:
    damaged = bytearray(batch(2))
    damaged[-1] ^= 1
    since_08(tmp_path / "a-0", 0, batch(0), bytes(damaged), batch(4), b"\xff" * 30, batch(6), batch(0))
    since_08(tmp_path / "a-0", 8, batch(8, epoch=0), batch(10)[:20])
    report = verified(tmp_path)
    assert kinds(report) == ["bad-crc", "nonsense-block", "offset-order", "leader-epoch-order", "torn-tail"]
    (partition,) = report.partitions
    assert (partition.messages, partition.segments[0].corrupt, partition.segments[0].nonsense) == (10, 1, 30)


@pytest.mark.usefixtures("either_codec")
def test_a_shallow_verification_believes_headers_of_intact_batches(tmp_path: Path) -> None:
    unreadable = bytearray(batch(2))
    unreadable[-20:] = b"\0" * 20
    unreadable[17:21] = crc32c(bytes(unreadable[21:])).to_bytes(4)
    damaged = bytearray(batch(4))
    damaged[-1] ^= 1
    since_08(tmp_path / "a-0", 0, batch(0), bytes(unreadable), bytes(damaged), batch(6, 3))
    deep, shallow = verified(tmp_path), verified(tmp_path, shallow=True)
    assert [partition.messages for report in (deep, shallow) for partition in report.partitions] == [5, 7]
    assert (kinds(deep), kinds(shallow)) == (["unreadable-wrapper", "bad-crc"], ["bad-crc"])


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ([batch(0)], ["gap"]),
        # Compaction: the segment itself has holes.
        ([batch(0), batch(5)], []),
        ([batch(0), batch(9, 3)], ["overlap"]),
        ([batch(0), batch(2)[:30]], ["lost-block"]),
    ],
)
def test_contiguity_of_offsets_that_count_records(tmp_path: Path, first: list[bytes], found: list[str]) -> None:
    since_08(tmp_path / "a-0", 0, *first)
    since_08(tmp_path / "a-0", 10, batch(10))
    assert kinds(verified(tmp_path)) == found


@pytest.mark.parametrize("state", ["delete", "stray", "future"])
def test_folders_that_are_not_the_log_are_named(tmp_path: Path, state: str) -> None:
    since_08(tmp_path / f"a-0.{'0123456789abcdef' * 2}-{state}", 0, batch(0))
    report = verified(tmp_path)
    assert kinds(report) == ["abandoned-folder"]
    assert report.partitions == []
    assert "to read it, copy it to a folder a-0" in report.findings()[0].problem


def test_packed_segments_of_08_and_later(tmp_path: Path) -> None:
    plain = since_08(tmp_path / "a-0", 0, batch(0), batch(2))
    packed = tmp_path / "b-0" / f"{plain.name}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as tar:
        tar.add(plain, f"c-0/{plain.name}")
        tar.add(plain, "c-0/server.log")
    report = verified(tmp_path)
    assert report.findings() == []
    assert [partition.messages for partition in report.partitions] == [4, 4, 4]
