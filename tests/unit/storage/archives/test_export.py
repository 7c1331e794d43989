from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet
import pytest
import zstandard

from consumerd.base import native
from consumerd.base.files import OsSystemCalls
from consumerd.storage.archives import parquet
from consumerd.storage.archives.errors import (
    CorruptSegmentError,
    DuplicateSegmentError,
    InterruptedWorkError,
    MissingExtraError,
    MissingTopicsError,
    OutputFolderError,
    WriteFailedError,
)
from consumerd.storage.archives.export import ArchiveExport, ExportReport
from consumerd.storage.archives.options import ExportCompression, ExportFormat, ExportOptions, OnCorrupt
from consumerd.storage.archives.outputs import MANIFEST
from consumerd.storage.archives.pool import NoProgress, StopFlag
from consumerd.storage.archives.sources import find_sources
from consumerd.wire.compression import compress
from consumerd.wire.v07 import Codec, decode_batch, encode_message, encode_message_set

Segments = Callable[..., list[Path]]
Files = Callable[[Path], dict[str, bytes]]


HELLO = encode_message(b"hello")
BAD = HELLO[:6] + b"\0\0\0\0" + HELLO[10:]
WRAPPER = encode_message_set([b"one", b"two", b"\xff"], codec=Codec.GZIP)


class RunExport(Protocol):
    def __call__(self, *paths: Path | str, out: Path, **options: Any) -> ExportReport: ...


def rows(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode().splitlines()]


def identities(data: bytes) -> list[tuple[int, int, int]]:
    return [(row["offset"], row["index"], row["next_offset"]) for row in rows(data)]


@pytest.fixture
def log(tmp_path: Path, segments: Segments) -> Path:
    """Two segments of one partition and one of another."""
    segments(tmp_path / "log" / "events-0", HELLO * 2 + WRAPPER, HELLO * 3)
    segments(tmp_path / "log" / "events-1", HELLO, start=300)
    return tmp_path / "log"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_names_files_by_partition_and_offsets(log: Path, out: Path, export: RunExport, files: Files) -> None:
    report = export(log, out=out, broker=4)
    middle = 30 + len(WRAPPER)
    found = files(out)
    assert sorted(found) == [
        f"events/4-0/{0:020}-{middle:020}.ndjson",
        f"events/4-0/{middle:020}-{middle + 45:020}.ndjson",
        f"events/4-1/{300:020}-{315:020}.ndjson",
    ]
    first = found[f"events/4-0/{0:020}-{middle:020}.ndjson"]
    expected = decode_batch(HELLO * 2 + WRAPPER, 0).messages()
    assert identities(first) == [(message.offset, message.index, message.next_offset) for message in expected]
    assert {row["source"] for row in rows(first)} == {f"{log}/events-0/{0:020}.kafka"}
    assert (report.rows, report.files, report.made, report.kept) == (9, 3, 3, 0)
    assert report.bytes == sum(map(len, found.values()))
    assert report.is_sound(allow_torn_tail=False)


