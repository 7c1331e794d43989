"""The disk forgets what it may and nothing else: or the log's tests on it would prove nothing."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumerd.storage import DirectoryEntry, DirectoryInUseError, OsFiles, StorageError
from tests.support.forgetful_disk import ForgetfulDisk, PowerLostError

ROOT = Path("/")


def outcomes(prepare: Callable[[ForgetfulDisk], None], *, power_lost: bool = True) -> Iterator[ForgetfulDisk]:
    for seed in range(60):
        disk = ForgetfulDisk(random.Random(seed))
        prepare(disk)
        disk.restart(power_lost=power_lost)
        yield disk


def content(disk: ForgetfulDisk, path: Path) -> bytes | None:
    return OsFiles(disk).read(path)


def test_keeps_synced_data() -> None:
    def prepare(disk: ForgetfulDisk) -> None:
        files = OsFiles(disk)
        files.make_directory(ROOT / "a" / "b")
        file = files.open(ROOT / "a" / "b" / "f", create=True)
        file.write_at(0, b"x" * 100)
        file.sync()
        file.write_at(100, b"y" * 100)

    seen = set()
    for disk in outcomes(prepare):
        data = content(disk, ROOT / "a" / "b" / "f")
        assert data is not None
        assert data[:100] == b"x" * 100
        seen.add("short" if len(data) < 200 else "long" if len(data) > 200 else "whole")
        seen.add("written" if data == b"x" * 100 + b"y" * 100 else "changed")
        seen.add("zeros" if b"\0" * 16 in data else "others")
    assert seen == {"short", "long", "whole", "written", "changed", "zeros", "others"}


def test_may_lose_names_that_were_not_synced() -> None:
    def make(disk: ForgetfulDisk) -> None:
        disk.make_directory(ROOT / "a")
        fd = disk.open(ROOT / "a" / "f", os.O_RDWR | os.O_CREAT)
        disk.write(fd, b"x", 0)
        disk.sync(fd)

    assert {tuple(disk.entries(ROOT)) for disk in outcomes(make)} == {(), (DirectoryEntry("a", True),)}
    inside = {tuple(disk.entries(ROOT / "a")) for disk in outcomes(make) if disk.is_directory(ROOT / "a")}
    assert inside == {(), (DirectoryEntry("f", False),)}
    for disk in outcomes(make, power_lost=False):
        assert content(disk, ROOT / "a" / "f") == b"x"

    def remove(disk: ForgetfulDisk) -> None:
        OsFiles(disk).open(ROOT / "f", create=True)
        disk.remove(ROOT / "f")

    assert {tuple(disk.entries(ROOT)) for disk in outcomes(remove)} == {(), (DirectoryEntry("f", False),)}


def test_replaces_a_file_atomically() -> None:
    for fuse in range(20):
        seen = set()
        for seed in range(30):
            disk = ForgetfulDisk(random.Random(seed))
            OsFiles(disk).replace(ROOT / "m", [b"old"])
            disk.lose_power_after(fuse)
            try:
                OsFiles(disk).replace(ROOT / "m", [b"new", b" one"])
                disk.lose_power_after(None)
            except PowerLostError:
                with pytest.raises(PowerLostError):
                    disk.entries(ROOT)
            else:
                assert fuse > 5
            disk.restart(power_lost=True)
            seen.add(content(disk, ROOT / "m"))
        assert seen <= {b"old", b"new one"}
        assert seen == {b"new one"} if fuse > 5 else b"old" in seen


def test_may_lose_a_truncation_that_was_not_synced() -> None:
    def prepare(disk: ForgetfulDisk) -> None:
        file = OsFiles(disk).open(ROOT / "f", create=True)
        file.write_at(0, b"x" * 40)
        file.sync()
        file.truncate(20)
        disk.truncate(file.fileno(), 10)

    found = [content(disk, ROOT / "f") for disk in outcomes(prepare)]
    assert found
    for data in found:
        assert data is not None
        assert 10 <= len(data) <= 20
        assert data[:10] == b"x" * 10


def test_raises_the_errors_of_a_real_file_system(tmp_path: Path) -> None:
    disk = ForgetfulDisk(random.Random(1))
    disk.make_directory(ROOT / "log")
    told = []
    for files, root in ((OsFiles(disk), ROOT / "log"), (OsFiles(), tmp_path)):
        files.open(root / "f", create=True).close()
        works: list[tuple[Callable[..., object], Path, dict[str, bool]]] = [
            (files.open, root / "f", {"create": True}),
            (files.open, root / "g", {"create": False}),
            (files.entries, root / "g", {}),
            (files.entries, root / "f", {}),
            (files.make_directory, root / "f", {}),
            (files.sync_directory, root / "g", {}),
        ]
        sentences = []
        for work, path, options in works:
            with pytest.raises(StorageError) as caught:
                work(path, **options)
            sentences.append(str(caught.value).replace(str(root), "ROOT"))
        with files.lock(root), pytest.raises(DirectoryInUseError), files.lock(root):
            pass
        with files.lock(root):
            files.sync_directory(root)
            with pytest.raises(DirectoryInUseError), files.lock(root):
                pass
        files.remove(root / "g")
        assert files.read(root / "g") is None
        told.append(sentences)
    assert told[0] == told[1]


@pytest.mark.parametrize("written_again", [False, True])
def test_failed_sync_is_not_repaired_by_the_next_one(written_again: bool) -> None:
    def write(disk: ForgetfulDisk) -> None:
        fd = disk.open(ROOT / "f", os.O_RDWR | os.O_CREAT)
        disk.write(fd, b"1" * 32, 0)
        for each in (fd, disk.open(ROOT, os.O_RDONLY)):
            disk.sync(each)
        disk.write(fd, b"2" * 32, 32)
        disk.fail_after(0, errno.EIO)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            disk.sync(fd)
        assert disk.failed == "sync"
        if written_again:
            disk.write(fd, b"2" * 32, 32)
        disk.sync(fd)

    found = {content(disk, ROOT / "f") for disk in outcomes(write)}
    assert (found == {b"1" * 32 + b"2" * 32}) == written_again
    assert all(data is not None and data.startswith(b"1" * 32) for data in found)
