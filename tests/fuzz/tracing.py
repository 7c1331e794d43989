"""What an input reaches in the package: pairs of instructions of one function that ran one after the other.

Strategy: `sys.settrace` for the time of one call, without the fuzzer, so that a corpus is chosen by the same measure on
each machine and after each change of the code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import consumerd

Arc = tuple[CodeType, int, int]


_PACKAGE: Final = str(Path(consumerd.__file__).parent)


def reached_arcs(check: Callable[[bytes], object], data: bytes) -> set[Arc]:
    """The pairs of instructions in the package that `check(data)` runs, by their places in their functions."""
    found: set[Arc] = set()

    def enter(frame: FrameType, event: str, given: Any) -> Any:
        code, last = frame.f_code, -1
        if not code.co_filename.startswith(_PACKAGE):
            return None

        def step(frame: FrameType, event: str, given: Any) -> Any:
            nonlocal last
            if event == "opcode":
                found.add((code, last, frame.f_lasti))
                last = frame.f_lasti
            return step

        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        check(data)
    finally:
        sys.settrace(before)
    return found


def chosen_inputs(
    check: Callable[[bytes], object], given: Iterable[bytes], found: Iterable[bytes], size: int
) -> list[bytes]:
    """The shortest inputs of `found` that each reach what no input before them does; at most `size` bytes in base64.

    `given`: inputs that are there anyway.
    """
    reached = set[Any]().union(*(reached_arcs(check, data) for data in given))
    chosen: list[bytes] = []
    for data in sorted({*found}, key=lambda data: (len(data), data)):
        arcs = reached_arcs(check, data)
        if arcs <= reached:
            continue
        size -= len(data) * 4 // 3 + 2
        if size < 0:
            break
        reached |= arcs
        chosen.append(data)
    return chosen
