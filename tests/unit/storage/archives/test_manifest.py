from __future__ import annotations

import json
from typing import Any

import pytest

from consumerd.storage.archives.errors import OutputFolderError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind, SegmentSummary
from consumerd.storage.archives.manifest import Manifest, ManifestEntry, load
from consumerd.storage.archives.options import ExportFormat, ExportOptions
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.log.archive_names import SegmentName

OPTIONS = ExportOptions(broker=2)


def output(start: int) -> str:
    return f"top\u00e9c/2-7/{start:020}-{start + 9:020}.ndjson"


def entry(start: int = 0, **changes: Any) -> ManifestEntry:
    name = SegmentName("top\u00e9c", 2, 7, start)
    source = f"/a\n/{start}.kafka"
    findings = [
        ArchiveFinding(FlawKind.CRC, source, 'bad "crc"', name.folder, start, start + 9),
        ArchiveFinding(ArchiveFindingKind.MISNAMED, source, "\u2028", name.folder, None, None),
    ]
    summary = SegmentSummary(
        source, "mtime 1, 9 bytes", name.folder, start, name, 9, 1, 2, 3, 4, 5, start + 4, findings, 6
    )
    fields: dict[str, Any] = {"output": output(start), "start": start, "end": start + 9, "rows": 1, **changes}
    return ManifestEntry(summary, "keep", **fields)


def test_reads_back_what_it_wrote() -> None:
    entries = [entry(9), entry(0), entry(18, output=None, sha256="00", size=5)]
    manifest = Manifest(OPTIONS.fixed(), {found.key: found for found in entries})
    data = manifest.dump()
    assert load(data, OPTIONS) == manifest
    assert load(data, OPTIONS).dump() == data
    assert manifest.outputs() == {output(9): "/a\n/9.kafka", output(0): "/a\n/0.kafka"}
    assert data.isascii()
    assert len(data.splitlines()) == 3 + 2
    assert json.loads(data)["segments"][0]["segment_start"] == 0


def test_missing_manifest_is_empty() -> None:
    assert load(None, OPTIONS) == load(Manifest(OPTIONS.fixed()).dump(), OPTIONS) == Manifest(OPTIONS.fixed())


@pytest.mark.parametrize(
    "options", [ExportOptions(format=ExportFormat.PARQUET), ExportOptions(base64=True), ExportOptions(last=3)]
)
def test_rejects_another_format_once_there_are_files(options: ExportOptions) -> None:
    with pytest.raises(OutputFolderError, match="use the same options, or an empty folder"):
        load(Manifest(OPTIONS.fixed(), {"x": entry()}).dump(), options)
    assert load(Manifest(OPTIONS.fixed()).dump(), options) == Manifest(options.fixed())


@pytest.mark.parametrize("member", sorted(entry().as_json().keys() - {"status"}))
def test_rejects_a_broken_entry(member: str) -> None:
    found = json.loads(Manifest(OPTIONS.fixed(), {"x": entry()}).dump())
    del found["segments"][0][member]
    with pytest.raises(OutputFolderError, match="is not one of this version"):
        load(json.dumps(found).encode(), OPTIONS)


@pytest.mark.parametrize("source", [[], {}, None, 7])
def test_rejects_an_entry_whose_source_is_not_a_name(source: object) -> None:
    found = json.loads(Manifest(OPTIONS.fixed(), {"x": entry()}).dump())
    found["segments"][0]["source"] = source
    with pytest.raises(OutputFolderError, match="is not one of this version"):
        load(json.dumps(found).encode(), OPTIONS)


def test_rejects_a_document_that_is_nested_too_deeply() -> None:
    with pytest.raises(OutputFolderError, match="is not one of this version"):
        load(b"[" * 100_000, OPTIONS)
