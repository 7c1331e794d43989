"""A disk on which a sync takes seconds, or fails: for one process, below one folder, switched while it runs.

Strategy: a small C library (`slow_disk.c`) that LD_PRELOAD puts before the C library. It sleeps in the thread that
calls fsync, fdatasync, rename or write, which is what a process sees of a busy disk; no right is needed for it.
It needs Linux and a C compiler: without one tests skip, with CI=true they fail.
"""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from consumerd.base.java import MissingRuntimeError

_SOURCE: Final = Path(__file__).with_suffix(".c")
#: `struct control`.
_SECONDS: Final = struct.Struct("=d")
_COUNT: Final = struct.Struct("=q")
_CONTROL: Final = struct.Struct("=ddqq")


def build_library(directory: Path) -> Path:
    """Compile the library into `directory` (about 0.1 s). Raises MissingRuntimeError where that is not possible."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        raise MissingRuntimeError("a slow disk needs Linux and a C compiler (Debian: apt-get install gcc libc6-dev)")
    library = directory / "slow_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise MissingRuntimeError(f"the library of slow disks cannot be compiled: {done.stderr.strip()[:500]}")
    return library


def library_or_skip(directory: Path) -> Path:
    """The same for tests: they skip where it cannot be compiled; with CI=true that is a failure."""
    try:
        return build_library(directory)
    except MissingRuntimeError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


class SlowDisk:
    """The switch of one process. Files below `folder`, which is there, are slow while `seconds` is set."""

    def __init__(self, library: Path, control: Path, folder: Path) -> None:
        if not control.exists():  # a process that maps it dies if it becomes shorter
            control.write_bytes(bytes(_CONTROL.size))
        #: For the environment of the process.
        self.environment = {
            "LD_PRELOAD": str(library), "SLOW_DISK_CONTROL": str(control), "SLOW_DISK_FOLDER": str(folder)
        }  # fmt: skip
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)
        _CONTROL.pack_into(self._map, 0, 0.0, 0.0, 0, 0)

    @property
    def seconds(self) -> float:
        """How much longer a sync or a rename takes. Calls that wait notice a change."""
        seconds: float = _CONTROL.unpack_from(self._map)[0]
        return seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        _SECONDS.pack_into(self._map, 0, seconds)

    @property
    def write_seconds(self) -> float:
        """How much longer a write to a file takes."""
        seconds: float = _CONTROL.unpack_from(self._map)[1]
        return seconds

    @write_seconds.setter
    def write_seconds(self, seconds: float) -> None:
        _SECONDS.pack_into(self._map, _SECONDS.size, seconds)

    @property
    def waiting(self) -> int:
        """How many calls wait for the disk now."""
        waiting: int = _CONTROL.unpack_from(self._map)[2]
        return waiting

    @property
    def failing(self) -> int:
        """The sync that returns EIO: 1 is the next one, 0 none."""
        failing: int = _CONTROL.unpack_from(self._map)[3]
        return failing

    @failing.setter
    def failing(self, number: int) -> None:
        _COUNT.pack_into(self._map, _CONTROL.size - _COUNT.size, number)

    def wrapper(self, executable: Path | str, script: Path) -> Path:
        """Write `script`, which runs `executable` with this disk, with the same process id."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {shlex.join(["env", *variables, str(executable)])} "$@"\n')
        script.chmod(0o755)
        return script

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._map.close()
