"""The memory of the process: how much there is of it, and what the C library does with memory that is freed.

Strategy: glibc guesses a threshold from the largest block so far that was mapped for itself and freed (mallopt(3),
M_MMAP_THRESHOLD). Both of its guesses are bad for a consumer: before the first large response, memory of 1 MiB
responses goes back to the system each time, and each new one costs a page fault for every 4 KiB; after a message of 16
MiB, tens of megabytes stay with the process, outside of the budget. Fixed thresholds avoid both: what stays is a
quarter of the budget, at most 32 MiB, because several partitions together free and need again more than a few
responses. And glibc gives each thread a heap of its own, which keeps as much freed memory: handlers of several
partitions would keep it several times. One heap is enough for all, as nearly all work is done under the interpreter's
lock. Other C libraries have no such rules, and an operator's own settings in the environment count.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
#: Bytes: larger blocks are mapped for themselves, and go back to the system when they are freed.
_MAPPED: Final = 2 << 20
#: Bytes of free memory at the end of the heap that stay with the process: at least, and at most.
_LEAST_KEPT, _MOST_KEPT = 8 << 20, 32 << 20


def resident_bytes() -> int | None:
    """Bytes of memory that this process occupies; None where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_limit(root: Path = Path("/")) -> tuple[int, str] | None:
    """The bytes that this process may occupy, and what sets that limit: a cgroup, or the machine's memory.

    None where the system does not tell. `root`: where /proc and /sys are.
    """
    limits = [(limit, f"the limit of the cgroup, {path}") for path in _cgroup_files(root) if (limit := _number(path))]
    with contextlib.suppress(OSError, ValueError):  # macOS has no such name
        limits.append((os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "the memory of the machine"))
    return min(limits, default=None)


def _cgroup_files(root: Path) -> Iterator[Path]:
    """The files with the limits of the process's cgroup and those above it, of both versions of cgroups.

    In a container the path may be that of the host, and then the container's own is at the top.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif number == "0":
            top, name = root / "sys/fs/cgroup", "memory.max"
        else:
            continue
        folder = top / path.lstrip("/")
        yield from (each / name for each in (folder, *folder.parents) if each.is_relative_to(top))


def _number(path: Path) -> int | None:
    """The number in a file; None for a file that is missing, or that says `max`."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def tune_malloc(budget: int = 0) -> bool:
    """Keep some freed memory for later responses, once for all threads, and return that of large blocks.

    `budget`: bytes of messages that may be held in memory. False: nothing was changed. To be called before there are
    other threads: those keep the heaps that they have.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    kept = min(max(budget // 4, _LEAST_KEPT), _MOST_KEPT)
    options = ((_M_MMAP_THRESHOLD, _MAPPED), (_M_TRIM_THRESHOLD, kept), (_M_ARENA_MAX, 1))
    return all(mallopt(option, value) for option, value in options)
