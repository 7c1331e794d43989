"""How a query ended, and the signals that end one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

#: Seconds that a batch may take to end after a signal; then it is cut short, and repeated by the next run.
GRACE: Final = 30.0


@dataclass(frozen=True, slots=True)
class QueryRun:
    """The outcome of a query. `stopped`: a signal ended it before all was done."""

    batches: int
    seconds: float
    stopped: bool


#: Whether the first signal lets a step of this process end its batch.
_caught = threading.Event()


def ends_its_batch() -> bool:
    """Whether a step runs that ends by itself after a signal: between `stop_on_signals` and its end."""
    return _caught.is_set()


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first SIGTERM or SIGINT sets; a second one has its previous effect.

    Outside the main thread, where signals cannot be caught, nothing sets it.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler)

    def on_signal(_number: int, _frame: object) -> None:
        event.set()
        restore()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    _caught.set()
    try:
        yield event
    finally:
        _caught.clear()
        restore()
