"""Segment files to cut splits from."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from consumerd.spark.source.split import FileRange, V07Split


class SegmentWriter(Protocol):
    """Writes a segment and gives the split that is all of it."""

    def __call__(self, *messages: bytes, start: int = 0, name: str = "") -> V07Split: ...


@pytest.fixture
def segment(tmp_path: Path) -> SegmentWriter:
    def write(*messages: bytes, start: int = 0, name: str = "") -> V07Split:
        data = b"".join(messages)
        path = tmp_path / (name or f"{start:020d}.kafka")
        path.write_bytes(data)
        return V07Split("events", 2, 3, start, start + len(data), FileRange(str(path), start))

    return write
