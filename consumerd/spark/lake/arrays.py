"""Small Arrow values from their bytes.

`pa.array` of a list and `pa.scalar` import pandas where it is installed, to see whether the value is one of its own:
that costs each process a quarter of a second, and Spark starts several for a query.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: How a value of a type is packed.
_FORMATS = {pa.int32(): "=i", pa.int64(): "=q", pa.timestamp("us", "UTC"): "=q", pa.bool_(): "=?"}


def texts(values: Sequence[str]) -> pa.Array:
    """As `pa.array(values, pa.string())`."""
    data = [each.encode() for each in values]
    ends = array("i", [0])
    for each in data:
        ends.append(ends[-1] + len(each))
    return pa.Array.from_buffers(pa.string(), len(data), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))])


def repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """As `pa.repeat(pa.scalar(value, kind), count)`; None is null. Of other types than a source's just that."""
    if value is None:
        return pa.nulls(count, kind)
    if kind == pa.string():
        one = texts([value])
    elif kind in _FORMATS:
        if isinstance(value, datetime):
            value = (value - _EPOCH) // timedelta(microseconds=1)
        one = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(struct.pack(_FORMATS[kind], value))])
    else:
        return pa.repeat(pa.scalar(value, kind), count)
    return pa.repeat(one[0], count)


def is_constant(values: pa.Array) -> bool:
    """Whether all values are equal, or all are null."""
    # Compares memory where there are no nulls: a hundredth of the time of a comparison of each pair.
    return bool(values.slice(0, max(0, len(values) - 1)).equals(values.slice(1)))
