from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from consumerd.storage import DamagedArchiveError
from consumerd.storage.archives.errors import MissingExtraError, NoSourceError, ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding
from consumerd.storage.archives.opening import OpenSegment, open_segments
from consumerd.storage.archives.sources import Packing, SegmentSource, find_sources

NAME = "events-0/00000000000000000000.kafka"
DATA = b"segment" * 100


def tar_of(members: dict[str, bytes], **kinds: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, kind in kinds.items():
            member = tarfile.TarInfo(f"{name}/00000000000000000000.kafka")
            member.type, member.linkname = kind, "elsewhere"
            tar.addfile(member)
    return file.getvalue()


def opened(source: SegmentSource) -> list[tuple[str, bytes] | ArchiveFinding]:
    """Every segment with its bytes, or what is wrong instead."""
    found: list[tuple[str, bytes] | ArchiveFinding] = []
    counted: list[int] = []
    for item in open_segments(source, expansion=200, on_bytes=counted.append):
        if isinstance(item, OpenSegment):
            pieces = []
            while piece := item.stream.read(50):
                pieces.append(piece)
            found.append((item.name, b"".join(pieces)))
            assert item.size is None or item.size == sum(map(len, pieces))
        else:
            found.append(item)
    if source.size is not None:
        assert sum(counted) <= source.size
    return found


def contents(*paths: Path | str) -> list[tuple[str, bytes] | ArchiveFinding]:
    return [item for source in find_sources([str(path) for path in paths]) for item in opened(source)]


def test_finds_files_folders_and_compressed_files(tmp_path: Path) -> None:
    packed = {"": DATA, ".gz": gzip.compress(DATA), ".zst": zstandard.compress(DATA)}
    for number, (ending, data) in enumerate(packed.items()):
        folder = tmp_path / f"events-{number}"
        folder.mkdir()
        (folder / f"00000000000000000000.kafka{ending}").write_bytes(data)
        (folder / "index.tmp").write_bytes(b"stray")
    names = [f"{tmp_path}/events-{n}/00000000000000000000.kafka{end}" for n, end in enumerate(packed)]
    assert contents(tmp_path) == [(name, DATA) for name in names]
    assert contents(names[2], names[0], tmp_path / "events-0") == [(names[0], DATA), (names[2], DATA)]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"])
def test_finds_segments_in_tars(tmp_path: Path, ending: str) -> None:
    members = {NAME: DATA, "notes.txt": b"no segment", f"a/{NAME}.gz": gzip.compress(DATA), f"b/{NAME}": b""}
    data = tar_of(members)
    if ending.endswith("gz"):
        data = gzip.compress(data)
    elif ending.endswith("zst"):
        data = zstandard.compress(data)
    path = tmp_path / f"backup{ending}"
    path.write_bytes(data)
    assert sorted(contents(tmp_path)) == sorted(  # type: ignore[type-var]
        [(f"{path}!/{NAME}", DATA), (f"{path}!/a/{NAME}.gz", DATA), (f"{path}!/b/{NAME}", b"")]
    )
    sources = find_sources([str(path)])
    assert len(sources) == (3 if ending == ".tar" else 1)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_reports_what_is_wrong_in_a_tar(tmp_path: Path, ending: str) -> None:
    tar = tar_of({NAME: DATA, f"../{NAME}": b"away"}, link=tarfile.SYMTYPE, sparse=tarfile.GNUTYPE_SPARSE)
    path = tmp_path / f"backup{ending}"
    twice = tar + tar_of({NAME: b"again"})
    path.write_bytes(gzip.compress(twice) if ending.endswith("gz") else twice)
    first, *rest = contents(path)
    assert first == (f"{path}!/{NAME}", DATA)
    assert [str(getattr(item, "kind", item)) for item in rest] == [
        "unsafe-name", "no-plain-file", "no-plain-file", "duplicate-segment"
    ]  # fmt: skip


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
def test_truncated_tar_yields_the_segments_before_the_cut(tmp_path: Path, ending: str) -> None:
    tar = tar_of({NAME: DATA, f"a/{NAME}": os.urandom(1_000_000)})
    data = {".tar": tar, ".tar.gz": gzip.compress(tar), ".tar.zst": zstandard.compress(tar)}[ending]
    path = tmp_path / f"backup{ending}"
    path.write_bytes(data[: len(data) * 2 // 3])
    (source,) = find_sources([str(path)])
    streams = open_segments(source, expansion=200, on_bytes=lambda _: None)
    first = next(streams)
    assert isinstance(first, OpenSegment)
    assert first.stream.read(10_000) == DATA
    second = next(streams)  # its bytes are not read, so the cut shows when it is passed
    assert isinstance(second, OpenSegment)
    (last,) = streams
    assert str(getattr(last, "kind", "")) == "damaged-archive"


def test_ignores_bytes_appended_after_discovery(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(DATA)
    (source,) = find_sources([str(path)])
    with path.open("ab") as file:
        file.write(b"more")
    assert opened(source) == [(str(path), DATA)]
    assert find_sources([str(path)])[0].size != source.size


def test_rejects_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError, match="does not exist"):
        find_sources([str(tmp_path / "missing")])
    with pytest.raises(NoSourceError, match="holds no segments"):
        find_sources([str(tmp_path)])
    (tmp_path / "notes.txt").touch()
    with pytest.raises(NoSourceError, match="holds no segments"):
        find_sources([str(tmp_path / "notes.txt")])


def test_reports_a_file_that_disappears(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(DATA)
    (source,) = find_sources([str(path)])
    path.unlink()
    with pytest.raises(ReadFailedError, match="cannot be read: it was deleted since it was found"):
        opened(source)


def test_passes_over_what_a_running_broker_deletes_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"a-0/{start:020d}.log" for start in (0, 1)] + [f"b-0/{0:020d}.log"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(DATA)
    walk, stat = os.walk, os.stat

    def listed(*args: Any, **options: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        for where, folders, files in walk(*args, **options):
            folders.sort()
            yield where, folders, files
            shutil.rmtree(tmp_path / "b-0", ignore_errors=True)

    def deleted(path: Any, **options: Any) -> os.stat_result:
        if path == str(tmp_path / names[0]):
            (tmp_path / names[0]).unlink()
        return stat(path, **options)

    monkeypatch.setattr(os, "walk", listed)
    monkeypatch.setattr(os, "stat", deleted)
    assert [source.name for source in find_sources([str(tmp_path)])] == [str(tmp_path / names[1])]


def test_prints_names_that_are_not_utf_8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff-0"
    os.mkdir(folder)
    with open(folder + b"/00000000000000000000.kafka", "wb") as file:
        file.write(DATA)
    (source,) = find_sources([str(tmp_path)])
    assert source.name == f"{tmp_path}/\\xff-0/00000000000000000000.kafka"
    assert opened(source) == [(source.name, DATA)]


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def test_finds_segments_at_urls(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    memory.pipe(f"/archive/{NAME}", DATA)
    memory.pipe("/archive/old.tar.gz", gzip.compress(tar_of({f"a/{NAME}": DATA})))
    memory.pipe("/archive/stray.txt", b"stray")
    everything = [(f"memory:///archive/{NAME}", DATA), (f"memory:///archive/old.tar.gz!/a/{NAME}", DATA)]
    assert contents("memory://archive") == everything
    assert contents("memory://archive/old.tar.gz") == everything[1:]
    (tmp_path / "00000000000000000000.kafka.gz").write_bytes(gzip.compress(DATA))
    assert contents(f"file://{tmp_path}") == [(f"file://{tmp_path}/00000000000000000000.kafka.gz", DATA)]


def test_stamp_of_a_url_changes_with_its_content(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.kafka"
    path.write_bytes(DATA)
    before = find_sources([f"file://{path}"])
    assert before[0].is_remote
    os.utime(path, (1, 1))
    assert find_sources([f"file://{path}"])[0].stamp != before[0].stamp


def test_rejects_urls_without_a_file(memory: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(NoSourceError, match="does not exist"):
        find_sources(["memory://archive/missing.kafka"])
    with pytest.raises(ReadFailedError, match="unheard-of"):
        find_sources(["unheard-of://bucket/key"])
    memory.pipe(f"/archive/{NAME}", DATA)
    (source,) = find_sources(["memory://archive"])
    memory.rm(f"/archive/{NAME}")
    with pytest.raises(ReadFailedError, match="cannot be read"):
        opened(source)


@pytest.mark.parametrize(
    ("module", "path"), [("fsspec.core", "memory://archive"), ("zstandard", "00000000000000000000.kafka.zst")]
)
def test_names_a_missing_package(module: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "00000000000000000000.kafka.zst").write_bytes(zstandard.compress(DATA))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"install the archive extra: pip install 'consumerd\[archive\]'"):
        contents(path)


def test_detects_the_kind_of_a_file_by_its_name() -> None:
    assert Packing(".gz") is Packing.GZIP


def test_checks_zstd_frames(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.kafka.zst"
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(DATA)
    for data, kind in (
        (whole + zstandard.compress(b"more"), None),
        (whole[:-6], "truncated"),
        (whole[:-1] + b"!", "damaged"),
        (b"junk" * 10, "damaged"),
    ):
        path.write_bytes(data)
        (source,) = find_sources([str(path)])
        if kind is None:
            assert opened(source) == [(str(path), DATA + b"more")]
        else:
            with pytest.raises(DamagedArchiveError, match=kind):
                opened(source)
