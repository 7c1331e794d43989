"""What all readers build their Arrow batches with: the limits of a batch, columns of one value, numbers of an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from consumerd.wire.v07 import Codec

if TYPE_CHECKING:
    from array import array

    from consumerd.spark.source.files.split import FilesSplit
    from consumerd.spark.source.v07.split import Split
    from consumerd.spark.source.v08.split import V08Split

#: A batch ends at the first of these. Both are soft: a run is not cut at the byte.
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 4 << 20


class Repeated:
    """Columns of one value each: what the split says of all its messages, and what holds for all that is plain."""

    def __init__(self, split: Split | V08Split | FilesSplit, *, codec: Codec | None = Codec.NONE) -> None:
        self._values = {
            "topic": split.topic,
            "partition": split.partition,
            "broker": split.broker,
            "broker_partition": split.broker_partition,
            "index": 0,
            "codec": None if codec is None else codec.name.lower(),
            "crc_ok": True,
        }
        self._made: dict[str, pa.Array] = {}

    def column(self, field: pa.Field, rows: int) -> pa.Array:
        """The column of that name, so many rows long; null where nothing is said."""
        made = self._made.get(field.name)
        if made is None or len(made) < rows:
            value = self._values.get(field.name)
            made = pa.nulls(rows, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), rows)
            self._made[field.name] = made
        return made.slice(0, rows)


def numbers(values: array[int], kind: pa.DataType) -> pa.Array:
    """The array's own memory as a column."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
