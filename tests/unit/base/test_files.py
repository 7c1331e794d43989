"""Files on the operating system; `tests.simulation.test_disk_errors` has what survives a loss of power."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.files import OsSystemCalls, StrPath, SystemFiles


def failing(call: str, error: int) -> SystemFiles:
    """Files on a system where this call fails."""

    def fail(self: OsSystemCalls, *arguments: Any) -> None:
        raise OSError(error, os.strerror(error))

    return SystemFiles(type("Failing", (OsSystemCalls,), {call: fail})())


def test_overwrites_a_file_and_compares_it_piece_by_piece(tmp_path: Path) -> None:
    files, path = SystemFiles(), tmp_path / "state"
    for data in (b"x" * 3_000_000, b"short"):
        files.write(path, [data[:3], data[3:]])
        assert path.read_bytes() == data
        assert files.holds(path, [data[:1], b"", data[1:]])
        assert not files.holds(path, [data[:-1]])
        assert not files.holds(path, [data, b"more"])


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EIO])
def test_makes_a_directory_below_one_of_somebody_else(tmp_path: Path, error: int) -> None:
    class Foreign(OsSystemCalls):
        def open(self, path: StrPath, flags: int) -> int:
            if path == tmp_path:
                raise OSError(error, os.strerror(error))
            return super().open(path, flags)

    (tmp_path / "data").mkdir()
    files = SystemFiles(Foreign())
    if error == errno.EIO:  # an error of the disk: the name may not be durable
        with pytest.raises(OSError, match=os.strerror(error)):
            files.make_directory(tmp_path / "data" / "topic")
    else:
        files.make_directory(tmp_path / "data" / "topic")
    assert (tmp_path / "data" / "topic").is_dir() == (error != errno.EIO)
    with pytest.raises(OSError, match=os.strerror(error)):
        files.make_directory(tmp_path / "ours")


def test_creates_a_file_where_the_file_system_has_no_hard_links(tmp_path: Path) -> None:
    files = failing("link", errno.EPERM)
    assert [files.create(tmp_path / "a", data) for data in (b"first", b"second")] == [True, False]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"first"}


def test_removes_a_link_to_a_directory_and_nothing_behind_it(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "x").touch()
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "link").symlink_to(tmp_path / "kept")
    SystemFiles().remove_tree(tmp_path / "tree")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "x"]


@pytest.mark.parametrize("call", ["write", "sync"])
def test_error_of_a_call_with_a_descriptor_names_the_file(tmp_path: Path, call: str) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '.*/data'"):
        failing(call, errno.ENOSPC).write(tmp_path / "data", [b"x"])
