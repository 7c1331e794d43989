"""Messages of the 0.8+ protocol: sets of magic 0 and 1, and record batches (magic 2). Pure, no I/O.

`decode_records` reads what a fetch response has for one partition; `encode_message_set` and `encode_record_batch` write
what a produce request has.
"""

from consumerd.wire.batch import BatchEnd
from consumerd.wire.v07.constants import DEFAULT_LIMITS, DecodeLimits
from consumerd.wire.v08.records.codecs import RecordCodec
from consumerd.wire.v08.records.encode import encode_message_set, encode_record_batch
from consumerd.wire.v08.records.fetched import decode_records
from consumerd.wire.v08.records.record_set import NO_TIMESTAMP, Headers, Record, RecordSet, TimestampType

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
