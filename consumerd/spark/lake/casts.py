"""Texts into values, exactly as Spark's `try_cast` reads them: the same texts refused, the same values.

Strategy: one function per type. Each takes the text of a value and returns what Arrow stores in a column of that type,
or None for a text that does not fit: integers for dates (days) and timestamps (microseconds), both since 1970-01-01.

What differs from Python: white space and control characters up to U+0020 and U+007F around most types are ignored;
`1d`, `0x1p3` and `infinity` are numbers; decimals are rounded half up; `yes` and `n` are booleans; a year has 4 to 6
digits and may be negative; `12:30` is a time of today. Source: Spark's `Cast`, `UTF8String`, `SparkDateTimeUtils` and
`Decimal`, and Java's `Double`, `BigDecimal` and `ZoneId`.
"""

from __future__ import annotations

import binascii
import ctypes
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import timezone as fixed
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa

Cast = Callable[[str], Any]

#: What Spark ignores around a value, and what Java's `String.trim` does.
_BLANK: Final = "".join(map(chr, range(33))) + "\x7f"
_JAVA_BLANK: Final = "".join(map(chr, range(33)))

BITS: Final[Mapping[str, int]] = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_TRUE: Final = frozenset(("t", "true", "y", "yes", "1"))
_FALSE: Final = frozenset(("f", "false", "n", "no", "0"))


# -- types


_SCALAR_TYPES: Final[Mapping[str, pa.DataType]] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type of a column whose type has this canonical spelling (`ColumnType.ddl`)."""
    if ddl in _SCALAR_TYPES:
        return _SCALAR_TYPES[ddl]
    name, _, inner = ddl[:-1].replace("(", "<", 1).partition("<")
    parts = split_type(inner)
    if name == "decimal":
        return pa.decimal128(*map(int, parts))
    if name == "array":
        return pa.list_(pa.field("element", arrow_type(inner)))
    if name == "map":
        return pa.map_(arrow_type(parts[0]), arrow_type(parts[1]))
    fields = [part.partition(":") for part in parts]
    return pa.struct([pa.field(field, arrow_type(kind)) for field, _, kind in fields])


def split_type(inner: str) -> list[str]:
    """The comma-separated parts between the brackets of a nested type."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(inner):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(inner[start:at])
            start = at + 1
    return [*parts, inner[start:]]


# -- numbers


_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOATING = re.compile(r"([+-]?)(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?|(NaN)|(Infinity))")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_SPECIAL: Final[Mapping[str, float]] = {
    "inf": math.inf, "+inf": math.inf, "infinity": math.inf, "+infinity": math.inf, "-inf": -math.inf,
    "-infinity": -math.inf, "nan": math.nan,
}  # fmt: skip
_NUMBER = re.compile(r"[+-]?(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")
#: Scales that Java's `BigDecimal` can have.
_MAX_SCALE: Final = (1 << 31) - 1
_PRECISION: Final = 38
_EXACT: Final = Context(prec=2 * _PRECISION + 4, rounding=ROUND_HALF_UP, Emax=10**17, Emin=-(10**17))
#: Halfway between the greatest float and what would be the next one.
_FLOAT_LIMIT: Final = 2.0**128 - 2.0**103
_MAX_FLOAT: Final = 2.0**128 - 2.0**104


def integer(bits: int) -> Cast:
    """Signed integers of this size."""
    limit = 1 << (bits - 1)

    def cast(text: str) -> int | None:
        text = text.strip(_BLANK)
        if not _INTEGER.fullmatch(text):
            return None
        value = _int(text)
        return value if -limit <= value < limit else None

    return cast


def _int(text: str) -> int:
    """Python refuses long texts; no type has that many digits that count."""
    return int(text) if len(text) <= 100 else int(text[0] + text[1:].lstrip("0")[:100].rjust(1, "0"))


def double(text: str) -> float | None:
    """A double."""
    text = text.strip(_JAVA_BLANK)
    match = _FLOATING.fullmatch(text)
    if match is None:
        return _hexadecimal(text) if _HEXADECIMAL.fullmatch(text) else _SPECIAL.get(text.lower())
    return math.nan if match[2] else float(text.rstrip("fFdD")) if not match[3] else float(text)


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text.rstrip("fFdD"))  # the suffix is behind the decimal exponent
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def single(text: str) -> float | None:
    """A float, rounded once: the nearest float to the nearest double can be another one."""
    value = double(text)
    if value is None:
        return None
    bare = text.strip(_JAVA_BLANK).rstrip("fFdD")
    return single_of(value, lambda: _fraction(bare))


