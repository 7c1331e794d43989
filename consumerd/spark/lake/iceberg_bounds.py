"""The bounds of a file's columns: from Iceberg's bytes to the values that Delta's log would have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestampType, TimestamptzType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def column_bounds(found: Mapping[int, bytes] | None, fields: Mapping[int, NestedField], *, up: bool) -> dict[str, Any]:
    """The bounds of the columns that have some, as Delta's log would have them.

    `found`: bytes by the number of a column; `up`: whether they are upper ones, which are rounded up.
    """
    bounds = {}
    for number, raw in (found or {}).items():
        field = fields.get(number)
        value = None if field is None else _bound(field, raw, up=up)
        if field is not None and value is not None:
            bounds[field.name] = value
    return bounds


def _bound(field: NestedField, raw: bytes, *, up: bool) -> Any:
    match field.field_type:
        case StringType():
            return raw.decode(errors="replace")
        case IntegerType() | LongType():
            return int.from_bytes(raw, "little", signed=True)  # four bytes in files from before a column was widened
        case DateType():
            return (date(1970, 1, 1) + timedelta(days=int.from_bytes(raw, "little", signed=True))).isoformat()
        case TimestampType() | TimestamptzType() as kind:
            micros = int.from_bytes(raw, "little", signed=True)
            try:
                at = _EPOCH + timedelta(milliseconds=-(-micros // 1000) if up else micros // 1000)
            except OverflowError:
                return None
            text = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
            return f"{text}Z" if isinstance(kind, TimestamptzType) else text
    return None
