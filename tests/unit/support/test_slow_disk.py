"""The library that makes a disk slow holds what it shall, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from consumerd.base.java import MissingRuntimeError
from tests.support.slow_disk import SlowDisk, build_library, library_or_skip

_PROGRAM = """
import os, sys
for folder in sys.argv[1:]:
    with open(f"{folder}/file", "wb", buffering=0) as file:
        file.write(b"x")
        os.fsync(file.fileno())
    os.rename(f"{folder}/file", f"{folder}/renamed")
    print(folder, flush=True)
"""


def until_waiting(disk: SlowDisk, calls: int) -> None:
    end = time.monotonic() + 60
    while disk.waiting != calls:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_sync_and_rename_wait_below_the_folder_and_nowhere_else(tmp_path: Path) -> None:
    (slow := tmp_path / "slow").mkdir()
    (other := tmp_path / "slower").mkdir()
    with SlowDisk(library_or_skip(tmp_path), tmp_path / "control", slow) as disk:
        disk.seconds = 9000.0
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(other), str(slow)],
            env={**os.environ, **disk.environment}, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == f"{other}\n"
            until_waiting(disk, 1)
            assert (slow / "file").read_bytes() == b"x"
            assert process.poll() is None
            disk.seconds = 0.0
            assert process.stdout.readline() == f"{slow}\n"
        assert process.returncode == 0
        assert disk.waiting == 0
        assert (slow / "renamed").exists()


def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(MissingRuntimeError, match="needs Linux and a C compiler"):
        build_library(tmp_path)
    with pytest.raises(pytest.skip.Exception, match="C compiler"):
        library_or_skip(tmp_path)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="C compiler"):
        library_or_skip(tmp_path)
