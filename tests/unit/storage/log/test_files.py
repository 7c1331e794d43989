import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from consumerd.base import files as system_module
from consumerd.base.files import StrPath
from consumerd.storage import DirectoryEntry, DirectoryInUseError, OsFiles, OsSystemCalls, StorageError
from consumerd.storage.log import files as files_module


@pytest.fixture
def files() -> OsFiles:
    return OsFiles()


def test_write_and_read_at_positions(files: OsFiles, tmp_path: Path) -> None:
    file = files.open(tmp_path / "f", create=True)
    file.write_at(0, b"hello")
    file.write_at(5, b" world")
    assert file.read_at(3, 100) == b"lo world"
    assert file.read_at(11, 1) == b""
    assert file.size() == 11
    file.truncate(5)
    file.sync()
    assert file.size() == 5
    assert file.modified_ms() == os.stat(tmp_path / "f").st_mtime_ns // 1_000_000
    file.close()


def test_others_may_read_new_files_but_not_write_them(files: OsFiles, tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        files.open(tmp_path / "f", create=True).close()
        files.replace(tmp_path / "m", [b"x"])
    finally:
        os.umask(former)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("f", "m")] == [0o644, 0o644]


def test_create_rejects_an_existing_file_and_open_a_missing_one(files: OsFiles, tmp_path: Path) -> None:
    files.open(tmp_path / "f", create=True).close()
    with pytest.raises(StorageError, match=r"cannot create .*/f: File exists"):
        files.open(tmp_path / "f", create=True)
    with pytest.raises(StorageError, match=r"cannot open .*/g: No such file"):
        files.open(tmp_path / "g", create=False)