def test_writes_every_segment_to_the_manifest(log: Path, out: Path, export: RunExport, files: Files) -> None:
    export(log, out=out)
    manifest = json.loads((out / MANIFEST).read_bytes())
    assert manifest["options"]["format"] == "ndjson"
    found = files(out)
    assert {entry["output"]: entry["sha256"] for entry in manifest["segments"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in found.items()
    }
    entry = manifest["segments"][2]
    status = (log / "events-1" / f"{300:020}.kafka").stat()
    assert {key: entry[key] for key in ("stamp", "rows", "bytes", "segment_bytes", "start", "end", "status")} == {
        "stamp": f"mtime {status.st_mtime_ns}, 15 bytes",
        "rows": 1,
        "bytes": len(found[entry["output"]]),
        "segment_bytes": 15,
        "start": 300,
        "end": 315,
        "status": "done",
    }
    assert len((out / MANIFEST).read_text().splitlines()) == 3 + 2


def test_second_run_exports_nothing(log: Path, out: Path, export: RunExport) -> None:
    export(log, out=out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.ndjson")}
    report = export(log, out=out)
    assert (report.made, report.kept, report.changed, report.rows) == (0, 3, 0, 9)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.ndjson")} == before


def test_exports_changed_segments_again(
    log: Path, out: Path, segments: Segments, export: RunExport, files: Files
) -> None:
    export(log, out=out)
    segments(log / "events-1", HELLO * 2, start=300)  # it has grown
    segments(log / "events-1", HELLO, start=330)  # and is followed by another one
    report = export(log, out=out)
    assert (report.made, report.kept, report.changed, report.rows) == (2, 2, 1, 11)
    assert [name for name in sorted(files(out)) if name.startswith("events/1")] == [
        f"events/1/{300:020}-{330:020}.ndjson",
        f"events/1/{330:020}-{345:020}.ndjson",
    ]


def test_exports_again_what_was_deleted_from_the_output(log: Path, out: Path, export: RunExport, files: Files) -> None:
    export(log, out=out)
    before = files(out)
    gone, cut, _ = sorted(before)
    (out / gone).unlink()
    (out / cut).write_bytes(b"cut")
    assert export(log, out=out).made == 2
    assert files(out) == before


def test_removes_partial_files_of_a_former_run(log: Path, out: Path, export: RunExport, files: Files) -> None:
    export(log, out=out)
    before = files(out)
    left, own = f"events/0/{0:020}-{30:020}.ndjson", f"events/0/{900:020}-{930:020}.ndjson"
    (out / ".partial" / "01").write_bytes(b"half a file")
    (out / ".partial" / "02.name").write_text(f"{left}\n")
    (out / ".partial" / "03.name").write_text(f"{min(before)}\n")
    (out / ".partial" / "04.name").write_text(own)  # the note itself is cut
    (out / left).write_bytes(b"the manifest was not told of it any more")
    (out / own).write_bytes(b"somebody else's")
    export(log, out=out)
    assert files(out) == {**before, own: b"somebody else's"}


@pytest.mark.parametrize("absolute", [False, True])
def test_deletes_nothing_that_a_forged_note_names_outside_of_the_folder(
    log: Path, out: Path, tmp_path: Path, export: RunExport, absolute: bool
) -> None:
    export(log, out=out)
    victim = tmp_path / "precious"
    victim.write_text("data")
    name = str(victim) if absolute else os.path.relpath(victim, out)
    assert (out / name).resolve() == victim.resolve()
    (out / ".partial" / "01.name").write_text(f"{name}\n")
    with pytest.raises(OutputFolderError, match=r"01\.name names .*not a file of an export: nothing is deleted"):
        export(log, out=out)
    assert victim.read_text() == "data"


def test_rejects_a_manifest_with_a_file_outside_of_the_folder(
    log: Path, out: Path, tmp_path: Path, segments: Segments, export: RunExport
) -> None:
    export(log, out=out)
    victim = tmp_path / "precious.ndjson"
    victim.write_text("data")
    manifest = (out / "_manifest.json").read_text()
    forged = f"../../{victim.relative_to(tmp_path)}"
    (out / "_manifest.json").write_text(re.sub(r'"output": "events/1/[^"]*"', f'"output": "{forged}"', manifest))
    assert forged in (out / "_manifest.json").read_text()
    segments(log / "events-1", HELLO * 2, start=300)  # it has grown: the former file would be replaced
    with pytest.raises(OutputFolderError, match=r"_manifest\.json"):
        export(log, out=out)
    assert victim.read_text() == "data"


def test_never_replaces_a_file_of_somebody_else(log: Path, out: Path, export: RunExport, files: Files) -> None:
    export(log / "events-0", out=out)
    theirs = f"events/1/{300:020}-{315:020}.ndjson"
    (out / "events" / "1").mkdir()
    (out / theirs).write_bytes(b"of a daemon that writes files")
    with pytest.raises(OutputFolderError, match="already exists and was not made by this export"):
        export(log, out=out)
    assert files(out)[theirs] == b"of a daemon that writes files"


@pytest.mark.parametrize("compression", [ExportCompression.GZIP, ExportCompression.ZSTD])
def test_compresses_ndjson(
    log: Path, out: Path, export: RunExport, files: Files, compression: ExportCompression
) -> None:
    export(log, out=out / "plain")
    export(log, out=out / "packed", compression=compression)
    unpack = {ExportCompression.GZIP: gzip.decompress, ExportCompression.ZSTD: unpack_zstd}[compression]
    ending = {ExportCompression.GZIP: ".gz", ExportCompression.ZSTD: ".zst"}[compression]
    assert {name.removesuffix(ending): unpack(data) for name, data in files(out / "packed").items()} == files(
        out / "plain"
    )


def unpack_zstd(data: bytes) -> bytes:
    return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(data))


def test_writes_parquet(log: Path, out: Path, export: RunExport, files: Files) -> None:
    export(log, out=out / "ndjson", base64=False)
    report = export(log, out=out / "parquet", format=ExportFormat.PARQUET, compression=ExportCompression.ZSTD)
    assert report.rows == 9
    lines = [row for _, data in sorted(files(out / "ndjson").items()) for row in rows(data)]
    found = [
        row
        for _, data in sorted(files(out / "parquet").items())
        for row in pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    ]
    keys = ("topic", "broker", "partition", "offset", "index", "next_offset", "codec", "magic", "crc_ok", "source")
    assert [[row[key] for key in keys] for row in found] == [[row[key] for key in keys] for row in lines]
    assert [row["payload"] for row in found][:5] == [b"hello", b"hello", b"one", b"two", b"\xff"]


@pytest.mark.parametrize("options", [{}, {"format": ExportFormat.PARQUET, "compression": ExportCompression.ZSTD}])
def test_writes_the_same_files_for_the_same_work(
    log: Path, tmp_path: Path, export: RunExport, files: Files, options: dict[str, Any]
) -> None:
    export(log, out=tmp_path / "a", **options)
    export(log, out=tmp_path / "b", workers=2, **options)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert (tmp_path / "a" / MANIFEST).read_bytes() == (tmp_path / "b" / MANIFEST).read_bytes()


def test_selects_topics_and_offsets(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport, files: Files
) -> None:
    segments(tmp_path / "log" / "a-0", HELLO * 2, HELLO * 2, HELLO * 2)
    segments(tmp_path / "log" / "b-0", HELLO * 2)
    report = export(tmp_path / "log", out=out, topics=frozenset({"a"}), first=16, last=61)
    assert sorted(files(out)) == [f"a/0/{30:020}-{60:020}.ndjson", f"a/0/{60:020}-{75:020}.ndjson"]
    assert report.rows == 3
    with pytest.raises(OutputFolderError, match="holds an export with first = 16, not 0; use the same options"):
        export(tmp_path / "log", out=out)
    report = export(tmp_path / "log", out=out, topics=frozenset({"b"}), first=16, last=61)
    assert (report.made, report.rows, files(out).keys() == {"b/0"}) == (1, 3, False)


def test_rejects_topics_that_the_archive_does_not_have(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport, files: Files
) -> None:
    segments(tmp_path / "log" / "a-0", HELLO)
    with pytest.raises(MissingTopicsError, match="no segments of the topics b, c; see"):
        export(tmp_path / "log", out=out, topics=frozenset({"c", "a", "b"}))
    assert files(out) == {}
    assert export(tmp_path / "log", out=out, topics=frozenset({"a"}), first=10_000).rows == 0  # it has the topic


def test_exports_compressed_segments_and_tars(log: Path, tmp_path: Path, export: RunExport, files: Files) -> None:
    export(log, out=tmp_path / "plain")
    expected = {name: [row | {"source": ""} for row in rows(data)] for name, data in files(tmp_path / "plain").items()}
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(log, "log")
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress((tmp_path / "a.tar").read_bytes()))
    for number, name in enumerate(("a.tar", "a.tar.gz", "a.tar.zst")):
        out = tmp_path / f"out-{number}"
        export(tmp_path / name, out=out)
        found = files(out)
        assert {name: [row | {"source": ""} for row in rows(data)] for name, data in found.items()} == expected
        sources = {row["source"] for data in found.values() for row in rows(data)}
        assert f"{tmp_path}/{name}!/log/events-1/{300:020}.kafka" in sources
        assert export(tmp_path / name, out=out).kept == 3


