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
from consumerd.storage.archives.pool import StopFlag
from consumerd.storage.archives.progress import NoProgress
from consumerd.storage.archives.sources import find_sources
from consumerd.storage.archives.verify import VerifyOptions, verify
from consumerd.wire.v07 import encode_message

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
    report = verify(sources, VerifyOptions(), workers=1, progress=NoProgress(), stop=StopFlag())
    assert kinds(report) == ["unreadable-file"]
    assert len(report.partitions) == 1


def test_rejects_an_invalid_layout(tmp_path: Path, segments: Callable[..., list[Path]]) -> None:
    segments(tmp_path / "events-0", HELLO)
    with pytest.raises(ConfigError, match="must name"):
        verified(tmp_path, layout="{topic}")
