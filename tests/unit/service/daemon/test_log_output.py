"""The log's file when it takes no line, for a while or for ever."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.service.daemon.log_output import LogOutput


class Disk(io.FileIO):
    """A file that fails as `fails` says before a write: with a number of bytes that are still written, or an error."""

    fails: Callable[[], int | OSError | None] = staticmethod(lambda: None)

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        trouble = self.fails()
        if isinstance(trouble, OSError):
            raise trouble
        return super().write(data if trouble is None else data[:trouble])


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "log", "w") as made:
        yield made


@pytest.fixture
def output(disk: Disk) -> Iterator[LogOutput]:
    with io.TextIOWrapper(io.BufferedWriter(disk), encoding="utf-8", line_buffering=True) as stream:
        yield LogOutput(stream)


def told(output: LogOutput) -> object:
    return output.tell_lost(None, "info", {"event": "e"}).get("log_lines_lost")


def test_goes_on_when_the_disk_is_full_and_tells_the_number_of_lost_lines(
    tmp_path: Path, disk: Disk, output: LogOutput
) -> None:
    output.write("first\n")
    disk.fails = full
    for _ in range(20_000):  # more than any buffer holds
        output.write("lost\n")
    assert told(output) == 20_000
    disk.fails = lambda: None
    output.write("again é\n")
    assert told(output) is None
    assert (tmp_path / "log").read_text("utf-8") == "first\nagain é\n"


def test_begins_a_new_line_after_a_torn_one(tmp_path: Path, disk: Disk, output: LogOutput) -> None:
    script: list[int | OSError | None] = [4, full(), None, None]
    disk.fails = lambda: script.pop(0)
    output.write("a long line\n")
    assert told(output) == 1
    output.write("the next\n")
    output.write("and another\n")
    assert (tmp_path / "log").read_text() == "a lo\nthe next\nand another\n"


def test_loses_a_line_rather_than_waiting_for_a_reader_that_does_not_keep_up(disk: Disk, output: LogOutput) -> None:
    disk.fails = lambda: BlockingIOError(errno.EAGAIN, "busy")
    output.write("lost\n")
    assert told(output) == 1


def test_raises_when_the_reader_of_the_log_is_gone(disk: Disk, output: LogOutput) -> None:
    disk.fails = lambda: BrokenPipeError(errno.EPIPE, "Broken pipe")
    with pytest.raises(BrokenPipeError):
        output.write("line\n")
