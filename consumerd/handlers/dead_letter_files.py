"""Dead letters in files: each is on disk before the offset of its message may be committed.

Strategy: an append-only NDJSON file, one write(2) with O_APPEND and one fsync for all letters of a failure (for each
few thousand where there are more), so that members on one host can share the file. Before a write would bring it over
its size, it is renamed, with a number in its name, and a new one is begun; a lock on the file itself (flock) keeps
members from renaming at once. Where the lock is unavailable (a frozen member has it, or the file system has none) the
letter is appended without it, and the file may grow beyond its size: a letter is more important than a size.

A full disk raises DiskFullError; where the lock was held, nothing of the letters stays in the file.

Only the user deletes files, so together they have a limit, at which the daemon stops, and any may
be moved away at any time: the next letter goes to a new one. A handler that refuses everything must not fill the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from consumerd.base.errors import ConfigError, HandlerFailedError, NotFoundError
from consumerd.base.files import SystemCalls, SystemFiles
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers.dead_letters import DeadLetters, Letter, StoredLetter, decode_letter, encode_letter
from consumerd.handlers.disk_full import DiskFullError, is_disk_full
from consumerd.handlers.threads import in_thread

#: Seconds to wait for other members' writes.
_LOCK_SECONDS: Final = 5.0
_LOCK_PAUSE: Final = 0.01
#: Bytes of one line that are read: larger ones are not our letters.
MAX_LINE: Final = 256 << 20


class FileDeadLetters(DeadLetters):
    """Appends letters to the file at `path`, made (with its folders) when missing.

    Each line is what `dead_letters.encode_letter` makes. A line that a crash cut short stays, and the
    next one begins on its own. At `file_size` bytes `name.ndjson` becomes `name.000001.ndjson`, the next number; all
    files grow up to `max_size` bytes.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Clock,
        max_size: int = HandlerSection.dead_letter_max_size,
        file_size: int = HandlerSection.dead_letter_file_size,
        files: SystemFiles | None = None,
    ) -> None:
        self._path = Path(path)
        self._files = files or SystemFiles()
        self._system = self._files.system
        self._clock = clock
        self._max_size = max_size
        self._file_size = file_size
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return str(self._path)

    def check(self) -> None:
        """Raise ConfigError where `start` could not make the file. Nothing is made: another user may be looking."""
        path = self._path
        if path.is_dir():
            raise ConfigError(f"handler.dead_letter: {path} is a directory; name a file.")
        there = path if path.exists() else next(parent for parent in path.absolute().parents if parent.exists())
        if there != path and not there.is_dir():
            raise ConfigError(f"handler.dead_letter: {path} cannot be created: {there} is not a directory.")
        if not os.access(there, os.W_OK if there == path else os.W_OK | os.X_OK):
            raise ConfigError(f"handler.dead_letter: {path} cannot be written: no permission for {there}.")

    async def start(self) -> None:
        try:
            await in_thread(self._open)
        except OSError as error:
            if is_disk_full(error) and error.errno != errno.EROFS:
                raise DiskFullError(
                    f"the dead-letter file {self._path} cannot be opened: {error.strerror}; make room."
                ) from error
            raise ConfigError(
                f"handler.dead_letter: the dead-letter file {self._path} cannot be opened: {error.strerror}."
            ) from error

    async def write(self, letters: Sequence[Letter]) -> None:
        try:
            await in_thread(lambda: self._append(letters))
        except OSError as error:
            raised = DiskFullError if is_disk_full(error) else HandlerFailedError
            raise raised(
                f"cannot write to the dead-letter file {self._path}: {error.strerror}; "
                "the messages are not committed and are delivered again after a restart."
            ) from error

    async def stop(self) -> None:
        self._close()

    # -- in a thread, one at a time

    def _open(self) -> int:
        if self._descriptor is not None and self._was_moved(self._descriptor):
            self._close()
        if self._descriptor is None:
            self._files.make_directory(self._path.parent)
            self._descriptor = self._system.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            try:
                self._sync_folder()  # without it the new file does not survive a loss of power
            except OSError:
                self._close()  # so that the next attempt syncs it
                raise
        return self._descriptor

    def _sync_folder(self) -> None:
        self._files.sync_directory(self._path.parent)

    def _was_moved(self, descriptor: int) -> bool:
        """Whether the path names another file by now, or none."""
        try:
            here, there = self._system.status(descriptor), self._system.status(self._path)
        except FileNotFoundError:
            return True
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def _close(self) -> None:
        if self._descriptor is not None:
            self._system.close(self._descriptor)  # and with it the lock
            self._descriptor = None

    def _append(self, letters: Sequence[Letter]) -> None:
        now = self._clock.wall()
        lines = b"".join(encode_letter(letter, now) + b"\n" for letter in letters)
        with self._lock:
            descriptor, locked = self._opened_for(len(lines) + 1)
            try:
                self._write(descriptor, lines, locked=locked)
            finally:
                if locked and self._descriptor is not None:
                    self._system.unlock(descriptor)

    def _opened_for(self, size: int) -> tuple[int, bool]:
        """The file with room for `size` bytes, and whether it is locked. Raises HandlerFailedError at the limit."""
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            descriptor = self._open()
            locked = _lock(self._system, descriptor, until)
            if locked and self._was_moved(descriptor):
                continue  # by another member, while we waited
            status = self._system.status(descriptor)
            total = status.st_size + sum(self._files.size(path) or 0 for path in _rotated(self._path, self._files))
            if total + size > self._max_size:
                raise HandlerFailedError(
                    f"the dead-letter file {self._path}, with older ones beside it, has {total} bytes and would exceed "
                    f"handler.dead_letter_max_size ({self._max_size}): find out why messages fail, then move the files "
                    "away or raise this limit; the messages stay uncommitted and come again after a restart."
                )
            regular = stat.S_ISREG(status.st_mode)
            if not (locked and regular and status.st_size and status.st_size + size > self._file_size):
                return descriptor, locked and regular
            self._rotate()

    def _rotate(self) -> None:
        """Give the file, which we have locked, its number. The next `_open` begins a new one."""
        numbers = [_number(self._path, path.name) or 0 for path in _rotated(self._path, self._files)]
        self._files.rename(self._path, _numbered(self._path, max(numbers, default=0) + 1))
        self._sync_folder()

    def _write(self, descriptor: int, lines: bytes, *, locked: bool) -> None:
        system = self._system
        size = system.status(descriptor).st_size
        torn = size > 0 and system.read(descriptor, 1, size - 1) != b"\n"
        data = memoryview(b"\n" * torn + lines)
        try:
            while data:
                data = data[system.append(descriptor, data) :]
            system.sync(descriptor)
        except OSError:
            if locked:  # no other writer since: take back the part of a line that a full disk left
                with contextlib.suppress(OSError):
                    system.truncate(descriptor, size)
            raise


