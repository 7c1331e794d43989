"""Exports for readers of committed messages: aborted and open transactions are left out, wherever they end."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumerd.storage.archives.options import ExportFormat
from tests.support.archives import batch, marker, write_segment

Files = Callable[[Path], dict[str, bytes]]


def archive(root: Path) -> Path:
    """Producers 7 and 8 at once; 7 aborts in the second segment, 8 commits there, and the transaction of 9 is open."""
    log = root / "log"
    write_segment(log, "events-0", 0, batch(0, b"plain"), batch(1, b"of 7", producer=7), batch(2, b"of 8", producer=8))
    write_segment(
        log,
        "events-0",
        3,
        batch(3, b"of 7 too", producer=7),
        marker(4, 7, commit=False),
        marker(5, 8, commit=True),
        batch(6, b"of 7 again", producer=7),
        marker(7, 7, commit=True),
        batch(8, b"open", producer=9),
    )
    return log


def payloads(found: dict[str, bytes]) -> list[str]:
    return [json.loads(line)["payload"] for _, data in sorted(found.items()) for line in data.decode().splitlines()]


@pytest.mark.parametrize("workers", [1, 2])
def test_leaves_out_transactions_that_were_not_committed(
    tmp_path: Path, export: Any, files: Files, workers: int
) -> None:
    log, out = archive(tmp_path), tmp_path / "out"
    report = export(log, out=out, workers=workers, read_committed=True)
    assert payloads(files(out)) == ["plain", "of 8", "of 7 again"]
    assert (report.rows, report.findings()) == (3, [])
    export(log, out=tmp_path / "all")
    assert len(payloads(files(tmp_path / "all"))) == 6


def test_reads_transactions_in_tars_whatever_the_order(tmp_path: Path, export: Any, files: Files) -> None:
    log, out = archive(tmp_path), tmp_path / "out"
    path = tmp_path / "log.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for file in sorted(log.rglob("*.log"), reverse=True):
            tar.add(file, file.relative_to(tmp_path))
    export(path, out=out, read_committed=True)
    assert payloads(files(out)) == ["plain", "of 8", "of 7 again"]


def test_exports_a_segment_again_whose_transaction_was_committed_later(
    tmp_path: Path, export: Any, files: Files
) -> None:
    log, out = archive(tmp_path), tmp_path / "out"
    export(log, out=out, read_committed=True)
    write_segment(log, "events-0", 9, batch(9, b"more"))
    report = export(log, out=out, read_committed=True)
    assert (report.made, report.kept) == (1, 2)
    write_segment(log, "events-0", 10, marker(10, 9, commit=True))
    report = export(log, out=out, read_committed=True)
    assert (report.made, report.kept) == (3, 1)
    assert sorted(payloads(files(out))) == sorted(["plain", "of 8", "of 7 again", "open", "more"])


def test_parquet_has_the_same_rows(tmp_path: Path, export: Any) -> None:
    report = export(archive(tmp_path), out=tmp_path / "out", read_committed=True, format=ExportFormat.PARQUET)
    assert report.rows == 3
