"""The disk of the file sink: what is to survive a loss of power is synced, and synced when it is all there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from consumerd.handlers.builtin.disk import OsDisk

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_syncs_a_written_file_with_all_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, int]] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        real(descriptor)
        status = os.fstat(descriptor)
        synced.append((status.st_ino, status.st_size))

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "state"
    for data in (b"x" * 3_000_000, b"short"):
        synced.clear()
        OsDisk().write(path, [data[:1000], data[1000:]])
        assert path.read_bytes() == data
        assert synced == [(path.stat().st_ino, len(data))]
