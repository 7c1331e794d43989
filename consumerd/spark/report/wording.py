"""Numbers, times and foreign bytes formatted for people."""

from __future__ import annotations

import re
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


def seconds(value: float) -> str:
    """A span of time in two digits or more: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `12 days`, `3 years`."""
    if value < 10:
        return f"{value:.1f} s"
    rest = round(value)
    if rest < 60:
        return f"{rest} s"
    if rest < 3600:
        return f"{rest // 60} min {rest % 60} s" if rest % 60 else f"{rest // 60} min"
    if rest < 2 * 86400:
        return f"{rest // 3600} h {rest % 3600 // 60} min"
    return plural(rest // 86400, "day") if rest < 2 * 365 * 86400 else plural(round(rest / 86400 / 365.25), "year")


def age(value: timedelta) -> str:
    """How long before the report something was: `3 min 20 s ago`; by a clock that is ahead, `2 h 0 min ahead`."""
    passed = value.total_seconds()
    return f"{seconds(passed)} ago" if passed >= 0 else f"{seconds(-passed)} ahead"


def percent(value: float) -> str:
    """A share in per cent: as many digits as it takes to see it is not zero, and not all."""
    if 0 < value < 0.0005 or 0.9995 < value < 1:
        return "< 0.1 %" if value < 0.5 else "> 99.9 %"
    return f"{100 * value:.1f} %"


def digits(text: str) -> str:
    """A number as text with its thousands separated; any other text as it is."""
    whole, point, fraction = text.partition(".")
    if not re.fullmatch(r"-?(0|[1-9][0-9]*)", whole):
        return text
    return f"{int(whole):,}{point}{fraction}"


def rate(value: float) -> str:
    """A number per time: `1,234`, `12`, `0.25`."""
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def moment(value: datetime) -> str:
    """Return a time to the second, in UTC: `2026-11-21 17:05:09 UTC`. The value has a time zone."""
    return f"{value:%Y-%m-%d %H:%M:%S} UTC"


def printable(value: bytes | str) -> str:
    """Foreign text or bytes with everything visible: controls and invalid UTF-8 as in Python's literals."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