def test_resumes_in_the_middle_of_a_tar(log: Path, tmp_path: Path, out: Path, export: RunExport) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(log, "log")
    export(tmp_path / "a.tar.gz", out=out)
    manifest = json.loads((out / MANIFEST).read_bytes())
    (out / manifest["segments"][1]["output"]).unlink()
    report = export(tmp_path / "a.tar.gz", out=out)
    assert (report.made, report.kept) == (1, 2)


def test_corrupt_messages_end_the_export_unless_skipped_or_kept(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport, files: Files
) -> None:
    segments(tmp_path / "log" / "a-0", HELLO * 2)
    segments(tmp_path / "log" / "b-0", HELLO + BAD + HELLO)
    with pytest.raises(CorruptSegmentError, match=r"offset 15 has a CRC of .* --on-corrupt skip or keep"):
        export(tmp_path / "log", out=out)
    assert not any(name.startswith("b") for name in files(out))
    report = export(tmp_path / "log", out=out, on_corrupt=OnCorrupt.SKIP)
    assert not report.is_sound(allow_torn_tail=True)
    name = f"b/0/{0:020}-{45:020}.ndjson"
    assert identities(files(out)[name]) == [(0, 0, 15), (30, 0, 45)]
    report = export(tmp_path / "log", out=out, on_corrupt=OnCorrupt.KEEP)
    assert (report.made, report.kept) == (1, 1)
    row = rows(files(out)[name])[1]
    assert (row["offset"], row["next_offset"], row["crc_ok"], row["payload"]) == (15, 30, False, "hello")
    assert "has a CRC of" in row["problem"]


