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

import ctypes
import os
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
