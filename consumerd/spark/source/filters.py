"""Spark's filters -> which splits need not be read at all.

Strategy: a filter on a column that is constant in a split (topic, broker, partition and their name) is evaluated
exactly, so Spark need not apply it again. A filter on offsets only drops whole splits, and Spark still applies it to
each row. All other filters are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from consumerd.spark.source.logs import PartitionLog

_SAME: Final = frozenset({"topic", "partition", "broker", "broker_partition"})


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A column and the values it may have; `but_none`: anything else than null."""

    column: str
    values: frozenset[Any]
    but_none: bool = False


class Pruning:
    """The splits that the filters of one query select; picklable."""

    def __init__(self) -> None:
        self._allowed: list[_Allowed] = []
        self._low = 0
        self._high = (1 << 63) - 1

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take the filters that can be used; yields those that Spark must still apply."""
        for each in filters:
            name = ".".join(getattr(each, "attribute", ()))
            if name in _SAME and (allowed := _values(name, each)) is not None:
                self._allowed.append(allowed)
                continue
            if name == "offset":
                self._bound(each)
            yield each

    def wants(self, log: PartitionLog) -> bool:
        """Whether the filters allow any row of this partition."""
        row = {"topic": log.key[0], "broker_partition": log.key[1], "broker": log.broker, "partition": log.partition}
        return all(
            row[allowed.column] is not None if allowed.but_none else row[allowed.column] in allowed.values
            for allowed in self._allowed
        )

    def overlaps(self, start: int, end: int) -> bool:
        """Whether the filters allow an offset from `start` up to `end`."""
        return self._low < end and start <= self._high

    def _bound(self, each: Filter) -> None:
        match each:
            case EqualTo(_, int(value)) | EqualNullSafe(_, int(value)):
                low, high = value, value
            case GreaterThan(_, int(value)):
                low, high = value + 1, self._high
            case GreaterThanOrEqual(_, int(value)):
                low, high = value, self._high
            case LessThan(_, int(value)):
                low, high = self._low, value - 1
            case LessThanOrEqual(_, int(value)):
                low, high = self._low, value
            case In(_, values) if values and all(isinstance(value, int) for value in values):
                low, high = min(values), max(values)
            case _:
                return
        self._low, self._high = max(self._low, low), min(self._high, high)


def _values(name: str, each: Filter) -> _Allowed | None:
    """Return the values that the filter allows; None for one of another kind. Only EqualNullSafe matches null."""
    match each:
        case EqualTo(_, value):
            return _Allowed(name, frozenset([value]) - {None})
        case EqualNullSafe(_, value):
            return _Allowed(name, frozenset([value]))
        case In(_, values):
            return _Allowed(name, frozenset(values) - {None})
        case IsNull():
            return _Allowed(name, frozenset([None]))
        case IsNotNull():
            return _Allowed(name, frozenset(), but_none=True)
        case _:
            return None
