"""The frames of all threads, read so that the look itself cannot stop the process; and whose code a file is.

Strategy: `sys._current_frames` holds a lock of the interpreter while it creates frame objects. Before Python 3.12 that
may start a garbage collection. One that frees a `threading.local` waits for the same lock, in the same thread, and
keeps the GIL for ever (CPython gh-106883). So no collection may begin during the call. `gc.disable` does not ensure
that: after it another thread may run that calls `gc.enable`, or saves the state that it finds and restores it later.
The threshold is therefore set to 0 and restored by iterators written in C, between which no other thread runs.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from itertools import starmap, tee
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, Final, cast

#: Where consumerd is; and where Python is, with the names of its folders of installed packages.
OURS: Final = f"{Path(__file__).parents[1]}/"
_PYTHON: Final = ("<frozen", f"{Path(os.__file__).parent}/")
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def is_ours(file: str) -> bool:
    """Whether a file is code of consumerd."""
    return file.startswith(OURS)


def is_of_python(file: str) -> bool:
    """Whether a file is code of the standard library."""
    return file.startswith(_PYTHON) and installed_package(file) is None and not is_ours(file)


def installed_package(file: str) -> str | None:
    """The name of the installed package that a file belongs to; None for a file that is not installed."""
    parts = PurePath(file).parts
    at = next((number for number, part in enumerate(parts[:-1]) if part in _INSTALLED), None)
    return None if at is None else parts[at + 1]


def current_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by thread identifier. From any thread."""
    former, restored = tee(iter(gc.get_threshold, None))
    off = starmap(gc.set_threshold, [(0,)])
    look = starmap(sys._current_frames, [()])  # noqa: SLF001 - documented, and the only way
    on = starmap(gc.set_threshold, restored)
    steps: tuple[Iterator[Any], ...] = (former, off, look, on)
    try:
        _, _, frames, _ = map(next, steps)
    except BaseException:  # no memory is left
        next(on)
        raise
    return cast("dict[int, FrameType]", frames)
