"""Times and durations as people write them, in settings and options: `2012-11-21T12:00`, `7d`, `1d12h`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_DURATION: Final = re.compile(r"P?(?:([0-9]{1,5})D)?T?(?:([0-9]{1,6})H)?(?:([0-9]{1,8})M)?(?:([0-9]{1,9})S)?")
#: Where a log begins and ends.
ENDS: Final = ("earliest", "latest")
#: What says where to begin to read it, as in `must be ...`.
STARTS: Final = "earliest, latest, a time such as 2012-11-21T12:00, or a duration such as 7d"


def milliseconds_of(text: str) -> int:
    """Return a time in ISO 8601 (UTC unless it has an offset) as milliseconds since 1970; those may be given, too.

    Raises ValueError with what it must be.
    """
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"must be ISO 8601, such as 2012-11-21T12:00, or milliseconds since 1970, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError("must not be before 1970")
    return milliseconds


def seconds_of(text: str) -> float:
    """Return a duration, such as 7d, 90m, 1d12h or PT90M, in seconds. Raises ValueError with what it must be."""
    found = _DURATION.fullmatch(text.strip().upper())
    if found is None or not any(found.groups()):
        raise ValueError(f"must be a duration, such as 90m, 1d12h, or PT90M and P1DT12H in ISO 8601, not {text!r}")
    days, hours, minutes, seconds = (int(group or 0) for group in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()


def start_of(text: str, now: float) -> int:
    """Return the time from which to read, in milliseconds since 1970: that of `text`, or so many before `now` (s).

    A number alone is refused, because it may be meant as an offset. Raises ValueError with what it must be.
    """
    try:
        return max(int((now - seconds_of(text)) * 1000), 0)
    except ValueError:
        pass
    try:
        if not text.isdigit():
            return milliseconds_of(text)
    except ValueError:
        pass
    raise ValueError(f"must be {STARTS}, not {text!r}")


def is_start(text: str) -> bool:
    """Whether a text says where to begin to read a log: at an end of it, or by a time or a duration."""
    try:
        return text in ENDS or start_of(text, 0.0) >= 0
    except ValueError:
        return False
