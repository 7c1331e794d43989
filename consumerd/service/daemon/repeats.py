"""A limit on log events that each message or each request can cause.

Strategy: a processor of structlog, for the events that are named here and no others: what is logged once for each
partition or broker is never left out, but for `produce_retried`, since `forward` has a producer for each partition. Of
one kind (the event, its handler and the type of its reason) the first ones of a few seconds pass, and the rest is
counted; `events_suppressed` tells the number. While a kind goes on, one event passes in each further time, which is
twice as long as the one before, up to a minute: nobody reads the same sentence a hundred times a minute. The number is
logged when the time is over: by the next event of the kind, or by `flush`, which a daemon calls once a second, and the
end of the process, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from structlog.typing import EventDict, WrappedLogger

log = structlog.get_logger(__name__)

#: Events of a kind that pass within `SECONDS`; and the longest time, of a kind that goes on.
PASS: Final = 10
SECONDS: Final = 5.0
LONGEST: Final = 60.0
#: Kinds that are told apart at once; further ones of an event are one kind.
_KINDS: Final = 200
#: Keys that say whose event it is, and stand in the event that has the number.
_WHOSE: Final = ("subscription", "handler", "middleware", "topic")

#: The events that messages, requests and connections cause one by one.
REPEATED: Final = frozenset(
    {
        "handler_failed",
        "messages_skipped",
        "messages_dead_lettered",
        "messages_deferred",
        "middleware_failed",
        "handler_call_slow",
        "message_skipped",
        "forwarded_messages_skipped",
        "produce_retried",
        "oversized_message_set_dropped",
        "request_refused",
        "request_failed",
        "connection_aborted",
    }
)


@dataclass(slots=True)
class _Kind:
    method: str
    event: str
    whose: dict[str, Any]
    cause: str
    began: float
    seconds: float = SECONDS
    most: int = PASS
    passed: int = 0
    dropped: int = 0

    def is_over(self, now: float) -> bool:
        return now - self.began >= self.seconds

    def following(self, now: float) -> _Kind | None:
        """Return the next time of a kind that goes on; None for one that has ended."""
        if not self.dropped:
            return None
        seconds = min(2 * self.seconds, LONGEST)
        return _Kind(self.method, self.event, self.whose, self.cause, now, seconds, most=1)


class RepeatLimit:
    """Passes the first events of each kind. `monotonic` returns seconds; may be called from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, ...], _Kind] = {}
        self._lock = threading.Lock()

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """As a processor: pass the event on, or count it and raise DropEvent."""
        name = str(event.get("event"))
        if name not in REPEATED:
            return event
        whose = {key: event[key] for key in _WHOSE if key in event}
        cause = str(event.get("reason", "")).partition(":")[0]
        with self._lock:
            key = (name, *map(str, whose.values()), cause)
            if key not in self._kinds and len(self._kinds) >= _KINDS:
                key, cause = (name,), ""
            now, ended = self._monotonic(), None
            kind = self._kinds.get(key)
            if kind is None or kind.is_over(now):
                ended = kind
                kind = (kind and kind.following(now)) or _Kind(method, name, whose, cause, now)
                self._kinds[key] = kind
            passes = kind.passed < kind.most
            if passes:
                kind.passed += 1
            else:
                kind.dropped += 1
        if ended is not None:
            _tell(ended, now)
        if not passes:
            raise structlog.DropEvent
        return event

    def flush(self, *, all_kinds: bool = False) -> None:
        """Log the numbers of kinds whose time is over, or of all."""
        with self._lock:
            now = self._monotonic()
            ended = [key for key, kind in self._kinds.items() if all_kinds or kind.is_over(now)]
            kinds = [self._kinds.pop(key) for key in ended]
            self._kinds |= {
                key: following
                for key, kind in zip(ended, kinds, strict=True)
                if not all_kinds and (following := kind.following(now)) is not None
            }
        for kind in kinds:
            _tell(kind, now)


def _tell(kind: _Kind, now: float) -> None:
    if not kind.dropped:
        return
    seconds = round(max(now - kind.began, 0.1), 1)
    fields = {
        "suppressed": kind.event,
        **kind.whose,
        "events": kind.dropped,
        "seconds": seconds,
        "reason": f"and {kind.dropped:,} more in {seconds:g} s{f' ({kind.cause})' if kind.cause else ''}",
    }
    if kind.method == "error":
        log.error("events_suppressed", **fields)
    else:
        log.warning("events_suppressed", **fields)


#: The limit of this process.
REPEATS: Final = RepeatLimit()