def test_ignores_corruption_outside_of_the_selected_range(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport
) -> None:
    segments(tmp_path / "log" / "a-0", HELLO * 2 + BAD + HELLO * 2)
    assert export(tmp_path / "log", out=out / "before", last=30).rows == 2
    assert export(tmp_path / "log", out=out / "after", first=46).rows == 1
    for first, last in ((0, 31), (30, None)):  # other options are fine while nothing is finished
        with pytest.raises(CorruptSegmentError):
            export(tmp_path / "log", out=out / "within", first=first, last=last)


def test_never_writes_a_row_for_bytes_that_are_not_a_message(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport, files: Files
) -> None:
    segments(tmp_path / "log" / "a-0", HELLO * 2 + bytes(100) + HELLO * 2)
    with pytest.raises(CorruptSegmentError):
        export(tmp_path / "log", out=out)
    report = export(tmp_path / "log", out=out, on_corrupt=OnCorrupt.KEEP)
    assert (report.rows, [str(finding.kind) for finding in report.findings()]) == (2, ["nonsense-block"])
    report = export(tmp_path / "log", out=out, on_corrupt=OnCorrupt.KEEP, resync=True)
    assert report.rows == 4
    assert list(files(out)) == [f"a/0/{0:020}-{160:020}.ndjson"]


def test_torn_tail_does_not_end_the_export(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport, files: Files
) -> None:
    segments(tmp_path / "log" / "a-0", HELLO, HELLO + HELLO[:7])
    report = export(tmp_path / "log", out=out)
    assert sorted(files(out)) == [f"a/0/{0:020}-{15:020}.ndjson", f"a/0/{15:020}-{30:020}.ndjson"]
    assert report.is_sound(allow_torn_tail=True)
    assert not report.is_sound(allow_torn_tail=False)


