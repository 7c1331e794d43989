r"""The demo's input: the lines of a file or folder, or of the Python standard library's own sources.

Strategy: lines are bytes between `\n`s with any content: empty, not UTF-8, megabytes long. Files are read line by
line in a fixed order (sorted by path), so the same input gives the same lines twice. The default input is cut off at
the size that a demo of some seconds can handle; an input that was named is taken whole.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.demo.errors import DemoInputError

DEFAULT_LINES: Final = 150_000
DEFAULT_BYTES: Final = 12_000_000


@dataclass(frozen=True, slots=True)
class Corpus:
    """The source of lines. `max_lines` and `max_bytes` (of payload) bound them; None: unbounded."""

    files: tuple[Path, ...]
    name: str
    max_lines: int | None = None
    max_bytes: int | None = None

    def lines(self) -> Iterator[bytes]:
        r"""The lines in order, each without its `\n`. Raises DemoInputError when a file cannot be read."""
        count = size = 0
        for path in self.files:
            try:
                with path.open("rb") as file:
                    for line in file:
                        payload = line.removesuffix(b"\n")
                        if count == self.max_lines or (
                            self.max_bytes is not None and size + len(payload) > self.max_bytes
                        ):
                            return
                        count += 1
                        size += len(payload)
                        yield payload
            except OSError as error:
                raise DemoInputError(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Measure:
    """Measures of all lines: their number, their bytes, the longest."""

    lines: int
    bytes: int
    longest: int


def measure(corpus: Corpus) -> Measure:
    """Read the corpus once. Raises DemoInputError, also when there is no line in it."""
    count = size = longest = 0
    for line in corpus.lines():
        count += 1
        size += len(line)
        longest = max(longest, len(line))
    if not count:
        raise DemoInputError(f"{corpus.name} holds no lines: name a file or folder with some text")
    return Measure(count, size, longest)


def _regular_files(folder: Path, skip: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All regular files below `folder`, sorted, but for folders named in `skip`.

    Symbolic links to folders are not followed, lest they form a circle.
    """

    def fail(error: OSError) -> None:
        raise DemoInputError(f"{error.filename} cannot be read: {error.strerror}") from error

    for where, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(set(folders) - skip)
        for name in sorted(names):
            path = Path(where) / name
            try:
                if stat.S_ISREG(path.stat().st_mode):  # no pipe, socket or device: reading one may never end
                    yield path
            except OSError:
                continue  # a dangling link, or removed meanwhile


def named_corpus(path: Path) -> Corpus:
    """All lines of a file, or of all files below a folder. Raises DemoInputError where it does not exist."""
    if path.is_dir():
        return Corpus(tuple(_regular_files(path)), str(path))
    if path.is_file():
        return Corpus((path,), str(path))
    what = "is neither a file nor a folder" if path.exists() else "does not exist"
    raise DemoInputError(f"the input {path} {what}: name a file or a folder with text")


def standard_library(max_lines: int | None = DEFAULT_LINES, max_bytes: int | None = DEFAULT_BYTES) -> Corpus:
    """The lines of the sources of the Python standard library that runs this, at most so many."""
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "os.py").is_file():
        raise DemoInputError(f"this Python has no sources of its standard library in {folder}: name an input")
    skip = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests"})
    files = (path for path in _regular_files(folder, skip) if path.suffix == ".py")
    return Corpus(tuple(files), "the Python standard library's sources", max_lines, max_bytes)