_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from consumerd.storage import OsFiles, StorageError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = OsFiles().open(Path(sys.argv[1]), create=True)
file.write_at(0, b"x" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
try:
    file.write_at(100, b"y" * 100)
except StorageError as error:
    print(file.size(), error)
"""


def test_failed_write_is_undone(tmp_path: Path) -> None:
    """A file size limit, in a process of its own, stands in for a full disk: the write stops half way."""
    path = tmp_path / "f"
    done = subprocess.run([sys.executable, "-c", _FULL_DISK, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"100 cannot append to {path}: File too large\n"
    assert path.read_bytes() == b"x" * 100


def test_creates_lists_and_removes_entries(files: OsFiles, tmp_path: Path) -> None:
    files.make_directory(tmp_path / "a" / "b")
    files.make_directory(tmp_path / "a" / "b")
    files.open(tmp_path / "a" / "f", create=True).close()
    assert files.entries(tmp_path / "a") == [DirectoryEntry("b", True), DirectoryEntry("f", False)]
    files.remove(tmp_path / "a" / "f")
    files.remove(tmp_path / "a" / "f")
    assert files.entries(tmp_path / "a") == [DirectoryEntry("b", True)]
    with pytest.raises(StorageError, match="cannot list"):
        files.entries(tmp_path / "missing")
    with pytest.raises(StorageError, match="cannot create"):
        files.make_directory(tmp_path / "a" / ("n" * 300))


def test_removes_a_file_whose_directory_could_not_be_synced(tmp_path: Path) -> None:
    """Or the next try to roll to it would find it there, and so would every one after."""

    class BrokenSync(Counted):
        def sync(self, fd: int) -> None:  # type: ignore[override]
            raise OSError(errno.EIO, "Input/output error")

    system = BrokenSync()
    with pytest.raises(StorageError, match=r"cannot create .*/f: Input/output error"):
        OsFiles(system).open(tmp_path / "f", create=True)
    assert system.paths == {}
    OsFiles().open(tmp_path / "f", create=True).close()


def test_reports_what_is_in_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(tmp_path / "f", create=True)
    file.write_at(0, bytes(100_000))
    assert file.cached(0, 100_000)
    file.close()
    assert file.cached(0, 10)  # reading it raises the error

    def cold(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        if position + len(buffers[0]) > 4096:
            raise BlockingIOError
        return 1

    if hasattr(os, "RWF_NOWAIT"):
        file = OsFiles().open(tmp_path / "f", create=False)
        monkeypatch.setattr(os, "preadv", cold)
        assert [file.cached(0, length) for length in (4096, 4097)] == [True, False]
        assert not file.cached(5000, 10)


def test_counts_as_cached_where_the_system_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(fd: int, buffers: object, position: int, flags: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    def cold(fd: int, buffers: object, position: int, flags: int) -> int:
        raise BlockingIOError

    file = OsFiles().open(tmp_path / "f", create=True)
    file.write_at(0, b"x")
    monkeypatch.setattr(system_module, "_NO_WAIT", 1)
    monkeypatch.setattr(os, "preadv", unsupported, raising=False)
    assert file.cached(0, 1)  # not on this file system
    monkeypatch.setattr(system_module, "_NO_WAIT", None)
    monkeypatch.setattr(os, "preadv", cold, raising=False)
    assert file.cached(0, 1)  # not on this system at all
    file.close()


def test_replaces_small_files_atomically(files: OsFiles, tmp_path: Path) -> None:
    assert files.read(tmp_path / "m") is None
    files.replace(tmp_path / "m", [b"1"])
    files.replace(tmp_path / "m", (piece for piece in (b"2", b"", b"3")))
    assert files.read(tmp_path / "m") == b"23"
    assert files.entries(tmp_path) == [DirectoryEntry("m", False)]


def test_locks_a_directory_for_one_process(files: OsFiles, tmp_path: Path) -> None:
    with (
        files.lock(tmp_path),
        pytest.raises(DirectoryInUseError, match="in use by another broker"),
        files.lock(tmp_path),
    ):
        pass
    with files.lock(tmp_path):
        pass


class Counted(OsSystemCalls):
    """Reads and writes three bytes at a time, keeps count of descriptors and reads, and notes what is synced."""

    def __init__(self) -> None:
        self.paths: dict[int, StrPath] = {}
        self.synced: list[StrPath] = []
        self.reads = 0

    def open(self, path: StrPath, flags: int) -> int:
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        del self.paths[fd]
        os.close(fd)

    def read(self, fd: int, length: int, position: int) -> bytes:
        self.reads += 1
        return os.pread(fd, min(3, length), position)

    def write(self, fd: int, data: bytes | memoryview, position: int) -> int:  # type: ignore[override]
        return os.pwrite(fd, data[:3], position)

    def sync(self, fd: int) -> None:  # type: ignore[override]
        self.synced.append(self.paths[fd])
        os.fsync(fd)

    def sync_data(self, fd: int) -> None:  # type: ignore[override]
        self.sync(fd)


def test_completes_reads_and_writes_that_the_system_cuts_short(tmp_path: Path) -> None:
    system = Counted()
    files = OsFiles(system)
    file = files.open(tmp_path / "f", create=True)
    file.write_at(0, b"0123456789")
    file.write_at(10, b"abcdefgh")
    assert file.read_at(1, 11) == b"123456789ab"
    assert file.read_at(15, 100) == b"fgh"
    files.replace(tmp_path / "m", [b"0123456789", b"abcd", b""])
    assert files.read(tmp_path / "m") == b"0123456789abcd"
    file.close()
    assert system.paths == {}


@pytest.mark.parametrize(("position", "calls"), [(0, 1), (2, 1), (3, 2), (5, 1)])
def test_reads_again_only_after_a_short_read(tmp_path: Path, position: int, calls: int) -> None:
    (tmp_path / "f").write_bytes(b"01234")
    system = Counted()
    file = OsFiles(system).open(tmp_path / "f", create=False)
    assert file.read_at(position, 3) == b"01234"[position : position + 3]
    assert system.reads == calls
    file.close()


def test_append_to_a_full_disk_leaves_nothing_of_the_set(tmp_path: Path) -> None:
    class Full(Counted):
        def write(self, fd: int, data: bytes | memoryview, position: int) -> int:  # type: ignore[override]
            if position >= 6:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fd, data, position)

    file = OsFiles(Full()).open(tmp_path / "f", create=True)
    file.write_at(0, b"012")
    with pytest.raises(StorageError, match=r"cannot append to .*/f: No space left on device"):
        file.write_at(3, b"345678")
    assert (tmp_path / "f").read_bytes() == b"012"
    file.write_at(3, b"3")
    assert (tmp_path / "f").read_bytes() == b"0123"
    file.close()


def test_syncs_and_locks_directories_only(files: OsFiles, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(StorageError, match=r"cannot sync .*/f: Not a directory"):
        files.sync_directory(tmp_path / "f")
    with pytest.raises(StorageError, match=r"cannot lock .*/f: Not a directory"), files.lock(tmp_path / "f"):
        pass


def test_syncs_what_must_last_and_keeps_no_descriptor(tmp_path: Path) -> None:
    system = Counted()
    files = OsFiles(system)

    def synced() -> list[StrPath]:
        paths, system.synced = system.synced, []
        assert not set(system.paths) or list(system.paths.values()) == [tmp_path / "a" / "f"]
        return paths

    files.make_directory(tmp_path / "a" / "b")
    assert synced() == [tmp_path.parent, tmp_path, tmp_path / "a"]
    files.make_directory(tmp_path / "a")
    assert synced() == [tmp_path]  # a killed process may have made it and not synced it
    file = files.open(tmp_path / "a" / "f", create=True)
    assert synced() == [tmp_path / "a"]
    file.write_at(0, b"x")
    assert synced() == []
    file.sync()
    assert synced() == [tmp_path / "a" / "f"]
    file.truncate(0)
    assert synced() == [tmp_path / "a" / "f"]
    file.modified_ms()
    file.close()
    files.open(tmp_path / "a" / "f", create=False).close()
    assert synced() == []
    files.replace(tmp_path / "m", [b"x"])
    assert synced() == [tmp_path / "m.tmp", tmp_path]
    files.remove(tmp_path / "m")
    assert synced() == [tmp_path]
    files.sync_directory(tmp_path / "a")
    assert synced() == [tmp_path / "a"]
    with files.lock(tmp_path):
        pass
    assert system.paths == {}


def test_rests_until_it_is_used_again(tmp_path: Path) -> None:
    system = Counted()
    file = OsFiles(system).open(tmp_path / "f", create=True)
    file.rest()
    assert len(system.paths) == 1  # it was opened since the last call
    file.rest()
    assert system.paths == {}
    file.write_at(0, b"abc")
    file.rest()
    assert len(system.paths) == 1  # it was used since the last call
    file.rest()
    assert system.paths == {}
    assert file.read_at(0, 3) == b"abc"
    file.rest(at_once=True)
    assert system.paths == {}
    assert file.size() == 3
    file.close()
    file.close()
    assert system.paths == {}
    for use in (file.size, file.modified_ms, file.fileno, lambda: file.read_at(0, 1)):
        with pytest.raises(StorageError, match="Bad file descriptor"):
            use()


def test_threads_that_use_a_resting_file_share_one_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Noticed:
        """A lock that counts those who have come to it."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.come = threading.Semaphore(0)

        def __enter__(self) -> None:
            self.come.release()
            self.lock.acquire()

        def __exit__(self, *exception: object) -> None:
            self.lock.release()

    class Slow(Counted):
        """Opens a file again only when both threads want it."""

        def open(self, path: StrPath, flags: int) -> int:
            if rested and second.ident is None:
                second.start()
                for _ in range(2):
                    assert opening.come.acquire(timeout=60)
            return super().open(path, flags)

    found: list[int] = []
    opening, rested = Noticed(), False
    second = threading.Thread(target=lambda: found.append(file.fileno()))
    monkeypatch.setattr(files_module, "_opening", opening)
    system = Slow()
    file = OsFiles(system).open(tmp_path / "f", create=True)
    file.rest(at_once=True)
    rested = True
    found.append(file.fileno())
    second.join(60)
    assert found == list(system.paths) * 2
    file.close()
    assert system.paths == {}


def test_another_process_may_make_the_directory_first(tmp_path: Path) -> None:
    class Slow(OsSystemCalls):
        def make_directory(self, path: StrPath) -> None:  # type: ignore[override]
            Path(path).mkdir()
            raise FileExistsError(errno.EEXIST, "File exists")

    OsFiles(Slow()).make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot create .*/f: Not a directory"):
        OsFiles().make_directory(tmp_path / "f")


def test_reports_a_lock_that_the_file_system_does_not_have(tmp_path: Path) -> None:
    class Unlockable(Counted):
        def lock(self, fd: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

    system = Unlockable()
    with pytest.raises(StorageError, match=r"cannot lock .*: No locks available"), OsFiles(system).lock(tmp_path):
        pass
    assert system.paths == {}


def test_failed_replacement_keeps_the_former_file(tmp_path: Path) -> None:
    class Broken(Counted):
        def replace(self, source: StrPath, target: StrPath) -> None:  # type: ignore[override]
            raise OSError(errno.EIO, "Input/output error")

    OsFiles().replace(tmp_path / "m", [b"old"])
    system = Broken()
    with pytest.raises(StorageError, match=r"cannot write .*/m: Input/output error"):
        OsFiles(system).replace(tmp_path / "m", [b"new"])
    assert (tmp_path / "m").read_bytes() == b"old"
    assert system.paths == {}