def test_reports_gaps_and_misnamed_files(tmp_path: Path, out: Path, segments: Segments, export: RunExport) -> None:
    segments(tmp_path / "log" / "a-0", HELLO)
    segments(tmp_path / "log" / "a-0", HELLO, start=50)
    segments(tmp_path / "log" / "loose", HELLO)
    report = export(tmp_path / "log", out=out)
    assert [str(finding.kind) for finding in report.findings()] == ["gap", "misnamed-segment"]
    assert [str(finding.kind) for finding in export(tmp_path / "log", out=out).findings()] == [
        "gap", "misnamed-segment"
    ]  # fmt: skip


def test_writes_no_file_for_segments_without_messages(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport, files: Files
) -> None:
    segments(tmp_path / "log" / "a-0", encode_message(gzip.compress(b""), codec=Codec.GZIP), b"")
    report = export(tmp_path / "log", out=out)
    assert (report.made, report.files, report.rows, files(out)) == (2, 0, 0, {})
    assert export(tmp_path / "log", out=out).kept == 2


@pytest.mark.parametrize("packing", [gzip.compress, bytes])
def test_rejects_the_same_segment_twice(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport, packing: Callable[[bytes], bytes]
) -> None:
    for host in ("one", "two"):
        segments(tmp_path / host / "a-0", HELLO)
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(tmp_path / host / "a-0", "a-0")
        ending = "tar" if packing is bytes else "tgz"
        (tmp_path / f"{host}.{ending}").write_bytes(packing(file.getvalue()))
    paths = sorted(tmp_path.glob("*.t*"))
    with pytest.raises(DuplicateSegmentError, match="are the same segment of a/0; distinguish brokers"):
        export(*paths, out=out)
    with pytest.raises(DuplicateSegmentError):
        export(tmp_path / "one", tmp_path / "two", out=tmp_path / "other")
    (tmp_path / "one").rename(tmp_path / "7")
    (tmp_path / "two").rename(tmp_path / "8")
    report = export(tmp_path / "7", tmp_path / "8", out=tmp_path / "apart", layout="{broker}/{topic}-{partition}")
    assert report.files == 2


def test_rejects_overlapping_segments_cut_to_one_range(
    tmp_path: Path, out: Path, segments: Segments, export: RunExport
) -> None:
    segments(tmp_path / "log" / "a-0", HELLO * 3)
    segments(tmp_path / "log" / "a-0", HELLO * 2, start=15)
    assert export(tmp_path / "log", out=tmp_path / "whole").files == 2
    with pytest.raises(DuplicateSegmentError, match="hold the same offsets"):
        export(tmp_path / "log", out=out, first=15)


def test_rejects_unusable_output_folders(log: Path, tmp_path: Path, export: RunExport) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(OutputFolderError, match=r"holds files but no _manifest\.json"):
        export(log, out=tmp_path / "full")
    with pytest.raises(WriteFailedError, match="cannot be written"):
        export(log, out=log / "events-0" / f"{0:020}.kafka")
    export(log, out=tmp_path / "out")
    with pytest.raises(OutputFolderError, match="format = 'ndjson', not 'parquet'"):
        export(log, out=tmp_path / "out", format=ExportFormat.PARQUET)
    for text in (b"", b"[]", b"{}", b'{"manifest": "consumerd export", "version": 99, "segments": []}', b"\xff"):
        (tmp_path / "out" / MANIFEST).write_bytes(text)
        with pytest.raises(OutputFolderError, match="is not one of this version"):
            export(log, out=tmp_path / "out")


def test_allows_one_export_at_a_time(log: Path, out: Path, export: RunExport) -> None:
    rejected: list[int] = []

    class Meanwhile(OsSystemCalls):
        def sync(self, fd: int) -> None:  # type: ignore[override]
            if stat.S_ISREG(os.fstat(fd).st_mode):
                with pytest.raises(OutputFolderError, match="another export is writing"):
                    export(log, out=out)
                rejected.append(fd)

    assert export(log, out=out, system=Meanwhile()).made == 3
    assert rejected


