"""The last warnings and errors of the log, for the status page.

Strategy: a processor of structlog that looks at what passes and keeps a few lines of it, as short text: neither values
of a message's size nor passwords in URLs are kept, and of tracebacks the short ones only.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final, NamedTuple

from structlog.typing import EventDict, WrappedLogger

from consumerd.handlers.secrets import without_passwords
from consumerd.handlers.tracebacks import MAX_TRACEBACK

#: Lines that are kept.
_KEPT: Final = 50
#: Characters of one value.
_LONGEST: Final = 300
_LEVELS: Final = frozenset({"warning", "error", "critical"})
#: Keys that are not shown: they appear elsewhere, or are too long.
_LEFT_OUT: Final = frozenset(
    {"event", "level", "timestamp", "exc_info", "exception", "stack", "stack_info", "traceback"}
)


class LogLine(NamedTuple):
    """One event of the log."""

    #: Seconds since 1970.
    at: float
    level: str
    event: str
    fields: dict[str, str]


class RecentLines:
    """Keeps the last ones that passed."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque(maxlen=_KEPT)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """As a processor: note and pass on."""
        if event.get("level", method) in _LEVELS:
            fields = {name: _text(value) for name, value in event.items() if name not in _LEFT_OUT and name[:1] != "_"}
            if traceback := event.get("traceback"):
                fields["traceback"] = str(traceback)[:MAX_TRACEBACK]
            self._lines.append(
                LogLine(
                    time.time(), str(event.get("level", method)), _text(event.get("event")), without_passwords(fields)
                )
            )
        return event

    def __iter__(self) -> Any:
        """The newest first; a thread may add meanwhile."""
        return reversed(list(self._lines))


def _text(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


#: The lines of this process.
RECENT: Final = RecentLines()
