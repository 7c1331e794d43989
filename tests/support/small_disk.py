"""A small file system that can be filled up.

Mounting one takes root; tests of other users skip, and so do those in containers that may not mount. With CI=true root
must be able to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A tmpfs of `size` bytes, mounted at `folder`, which is made."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"a tmpfs cannot be mounted: {mounted.stderr}")
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, spare: int = 0) -> Path:
    """A file that leaves `spare` bytes of room; remove it to make room again."""
    ballast = disk / "ballast"
    state = os.statvfs(disk)
    try:
        ballast.write_bytes(bytes(state.f_bavail * state.f_frsize - spare))
    except OSError as error:
        if error.errno != errno.ENOSPC:  # another thread writes at the same time: then it is full as well
            raise
    return ballast