def test_rejects_topics_named_like_own_files(tmp_path: Path, out: Path, segments: Segments, export: RunExport) -> None:
    for topic in (MANIFEST, ".partial"):
        segments(tmp_path / "log" / f"{topic}-0", HELLO)
        with pytest.raises(OutputFolderError, match="cannot be exported"):
            export(tmp_path / "log" / f"{topic}-0", out=out)


def test_full_disk_leaves_no_partial_file(log: Path, out: Path, export: RunExport, files: Files) -> None:
    class Full(OsSystemCalls):
        def sync(self, fd: int) -> None:  # type: ignore[override]
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_size > 500:
                raise OSError(28, "No space left on device")

    with pytest.raises(WriteFailedError, match="No space left on device"):
        export(log, out=out, system=Full())
    assert not any(name.startswith(".partial") for name in files(out))
    assert export(log, out=out).rows == 9


@pytest.mark.parametrize("workers", [1, 2])
def test_stops_on_request_and_resumes(log: Path, out: Path, export: RunExport, workers: int) -> None:
    stop = StopFlag()

    class Asking(NoProgress):
        def segment(self, rows: int) -> None:
            stop.requested = True

    interrupted = ArchiveExport(
        find_sources([str(log)]), out, ExportOptions(), workers=workers, progress=Asking(), stop=stop,
        monotonic=lambda: 0.0,
    )  # fmt: skip
    with pytest.raises(InterruptedWorkError, match="segments done; run the same command to resume"):
        interrupted.run()
    report = export(log, out=out)
    assert report.kept >= 1
    assert report.made + report.kept == 3
    assert report.rows == 9


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("pyarrow.parquet", {"format": ExportFormat.PARQUET}),
        ("zstandard", {"compression": ExportCompression.ZSTD}),
    ],
)
def test_names_a_missing_package(
    log: Path, out: Path, export: RunExport, monkeypatch: pytest.MonkeyPatch, module: str, options: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="install the archive extra"):
        export(log, out=out, **options)


def test_core_works_without_the_archive_extra(
    log: Path, out: Path, export: RunExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "pyarrow.parquet", "zstandard", "fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, module, None)
    assert export(log, out=out, compression=ExportCompression.GZIP).rows == 9


@pytest.mark.parametrize(
    "how",
    [
        {"format": ExportFormat.PARQUET},
        {"format": ExportFormat.NDJSON},
        {"format": ExportFormat.NDJSON, "base64": True},
    ],
)
@pytest.mark.parametrize(("first", "last"), [(0, None), (16, None), (1, 500), (300, 301)])
def test_both_codecs_write_the_same_files(
    native_codec: native.NativeCodec,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    segments: Segments,
    export: RunExport,
    files: Files,
    how: dict[str, Any],
    first: int,
    last: int | None,
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 7)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 100)
    texts = [b'"', b"\\x", "\u00e9\u2028".encode(), b"\xc3", b"", b"\x7f\x00", b"plain"]
    messages = [bytes((number,)) * (number % 40) for number in range(20)] + texts
    plain = encode_message_set(messages)
    old = encode_message_set(messages[:3], magic=0)
    empty = encode_message(compress(Codec.GZIP, b""), codec=Codec.GZIP)
    wrappers = [encode_message_set(messages, codec=codec) for codec in (Codec.GZIP, Codec.SNAPPY)]
    large = encode_message(b"x" * 500)
    segments(
        tmp_path / "log" / "events-0", HELLO + old + plain + wrappers[0] + empty + large + BAD + wrappers[1] + plain
    )
    made = []
    for chosen in (None, native_codec):
        with native.using(chosen):
            out = tmp_path / f"{chosen is None}"
            report = export(
                tmp_path / "log", out=out, broker=4, first=first, last=last, on_corrupt=OnCorrupt.KEEP, **how
            )
            made.append((files(out), report.rows, report.bytes))
    assert made[0] == made[1]
    assert made[0][1] > 0