def _fraction(text: str) -> Fraction:
    if not _HEXADECIMAL.fullmatch(text):
        return Fraction(text)
    digits, _, exponent = text.lower().partition("p")
    sign, _, digits = digits.partition("0x")
    whole, _, rest = digits.partition(".")
    value = Fraction(int(f"{whole}{rest}", 16)) * Fraction(2) ** (int(exponent) - 4 * len(rest))
    return -value if sign == "-" else value


def single_of(value: float, exact: Callable[[], Fraction]) -> float:
    """The nearest float to a number, of which `value` is the nearest double and `exact` says it exactly."""
    nearest = ctypes.c_float(value).value
    if nearest == value or not math.isfinite(value):
        return nearest
    if math.isinf(nearest):
        if abs(value) > _FLOAT_LIMIT or abs(Fraction(exact())) >= Fraction(_FLOAT_LIMIT):
            return nearest
        return math.copysign(_MAX_FLOAT, value)
    other = 2 * value - nearest
    if ctypes.c_float(other).value != other:
        return nearest  # not halfway between two floats
    found = exact()
    if found == value:
        return nearest
    return max(nearest, other) if found > value else min(nearest, other)


def decimal(precision: int, scale: int) -> Cast:
    """Decimals, rounded half up. A zero with a large exponent is refused, as Spark does."""

    def cast(text: str) -> Decimal | None:
        value = java_decimal(text.strip(_JAVA_BLANK))
        if value is None or _whole_digits(value) > _PRECISION:
            return None
        return rounded(value, precision, scale)

    return cast


def java_decimal(text: str) -> Decimal | None:
    """The number as Java's `BigDecimal` reads it."""
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        return None
    exponent = _exponent(match[3] or "0")
    if exponent is None or not -_MAX_SCALE - 1 <= len(match[2]) - exponent <= _MAX_SCALE:
        return None
    return Decimal(text)


def _exponent(text: str) -> int | None:
    """Java reads at most 10 digits behind leading zeros."""
    digits = text.lstrip("+-").lstrip("0")
    return int(text) if len(digits) <= 10 else None


def _whole_digits(value: Decimal) -> int:
    """Digits before the point as Spark counts them: a zero has one, and its exponent."""
    parts = value.as_tuple()
    assert isinstance(parts.exponent, int)
    return len(parts.digits) + parts.exponent


def rounded(value: Decimal, precision: int, scale: int) -> Decimal | None:
    """The value with this scale, half rounded away from zero; None if it has more digits than `precision`."""
    if value and value.adjusted() < -scale - 2:
        return Decimal(0).scaleb(-scale)
    if value.adjusted() > _PRECISION:
        return None if value else Decimal(0).scaleb(-scale)
    shown = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    return shown if len(shown.as_tuple().digits) <= precision or not shown else None


def boolean(text: str) -> bool | None:
    """A boolean."""
    text = text.strip(_BLANK).lower()
    return True if text in _TRUE else False if text in _FALSE else None


_EXPONENT_ONE = re.compile(r"(-?[0-9])e([+-][0-9]+)")


def double_text(value: float) -> str:
    """A double as Java 19 and later write it; earlier ones write some with more digits than needed."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    size = abs(value)
    if value == 0 or 1e-3 <= size < 1e7:
        text = repr(value)
        if "e" not in text:
            return text
        return format(Decimal(text), "f")
    if size < 1e-300:  # few digits: of the two-digit texts of a number Java takes the nearest
        two = f"{value:.1e}"
        if float(two) == value and len(repr(value).partition("e")[0].replace(".", "").strip("-0")) <= 2:
            return _java_exponent(two)
    digits = Decimal(repr(value)).as_tuple()
    assert isinstance(digits.exponent, int)
    shown = "".join(map(str, digits.digits)).rstrip("0")
    exponent = len(digits.digits) + digits.exponent - 1
    return f"{'-' if digits.sign else ''}{shown[0]}.{shown[1:] or '0'}E{exponent}"


def _java_exponent(text: str) -> str:
    number, _, exponent = text.partition("e")
    return f"{number}E{int(exponent)}"


# -- bytes


_BASE64 = re.compile(r"[A-Za-z0-9+/]*")


def base64(text: str) -> bytes | None:
    """Bytes from Base64, with or without padding; white space before the padding is ignored."""
    at = text.find("=")
    padding = "" if at < 0 else text[at:]
    data = "".join(char for char in text.removesuffix(padding) if not is_space(char))
    missing = -len(data) % 4
    if not _BASE64.fullmatch(data) or missing == 3 or padding not in ("", "=" * missing):
        return None
    return binascii.a2b_base64(data + "=" * missing)


def is_space(char: str) -> bool:
    """Java's `Character.isWhitespace`."""
    return (char.isspace() and char not in "\x85\xa0\u2007\u202f") or "\x1c" <= char <= "\x1f"


