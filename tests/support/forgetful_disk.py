"""A disk in memory that forgets: what was never synced may be lost, incomplete or invalid after a loss of power.

Strategy: every file and directory has two states, what a process sees and what is certain to be on the disk; a sync
makes the second equal to the first. A loss of power picks, by chance, something in between, name by name and block by
block, as pessimistic as POSIX allows: names are lost unless their directory was synced, blocks are lost, hold zeros or
random bytes (spec 003, 5.5 "Guarantees"). A killed process loses nothing, but a kill syncs nothing either. A fuse stops
the machine before any call that changes something: this tests the order of syncs in `consumerd.base.files`. Any of
these calls can fail instead, and the next ones succeed. After a failed sync the kernel takes the blocks of the file
for written: no later sync makes them certain, unless they are written again.

What the model does not know: stale blocks of deleted files. The 0.7 format has nothing against them, where they happen
to begin with whole messages.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from consumerd.base.files import FileEntry, StrPath

if TYPE_CHECKING:
    import random


class PowerLostError(BaseException):
    """The machine has stopped. Not an `Exception`: no code may continue after it."""


class _Status(NamedTuple):
    st_size: int
    st_mtime_ns: int
    st_ino: int
    st_mode: int
    st_dev: int = 1


@dataclass(slots=True, eq=False)
class _File:
    data: bytearray = field(default_factory=bytearray)
    certain: bytes = b""
    modified_ns: int = 0
    #: Where bytes begin and end that a failed sync has left uncertain for good.
    lost: tuple[int, int] = (0, 0)
    locked_by: int | None = None


@dataclass(slots=True, eq=False)
class _Directory:
    names: dict[str, _File | _Directory] = field(default_factory=dict)
    certain: dict[str, _File | _Directory] = field(default_factory=dict)
    locked_by: int | None = None


class ForgetfulDisk:
    """Implements `consumerd.base.files.SystemCalls`; paths are absolute. Not safe to use from several threads."""

    def __init__(self, rng: random.Random, *, block: int = 16) -> None:
        self._rng = rng
        self._block = block
        self._root = _Directory()
        self._open: dict[int, _File | _Directory] = {}
        self._next = 3
        self._fuse: int | None = None
        self._off = False
        self._error: tuple[int, int] | None = None
        #: The name of the call that failed.
        self.failed: str | None = None
        #: The time that is recorded for a change, in nanoseconds.
        self.now_ns = 0
        #: Changing calls so far.
        self.changes = 0

    # -- what happens to the machine

    def lose_power_after(self, changes: int | None) -> None:
        """Let the power fail instead of the next change but `changes`; None: never."""
        self._fuse = changes

    def fail_after(self, changes: int, error: int) -> None:
        """Let the next change but `changes` fail with this number of `errno`."""
        self._error = changes, error

    def restart(self, *, power_lost: bool) -> None:
        """Start again after a loss of power, or after the process alone was killed. Nothing is open."""
        self._open.clear()
        self._fuse = None
        self._off = False
        if power_lost:
            self._forget(self._root)
        self._unlock(self._root)

    def _unlock(self, directory: _Directory) -> None:
        for node in (directory, *directory.names.values()):
            node.locked_by = None
            if isinstance(node, _Directory) and node is not directory:
                self._unlock(node)

    def _forget(self, directory: _Directory) -> None:
        seen = dict(directory.names)
        for name in sorted(directory.names.keys() | directory.certain.keys()):
            now, before = directory.names.get(name), directory.certain.get(name)
            left = now if now is before else self._rng.choice([now, before])
            directory.names.pop(name, None)
            if left is not None:
                directory.names[name] = left
                if isinstance(left, _Directory):
                    self._forget(left)
                else:
                    self._forget_blocks(left)
        # A rename within a directory is atomic: a file that had a name before and after has one of them.
        for name, node in directory.certain.items():
            renamed = any(node is each for each in seen.values())
            if renamed and name not in directory.names and not any(node is each for each in directory.names.values()):
                directory.names[name] = node
        directory.certain = dict(directory.names)

    def _forget_blocks(self, file: _File) -> None:
        now, certain = bytes(file.data), file.certain
        if now == certain:
            return
        rng, block = self._rng, self._block
        low, high = sorted((len(now), len(certain)))
        harm = rng.choice([0.0, 0.1, 0.5, 1.0])
        size = len(now) if rng.random() >= harm else rng.choice([low, rng.randint(low, high)])
        left = bytearray()
        for start in range(0, size, block):
            end = min(start + block, size)
            old, new = certain[start:end], now[start:end]
            length = end - start
            outcomes = [old]
            if len(old) < length:  # never written before
                outcomes += [bytes(length), rng.randbytes(length)]
            chosen = rng.choice(outcomes) if rng.random() < harm else new
            # A block is written whole: what did not change in it stays.
            pairs = zip(old, new, strict=False)
            untouched = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
            left += (old[:untouched] + chosen[untouched:]).ljust(length, b"\0")
        if len(certain) <= len(now) and size == len(now) and rng.random() < harm / 4:
            left += rng.choice([bytes(block), rng.randbytes(block)])
        file.data, file.certain = left, bytes(left)

    def _change(self, call: str = "") -> None:
        self._check()
        self.changes += 1
        if self._error is not None:
            left, error = self._error
            self._error = (left - 1, error) if left else None
            if not left:
                self.failed = call
                raise _refusal(OSError, error)
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self._off = True
                raise PowerLostError

    def _check(self) -> None:
        if self._off:
            raise PowerLostError

    # -- finding things

    def _find(self, path: StrPath) -> _File | _Directory:
        self._check()
        node: _File | _Directory = self._root
        for name in Path(path).parts[1:]:
            if not isinstance(node, _Directory):
                raise _refusal(NotADirectoryError, errno.ENOTDIR)
            if name not in node.names:
                raise _refusal(FileNotFoundError, errno.ENOENT)
            node = node.names[name]
        return node

    def _directory(self, path: StrPath) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise _refusal(NotADirectoryError, errno.ENOTDIR)
        return node

    def _place(self, path: StrPath) -> tuple[_Directory, str]:
        """The directory that a name is in, and the name."""
        return self._directory(Path(path).parent), Path(path).name

    def _node(self, fd: int) -> _File | _Directory:
        self._check()
        if fd not in self._open:
            raise _refusal(OSError, errno.EBADF)
        return self._open[fd]

    def _file(self, fd: int) -> _File:
        node = self._node(fd)
        if not isinstance(node, _File):
            raise _refusal(OSError, errno.EBADF)
        return node

    # -- the calls

    def open(self, path: StrPath, flags: int) -> int:
        parent, name = self._place(path)
        node: _File | _Directory | None = parent.names.get(name) if name else parent
        if flags & os.O_CREAT:
            if node is not None and flags & os.O_EXCL:
                raise _refusal(FileExistsError, errno.EEXIST)
            self._change("open")
            if node is None:
                node = parent.names[name] = _File(modified_ns=self.now_ns)
            if flags & os.O_TRUNC and isinstance(node, _File):
                node.data.clear()
                node.lost = 0, 0
        if node is None:
            raise _refusal(FileNotFoundError, errno.ENOENT)
        if flags & os.O_DIRECTORY and not isinstance(node, _Directory):
            raise _refusal(NotADirectoryError, errno.ENOTDIR)
        self._next += 1
        self._open[self._next] = node
        return self._next

    def close(self, fd: int) -> None:
        node = self._open.pop(fd, None)  # what was open before a restart is closed already
        if node is not None and node.locked_by == fd:
            node.locked_by = None

    def status(self, file: int | StrPath) -> _Status:
        node = self._node(file) if isinstance(file, int) else self._find(file)
        if isinstance(node, _Directory):
            return _Status(0, 0, id(node), stat.S_IFDIR | 0o755)
        return _Status(len(node.data), node.modified_ns, id(node), stat.S_IFREG | 0o644)

    def read(self, fd: int, length: int, position: int) -> bytes:
        return bytes(self._file(fd).data[position : position + length])

    def write(self, fd: int, data: bytes | memoryview, position: int) -> int:
        file = self._file(fd)
        self._change("write")
        start, end = file.lost
        if position <= start:
            file.lost = max(start, position + len(data)), end
        if len(file.data) < position:
            file.data += bytes(position - len(file.data))
        file.data[position : position + len(data)] = data
        file.modified_ns = self.now_ns
        return len(data)

    def append(self, fd: int, data: bytes | memoryview) -> int:
        return self.write(fd, data, len(self._file(fd).data))

    def truncate(self, fd: int, size: int) -> None:
        file = self._file(fd)
        self._change("truncate")
        file.lost = min(size, file.lost[0]), min(size, file.lost[1])
        del file.data[size:]
        file.data += bytes(size - len(file.data))
        file.modified_ns = self.now_ns

    def sync(self, fd: int) -> None:
        self._check()
        node = self._open[fd]
        try:
            self._change("sync")
        except OSError:
            if isinstance(node, _File):
                same = zip(node.data, node.certain, strict=False)
                start = next((at for at, (one, other) in enumerate(same) if one != other), len(node.certain))
                node.lost = start, max(len(node.data), node.lost[1])
            raise
        if isinstance(node, _Directory):
            node.certain = dict(node.names)
        else:
            start, end = node.lost
            lost = node.certain[start:end].ljust(max(0, min(end, len(node.data)) - start), b"\0")
            node.certain = bytes(node.data) if start >= end else bytes(node.data[:start] + lost + node.data[end:])

    def sync_data(self, fd: int) -> None:
        self.sync(fd)

    def make_directory(self, path: StrPath) -> None:
        parent, name = self._place(path)
        if name in parent.names:
            raise _refusal(FileExistsError, errno.EEXIST)
        self._change("mkdir")
        parent.names[name] = _Directory()

    def is_directory(self, path: StrPath) -> bool:
        try:
            return isinstance(self._find(path), _Directory)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def entries(self, directory: StrPath) -> list[FileEntry]:
        names = self._directory(directory).names
        return [FileEntry(name, isinstance(node, _Directory)) for name, node in names.items()]

    def remove(self, path: StrPath) -> None:
        parent, name = self._place(path)
        if isinstance(self._find(path), _Directory):
            raise _refusal(IsADirectoryError, errno.EISDIR)
        self._change("remove")
        del parent.names[name]

    def remove_directory(self, path: StrPath) -> None:
        parent, name = self._place(path)
        if self._directory(path).names:
            raise _refusal(OSError, errno.ENOTEMPTY)
        self._change("remove")
        del parent.names[name]

    def link(self, source: StrPath, target: StrPath) -> None:
        there, name = self._place(target)
        if name in there.names:
            raise _refusal(FileExistsError, errno.EEXIST)
        self._change("link")
        there.names[name] = self._find(source)

    def replace(self, source: StrPath, target: StrPath) -> None:
        (here, old), (there, new) = self._place(source), self._place(target)
        self._find(source)
        self._change("rename")
        there.names[new] = here.names.pop(old)

    def lock(self, fd: int) -> None:
        node = self._node(fd)
        if node.locked_by is not None:
            raise _refusal(BlockingIOError, errno.EWOULDBLOCK)
        node.locked_by = fd

    def unlock(self, fd: int) -> None:
        self._node(fd).locked_by = None

    def unique_name(self) -> str:
        return self._rng.randbytes(8).hex()

    def cached(self, fd: int, position: int) -> bool:
        self._check()
        return True


def _refusal(kind: Callable[[int, str], OSError], number: int) -> OSError:
    return kind(number, os.strerror(number))
