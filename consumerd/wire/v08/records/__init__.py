"""Messages of the 0.8+ protocol: sets of magic 0 and 1, and record batches (magic 2). Pure, no I/O.

`decode_records` reads what a fetch response has for one partition; `encode_message_set` and `encode_record_batch` write
what a produce request has.

In: the bytes of a partition in a fetch response. Out: a `RecordSet`; and sets for producers.

Files in reading order: shapes, varint, codecs, crc32c, message_set, record_batch, fetched, walk, walk_mixed,
record_set, columns, encode.

Easy to miss:

- Brokers of 0.11 cannot convert messages with headers for older clients: they answer with error -1.
- A broker that converts messages for an older client drops an incomplete last message, and gives lz4 the incorrect
  checksum that 0.8 expects.
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.wire.batch import BatchEnd
    from consumerd.wire.column_buffers import Headers
    from consumerd.wire.v07.constants import DEFAULT_LIMITS, DecodeLimits
    from consumerd.wire.v08.records.codecs import RecordCodec
    from consumerd.wire.v08.records.encode import encode_message_set, encode_record_batch
    from consumerd.wire.v08.records.fetched import decode_records
    from consumerd.wire.v08.records.record_set import NO_TIMESTAMP, Record, RecordSet, TimestampType
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.wire.batch": "BatchEnd",
            "consumerd.wire.column_buffers": "Headers",
            "consumerd.wire.v07.constants": "DEFAULT_LIMITS DecodeLimits",
            "consumerd.wire.v08.records.codecs": "RecordCodec",
            "consumerd.wire.v08.records.encode": "encode_message_set encode_record_batch",
            "consumerd.wire.v08.records.fetched": "decode_records",
            "consumerd.wire.v08.records.record_set": "NO_TIMESTAMP Record RecordSet TimestampType",
        },
    )

__all__ = [
    "DEFAULT_LIMITS",
    "NO_TIMESTAMP",
    "BatchEnd",
    "DecodeLimits",
    "Headers",
    "Record",
    "RecordCodec",
    "RecordSet",
    "TimestampType",
    "decode_records",
    "encode_message_set",
    "encode_record_batch",
]
