"""What a batch as Arrow columns must be, from its messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from consumerd.base.partition import NO_BROKER

if TYPE_CHECKING:
    import pyarrow

    from consumerd.handlers import Batch

#: The last millisecond of that year.
_YEAR_9999: Final = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 999


def expected_columns(batch: Batch) -> dict[str, list[Any]]:
    """The values of all columns, timestamps as milliseconds."""
    messages: list[Any] = list(batch.messages())
    topic, broker, partition = batch.partition
    keyed = batch.keyed
    times = [message.timestamp if message.timestamp >= 0 else None for message in messages]
    return {
        "topic": [topic] * len(messages),
        "broker": [None if broker == NO_BROKER else broker] * len(messages),
        "partition": [partition] * len(messages),
        "offset": [message.offset for message in messages],
        "index": [message.index for message in messages],
        "next_offset": [message.next_offset for message in messages],
        "key": [message.key for message in messages],
        "timestamp": [None if time is None or time > _YEAR_9999 else time for time in times],
        "raw_timestamp": [None if time is None or not _YEAR_9999 < time < 1 << 63 else time for time in times],
        "headers": [
            [{"name": name, "value": value} for name, value in message.headers] if keyed else None
            for message in messages
        ],
        "payload": [message.payload for message in messages],
    }


def columns_of(rows: pyarrow.RecordBatch) -> dict[str, list[Any]]:
    """The same of a record batch, which is checked as a whole."""
    rows.validate(full=True)
    at = rows.schema.get_field_index("timestamp")
    times = rows.column(at).cast("int64")
    return {
        name: (times if number == at else rows.column(number)).to_pylist()
        for number, name in enumerate(rows.schema.names)
    }
