"""Archives to look at: folders of segments, and runs of the tools in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.files import SystemCalls, SystemFiles
from consumerd.storage.archives.export import ArchiveExport, ExportReport
from consumerd.storage.archives.options import ExportOptions
from consumerd.storage.archives.pool import NoProgress, StopFlag
from consumerd.storage.archives.sources import find_sources


def write_segments(folder: Path, *segments: bytes, start: int = 0) -> list[Path]:
    """Segment files that follow each other, in a folder such as `events-0`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for data in segments:
        path = folder / f"{start:020d}.kafka"
        path.write_bytes(data)
        paths.append(path)
        start += len(data)
    return paths


def run_export(
    *paths: Path | str, out: Path, workers: int = 1, system: SystemCalls | None = None, **options: Any
) -> ExportReport:
    """One export, as the command does it."""
    export = ArchiveExport(
        find_sources([str(path) for path in paths]),
        out,
        ExportOptions(**options),
        workers=workers,
        progress=NoProgress(),
        stop=StopFlag(),
        monotonic=time.monotonic,
        files=SystemFiles(system),
    )
    return export.run()


def files_of(out: Path) -> dict[str, bytes]:
    """Everything in an output folder but the manifest."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name != "_manifest.json"
    }


@pytest.fixture
def segments() -> Callable[..., list[Path]]:
    """`segments(folder, data, ..., start=0)`: see `write_segments`."""
    return write_segments


@pytest.fixture
def export() -> Callable[..., ExportReport]:
    """`export(path, ..., out=folder, **options)`: see `run_export`."""
    return run_export


@pytest.fixture
def files() -> Callable[[Path], dict[str, bytes]]:
    """`files(out)`: see `files_of`."""
    return files_of
