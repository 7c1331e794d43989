"""The disk of the file sink: what is to survive a loss of power is synced, and synced when it is all there."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from consumerd.handlers.builtin.disk import OsDisk

if TYPE_CHECKING:
    from pathlib import Path


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


def test_syncs_the_name_of_a_directory_that_another_process_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker may have been killed between the two."""
    synced: list[int] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        real(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    (tmp_path / "topic").mkdir()
    OsDisk().make_directory(tmp_path / "topic")
    assert synced == [tmp_path.stat().st_ino]
    synced.clear()
    OsDisk().make_directory(tmp_path / "topic" / "0-0" / "below")
    parents = (tmp_path, tmp_path / "topic", tmp_path / "topic" / "0-0")
    assert synced == [each.stat().st_ino for each in parents]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_makes_a_directory_below_one_that_cannot_be_synced(tmp_path: Path, number: int) -> None:
    class Closed(OsDisk):
        def sync_directory(self, directory: Path) -> None:
            if directory == tmp_path:
                raise OSError(number, os.strerror(number))
            super().sync_directory(directory)

    (tmp_path / "data").mkdir()
    Closed().make_directory(tmp_path / "data" / "topic")
    assert (tmp_path / "data" / "topic").is_dir()


def test_reports_a_disk_that_fails_while_a_directory_is_synced(tmp_path: Path) -> None:
    class Failing(OsDisk):
        def sync_directory(self, directory: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        Failing().make_directory(tmp_path)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_error_of_a_call_with_a_descriptor_names_the_file(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/data'"):
        OsDisk().write(tmp_path / "data", [b"x"])
