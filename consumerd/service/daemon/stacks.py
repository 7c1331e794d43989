"""Stack traces of all threads and tasks as text, for the log.

Strategy: file, line and function of each frame, outermost first, as in a traceback; no values, which may be passwords
and messages. All of it may be called from any thread, also while the event loop is held: that is what it is for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from consumerd.base.frames import current_frames, installed_package, is_of_python, is_ours

#: Frames of one stack that are shown, the innermost ones.
_DEPTH: Final = 40
#: Names that are shown of tasks which wait at the same place.
_NAMES: Final = 10


class Place(NamedTuple):
    """A line of code that is being executed."""

    file: str
    line: int | None
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def short(self) -> str:
        """As text, with the last folder of the path only."""
        return str(self._replace(file="/".join(PurePath(self.file).parts[-2:])))


def _place(code: CodeType, number: int | None) -> Place:
    return Place(code.co_filename, number, code.co_qualname)


def user_place(stack: Sequence[Place]) -> Place | None:
    """Where the user's code is in a stack, outermost frame first; None without frames.

    That is its innermost frame outside of installed packages, else where consumerd called a package (a plugin, say),
    else the innermost frame.
    """
    ours = [number for number, place in enumerate(stack) if is_ours(place.file)]
    for place in reversed(stack[ours[0] if ours else 0 :]):
        if not is_ours(place.file) and not is_of_python(place.file) and installed_package(place.file) is None:
            return place
    for place in stack[ours[-1] + 1 if ours else 0 :]:
        if not is_of_python(place.file):
            return place
    return stack[-1] if stack else None


def thread_frames(ident: int | None, *, without: str = "") -> list[Place]:
    """The stack of a thread, outermost frame first, without frames of the file `without`; empty if it has ended."""
    frame: FrameType | None = current_frames().get(ident or 0)
    places = []
    while frame is not None:
        if frame.f_code.co_filename != without:
            places.append(_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return places[:_DEPTH][::-1]


def main_thread_frames(*, without: str = "") -> list[Place]:
    """As `thread_frames`, of the thread that the event loop runs in."""
    return thread_frames(threading.main_thread().ident, without=without)


def as_lines(stack: Sequence[Place]) -> str:
    """One line for each frame."""
    return "\n".join(map(str, stack))


def thread_stacks() -> Iterator[dict[str, str]]:
    """Name and stack of every thread but the calling one."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            yield {"thread": thread.name, "stack": as_lines(thread_frames(thread.ident))}


def task_stacks(loop: asyncio.AbstractEventLoop) -> Iterator[dict[str, Any]]:
    """The stacks of all tasks of `loop`, each once: how many tasks are there, and the names of the first ones."""
    found: dict[str, list[str]] = {}
    for task in asyncio.all_tasks(loop):
        found.setdefault(as_lines(_coroutine_frames(task.get_coro())), []).append(task.get_name())
    for stack, names in sorted(found.items(), key=lambda pair: -len(pair[1])):
        yield {"tasks": len(names), "names": sorted(names)[:_NAMES], "stack": stack}


def _coroutine_frames(coroutine: Any) -> list[Place]:
    """Return the frames of a coroutine along its chain of awaits, which `Task.get_stack` does not follow."""
    places: list[Place] = []
    while coroutine is not None and len(places) < _DEPTH:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:  # a future, or an awaitable of another library
            break
        places.append(_place(frame.f_code, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return places
