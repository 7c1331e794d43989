from __future__ import annotations

import json
from typing import Any

import pytest

from consumerd.archive import ExportOptions, Finding, FindingKind, Format, OutputFolderError, SegmentSummary
from consumerd.archive.manifest import Entry, Manifest, load
from consumerd.storage.archive import FlawKind
from consumerd.storage.archive_names import SegmentName

OPTIONS = ExportOptions(broker=2)


def entry(start: int = 0, **changes: Any) -> Entry:
    name = SegmentName("top\u00e9c", 2, 7, start)
    source = f"/a\n/{start}.kafka"
    findings = [
        Finding(FlawKind.CRC, source, 'bad "crc"', name.folder, start, start + 9),
        Finding(FindingKind.MISNAMED, source, "\u2028", name.folder, None, None),
    ]
    summary = SegmentSummary(
        source, "mtime 1, 9 bytes", name.folder, start, name, 9, 1, 2, 3, 4, 5, start + 4, findings, 6
    )
    fields: dict[str, Any] = {"output": f"out-{start}", "start": start, "end": start + 9, "rows": 1, **changes}
    return Entry(summary, "keep", **fields)


def test_what_is_written_is_read_again() -> None:
    entries = [entry(9), entry(0), entry(18, output=None, sha256="00", size=5)]
    manifest = Manifest(OPTIONS.fixed(), {found.key: found for found in entries})
    data = manifest.dump()
    assert load(data, OPTIONS) == manifest
    assert load(data, OPTIONS).dump() == data
    assert manifest.outputs() == {"out-9": "/a\n/9.kafka", "out-0": "/a\n/0.kafka"}
    assert data.isascii()
    assert len(data.splitlines()) == 3 + 2
    assert json.loads(data)["segments"][0]["segment_start"] == 0


def test_there_may_be_none() -> None:
    assert load(None, OPTIONS) == load(Manifest(OPTIONS.fixed()).dump(), OPTIONS) == Manifest(OPTIONS.fixed())


@pytest.mark.parametrize(
    "options", [ExportOptions(format=Format.PARQUET), ExportOptions(base64=True), ExportOptions(last=3)]
)
def test_files_of_another_kind_are_refused_once_there_are_some(options: ExportOptions) -> None:
    with pytest.raises(OutputFolderError, match="use the same options, or an empty folder"):
        load(Manifest(OPTIONS.fixed(), {"x": entry()}).dump(), options)
    assert load(Manifest(OPTIONS.fixed()).dump(), options) == Manifest(options.fixed())


@pytest.mark.parametrize("member", sorted(entry().as_json().keys() - {"status"}))
def test_a_broken_entry_is_no_manifest(member: str) -> None:
    found = json.loads(Manifest(OPTIONS.fixed(), {"x": entry()}).dump())
    del found["segments"][0][member]
    with pytest.raises(OutputFolderError, match="is not one of this version"):
        load(json.dumps(found).encode(), OPTIONS)
