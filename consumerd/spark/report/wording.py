"""Numbers, times and foreign bytes formatted for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime, timedelta

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def count(value: float) -> str:
    """Return a number with separated thousands: `1,234,567`."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in binary units: `5.2 GiB`."""
    unit = 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:,.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def distance(value: float, *, messages: bool) -> str:
    """Between two offsets: in bytes, or in messages."""
    return plural(round(value), "message") if messages else size(value)


def plural(number: int, one: str, many: str | None = None) -> str:
    """`1 gap`, `2 gaps`."""
    return f"{count(number)} {one if number == 1 else many or f'{one}s'}"


def axis_number(value: float) -> str:
    """A count on an axis: `1.5 M`."""
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def axis_size(value: float) -> str:
    """Bytes on an axis: `512 KiB`, no more digits than needed."""
    number, _, unit = size(value).partition(" ")
    return f"{number.removesuffix('.0')} {unit}"


def duration(value: timedelta) -> str:
    """Return a duration in the largest unit that fits whole: `5 minutes`."""
    seconds = round(value.total_seconds())
    for length, name in _SPANS:
        if seconds % length == 0 and seconds >= length:
            number = seconds // length
            return name if number == 1 else f"{number} {name}s"
    return f"{value.total_seconds():g} seconds"


def moment(value: datetime) -> str:
    """Return a time to the second, in UTC: `2026-11-21 17:05:09 UTC`. The value has a time zone."""
    return f"{value:%Y-%m-%d %H:%M:%S} UTC"


def printable(value: bytes | str) -> str:
    """Foreign text or bytes with everything visible: controls and invalid UTF-8 as in Python's literals."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