# -- dates and times


_MICROS: Final = 1_000_000
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_CLOCK: Final = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9].*)?)?)?"
_TIMESTAMP = re.compile(rf"([+-]?)([0-9]{{4,6}})(?:-([0-9]{{1,2}})(?:-([0-9]{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.DOTALL)
_TIME = re.compile(_CLOCK, re.DOTALL)
_MONTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_400: Final = 146_097
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_REPEATED: Final = date(2400, 1, 1).toordinal()


def days_since_1970(year: int, month: int, day: int) -> int | None:
    """Days since 1970-01-01 of a day of the proleptic Gregorian calendar, any year; None if it does not exist."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not (1 <= month <= 12 and 1 <= day <= _MONTHS[month - 1] + (month == 2 and leap)):
        return None
    cycles, within = divmod(year - 2000, 400)
    return date(2000 + within, month, day).toordinal() - _FIRST_DAY + cycles * _DAYS_400


#: The first day of the Gregorian calendar, 1582-10-15, in days since 1970-01-01.
_GREGORIAN: Final = -141_427
#: From the first of March of the Julian year -4800 to 1970-01-01.
_JULIAN_DAYS: Final = 2_472_670


def gregorian_days(days: int) -> int:
    """Days since 1970-01-01 of the day that is named as day `days` was: before 1582-10-15 in the Julian calendar.

    So Spark reads dates that are written as a number of days (`rebaseJulianToGregorianDays`).
    """
    if days >= _GREGORIAN:
        return days
    day = days + _JULIAN_DAYS
    year = (4 * day + 3) // 1461
    day -= 1461 * year // 4
    month = (5 * day + 2) // 153  # from March
    day -= (153 * month + 2) // 5
    first = days_since_1970(year - 4800 + month // 10, month + 3 - month // 10 * 12, 1)
    assert first is not None
    return first + day


def date_days(text: str) -> int | None:
    """A date, in days; what follows a space or `T` is not looked at."""
    match = _DATE.fullmatch(text.strip(_BLANK))
    if match is None:
        return None
    year = int(match[2]) * (-1 if match[1] == "-" else 1)
    days = days_since_1970(year, int(match[3] or 1), int(match[4] or 1))
    return days if days is not None and -(1 << 31) <= days < 1 << 31 else None


def timestamp(zone: tzinfo) -> Cast:
    """Timestamps in microseconds; those without a zone are in this one."""

    def cast(text: str) -> int | None:
        bare = text.strip(_BLANK)
        if match := _TIMESTAMP.fullmatch(bare):
            sign, year, month, day, *clock = match.groups()
            days = days_since_1970(int(year) * (-1 if sign == "-" else 1), int(month or 1), int(day or 1))
            today = False
        else:
            match = _TIME.fullmatch(bare[1:] if text.startswith("T") else bare)
            if match is None or (match[2] is None and not text.startswith("T")):
                return None
            clock, days, today = list(match.groups()), 0, True
        hour, minute, second, part, named = clock
        if days is None or (part is not None and clock[2] is None):
            return None
        here = zone if named is None else zone_of(named.strip(_JAVA_BLANK))
        seconds = _seconds(int(hour or 0), int(minute or 0), int(second or 0))
        if here is None or seconds is None:
            return None
        if today:
            days = datetime.now(here).date().toordinal() - _FIRST_DAY
        micros = int((part or "0")[:6].ljust(6, "0"))
        value = (days * 86_400 + seconds - _offset(here, days, seconds)) * _MICROS + micros
        return value if -(1 << 63) <= value < 1 << 63 else None

    return cast


def _seconds(hour: int, minute: int, second: int) -> int | None:
    return hour * 3600 + minute * 60 + second if hour < 24 and minute < 60 and second < 60 else None


def _offset(zone: tzinfo, days: int, seconds: int) -> int:
    """Seconds that the zone's clock is ahead at this local time; the earlier one where two are possible."""
    if zone is UTC:
        return 0
    ordinal = max(days + _FIRST_DAY, 366)  # the first change of any zone is much later
    if ordinal >= _REPEATED:  # the calendar, and with it the rules, repeat every 400 years
        ordinal = _REPEATED + (ordinal - _REPEATED) % _DAYS_400
    local = datetime.fromordinal(ordinal) + timedelta(seconds=seconds)
    offset = zone.utcoffset(local.replace(tzinfo=zone) if not isinstance(zone, fixed) else None)
    assert offset is not None
    return round(offset.total_seconds())


#: Java's `ZoneId.SHORT_IDS`.
_SHORT_ZONES: Final[Mapping[str, str]] = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",  # codespell:ignore ect
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",  # codespell:ignore ist
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00",
    "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
#: In Python's list, but not in Java's.
_NOT_IN_JAVA: Final = frozenset(("Factory", "ROC", "localtime", "posixrules"))
_ZONE_OFFSET = re.compile(
    r"([+-])(?:([0-9]{1,2})|([0-9]{2}):([0-9]{2})|([0-9]{2})([0-9]{2})|([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"|([0-9]{2})([0-9]{2})([0-9]{2}))"
)


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo | None:
    """The zone with this name or offset, as Spark and Java's `ZoneId.of` read it; None for an unknown one."""
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1, flags=re.ASCII)
    name = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", name, count=1, flags=re.ASCII)
    name = _SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    if name[:1] in ("+", "-"):
        return _offset_zone(name)
    for prefix in ("UTC", "GMT", "UT"):
        if name.startswith((f"{prefix}+", f"{prefix}-")):
            return _offset_zone(name.removeprefix(prefix))
    if name in _NOT_IN_JAVA or name not in available_timezones():
        return None
    return ZoneInfo(name)


