"""Stack traces of all threads and tasks as text, for the log.

Strategy: file, line and function of each frame, outermost first, as in a traceback; no values, which may be passwords
and messages. All of it may be called from any thread, also while the event loop is held: that is what it is for.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

from consumerd.frames import current_frames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

#: Frames of one stack that are shown, the innermost ones.
_DEPTH: Final = 40
#: Names that are shown of tasks which wait at the same place.
_NAMES: Final = 10


def _line(code: CodeType, number: int | None) -> str:
    return f"{code.co_filename}:{number} in {code.co_qualname}"


def thread_frames(ident: int | None, *, without: str = "") -> list[str]:
    """The stack of a thread, outermost frame first, without frames of the file `without`; empty if it has ended."""
    frame: FrameType | None = current_frames().get(ident or 0)
    lines = []
    while frame is not None:
        if frame.f_code.co_filename != without:
            lines.append(_line(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return lines[_DEPTH - 1 :: -1] if len(lines) > _DEPTH else lines[::-1]


def main_thread_frames(*, without: str = "") -> list[str]:
    """As `thread_frames`, of the thread that the event loop runs in."""
    return thread_frames(threading.main_thread().ident, without=without)


def thread_stacks() -> Iterator[dict[str, str]]:
    """Name and stack of every thread but the calling one."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            yield {"thread": thread.name, "stack": "\n".join(thread_frames(thread.ident))}


def task_stacks(loop: asyncio.AbstractEventLoop) -> Iterator[dict[str, Any]]:
    """The stacks of all tasks of `loop`, each once: how many tasks are there, and the names of the first ones."""
    found: dict[str, list[str]] = {}
    for task in asyncio.all_tasks(loop):
        found.setdefault("\n".join(_coroutine_frames(task.get_coro())), []).append(task.get_name())
    for stack, names in sorted(found.items(), key=lambda pair: -len(pair[1])):
        yield {"tasks": len(names), "names": sorted(names)[:_NAMES], "stack": stack}


def _coroutine_frames(coroutine: Any) -> list[str]:
    """Return the frames of a coroutine along its chain of awaits, which `Task.get_stack` does not follow."""
    lines: list[str] = []
    while coroutine is not None and len(lines) < _DEPTH:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:  # a future, or an awaitable of another library
            break
        lines.append(_line(frame.f_code, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return lines