def _lock(system: SystemCalls, descriptor: int, until: float) -> bool:
    while True:
        try:
            system.lock(descriptor)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR) or time.monotonic() >= until:
                return False
        else:
            return True
        time.sleep(_LOCK_PAUSE)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number:06}{path.suffix}")


def _number(path: Path, name: str) -> int | None:
    match = re.fullmatch(rf"{re.escape(path.stem)}\.([0-9]{{6,18}}){re.escape(path.suffix)}", name)
    return None if match is None else int(match[1])


def _rotated(path: Path, files: SystemFiles) -> list[Path]:
    """The renamed files of `path`, oldest first."""
    names = [entry.name for entry in files.entries(path.parent)]
    found = [(number, path.with_name(name)) for name in names if (number := _number(path, name)) is not None]
    return [other for _, other in sorted(found)]


# -- reading


class LetterLine(NamedTuple):
    """One line of a file. `letter` is None where the line is not a letter, and `problem` says why."""

    path: Path
    #: Its start and end, the newline included.
    start: int
    end: int
    letter: StoredLetter | None
    problem: str = ""


def letter_files(path: Path) -> list[Path]:
    """The file of letters at `path` and those that it was renamed to, oldest first.

    Raises NotFoundError for none, ConfigError where the folder cannot be read.
    """
    try:
        found = [*_rotated(path, SystemFiles()), *([path] if path.exists() else [])]
    except (FileNotFoundError, NotADirectoryError):
        found = []
    except OSError as error:
        raise ConfigError(f"the dead letters at {path} cannot be read: {error.strerror}.") from error
    if not found:
        raise NotFoundError(f"there are no dead letters at {path}: the file does not exist.")
    return found


@contextlib.contextmanager
def opened_letters(path: Path) -> Iterator[BinaryIO]:
    """The file, which may be renamed while it is read. Raises ConfigError where it cannot be read."""
    with _reading(path):
        file = path.open("rb")
    with file:
        yield file


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Around calls that read, and nothing else: an error of whatever is done with the lines is not one of the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the dead letters at {path} cannot be read: {error.strerror}.") from error


def file_digest(file: BinaryIO, path: Path) -> str:
    """The identity of an open file, called `path`: a digest of its first line, which no other file of letters has."""
    import hashlib  # noqa: PLC0415 - takes half a MiB, and only replays need it

    with _reading(path):
        file.seek(0)
        return hashlib.sha256(file.readline(MAX_LINE)).hexdigest()


def read_lines(file: BinaryIO, path: Path, start: int = 0) -> Iterator[LetterLine]:
    """The lines of an open file, called `path`, from byte `start` on, which is where a line begins.

    A last line without its newline is left out: it is being written, or was cut off.
    """
    with _reading(path):
        file.seek(start)
    while True:
        with _reading(path):
            line = rest = file.readline(MAX_LINE)
            while len(rest) == MAX_LINE and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE)
            end = file.tell()
        if not line or (line is rest and not line.endswith(b"\n")):
            return
        yield _line(path, start, end, line)
        start = end


def _line(path: Path, start: int, end: int, line: bytes) -> LetterLine:
    if end - start > len(line):
        return LetterLine(path, start, end, None, f"it is longer than {MAX_LINE} bytes")
    try:
        return LetterLine(path, start, end, decode_letter(line))
    except ValueError as error:
        return LetterLine(path, start, end, None, str(error))