def _offset_zone(text: str) -> tzinfo | None:
    match = _ZONE_OFFSET.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = ([int(each) for each in match.groups()[1:] if each is not None] + [0, 0])[:3]
    total = hours * 3600 + minutes * 60 + seconds
    if hours > 18 or minutes > 59 or seconds > 59 or total > 18 * 3600:
        return None
    return fixed(timedelta(seconds=-total if match[1] == "-" else total))


# -- numbers that mean a time


#: Years 1 to 9999, in microseconds since 1970: what Spark's timestamps can be shown as.
FIRST_MICROS: Final = -62_135_596_800_000_000
LAST_MICROS: Final = 253_402_300_799_999_999


def epoch(ticks: int) -> Cast:
    """Timestamps in microseconds, from numbers since 1970, `ticks` to a second."""
    number = decimal(_PRECISION, 6)

    def cast(text: str) -> int | None:
        value = number(text)
        if value is None:
            return None
        micros = Fraction(value) * (_MICROS // ticks)
        return int(micros) if FIRST_MICROS <= micros <= LAST_MICROS else None

    return cast


def within_years(cast: Cast) -> Cast:
    """The cast to timestamps, without those beyond the years 1 to 9999."""

    def bounded(text: str) -> int | None:
        micros = cast(text)
        return micros if micros is not None and FIRST_MICROS <= micros <= LAST_MICROS else None

    return bounded


def text_cast(ddl: str, zone: tzinfo, *, binary: Cast) -> Cast:
    """The cast to a scalar type. `binary`: how bytes are written in the text."""
    if ddl in BITS:
        return integer(BITS[ddl])
    if ddl.startswith("decimal("):
        kind = arrow_type(ddl)
        return decimal(kind.precision, kind.scale)
    casts: Mapping[str, Cast] = {
        "float": single, "double": double, "boolean": boolean, "string": str, "binary": binary, "date": date_days,
        "timestamp": timestamp(zone),
    }  # fmt: skip
    return casts[ddl]
