"""Message sets and record batches as producers write them.

Strategy: columns in, bytes out: pieces are gathered in a list and joined once; numbers of up to two bytes come from a
table. Offsets count from `base_offset`, which is 0 for a producer: the broker gives the real ones. A wrapper has the
offset of its last message and the highest timestamp, as the JVM's producers write it. The formats are described in
`message_set` and `record_batch`. The native codec writes lists of `bytes` in one call, and leaves everything else. A
batch may be written into the request around it (`Surroundings`), which saves copies of both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from consumerd.base.native import codec as native_codec
from consumerd.wire.column_buffers import Headers
from consumerd.wire.crc import crc32
from consumerd.wire.errors import EncodeError
from consumerd.wire.v08.records import record_batch
from consumerd.wire.v08.records.codecs import RecordCodec, compress
from consumerd.wire.v08.records.crc32c import crc32c, extend_crc32c
from consumerd.wire.v08.records.record_set import NO_TIMESTAMP
from consumerd.wire.v08.records.varint import varint
from consumerd.wire.varint import uvarint

_HEAD = struct.Struct(">qiI")
#: Magic, attributes, timestamp, key length.
_FIELDS_0, _FIELDS_1 = struct.Struct(">BBi"), struct.Struct(">BBqi")
_SIZE = struct.Struct(">i")
_NULL = _SIZE.pack(-1)
#: Of what a batch's CRC covers, the fields before the records: attributes to count.
_BATCH_FIELDS = struct.Struct(">hiqqqhii")
_BATCH_HEAD = struct.Struct(">qiibI")
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
#: `varint` of the numbers 0 to 8191, those of at most two bytes.
VARINTS = tuple(varint(value) for value in range(8192))
_NONE = VARINTS[0]
_NULL_VARINT = varint(-1)
_TABLE = len(VARINTS)
#: Of a record without a key: offset delta and null. Of one that follows another without headers: the end of that, and
#: its own length.
_KEYLESS = tuple(number + _NULL_VARINT for number in VARINTS)
_AFTER_PLAIN = tuple(_NONE + number for number in VARINTS)


class Surroundings(NamedTuple):
    """A request without its size and its only record set. `compact`: whether the set has a compact length."""

    before: bytes
    compact: bool
    after: bytes


def encode_message_set(
    payloads: Sequence[bytes | None],
    *,
    magic: int = 1,
    codec: RecordCodec = RecordCodec.NONE,
    keys: Sequence[bytes | None] | None = None,
    timestamps: int | Sequence[int] = NO_TIMESTAMP,
    base_offset: int = 0,
    log_append_time: int | None = None,
) -> bytes:
    """One message per payload, of magic 0 or 1; with a codec all of them in one compressed message.

    `keys`: one per payload, or none at all. `timestamps`: milliseconds, one for all or one each; magic 0 has none.
    `log_append_time`: what a broker sets whose topic has it, the same for all. No payloads give no bytes. Raises
    EncodeError for another magic, a codec that it does not have, and what no field can hold.
    """
    if magic not in {0, 1}:
        raise EncodeError(f"magic {magic} has no message sets; encode a record batch")
    if not payloads:
        return b""
    attributes = 0
    stamps: Sequence[int] | int = timestamps
    if magic == 1 and log_append_time is not None:
        attributes, stamps = _LOG_APPEND_TIME, log_append_time
    if codec is RecordCodec.NONE:
        return _messages(payloads, keys, stamps, magic, attributes, base_offset)
    first = base_offset if magic == 0 else 0
    # The broker that sets the time of appending does so on the wrapper alone.
    inner = compress(codec, _messages(payloads, keys, timestamps, magic, 0, first), magic)
    stamp = stamps if isinstance(stamps, int) else max(stamps)
    return _messages([inner], None, stamp, magic, attributes | codec, base_offset + len(payloads) - 1)


def _messages(
    payloads: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: int | Sequence[int],
    magic: int,
    attributes: int,
    offset: int,
) -> bytes:
    native = native_codec()
    if native is not None:
        written = native.encode_messages(payloads, keys or None, timestamps, magic, attributes, offset)
        if written is not None:
            return written
    stamps = repeat(timestamps, len(payloads)) if isinstance(timestamps, int) else timestamps
    pieces: list[bytes] = []
    payload: bytes | None = None
    try:
        for payload, key, stamp in zip(payloads, keys or repeat(None, len(payloads)), stamps, strict=True):
            length = -1 if key is None else len(key)
            fields = (
                _FIELDS_1.pack(magic, attributes, stamp, length) if magic else _FIELDS_0.pack(magic, attributes, length)
            )
            if key is not None:
                fields += key
            if payload is None:
                fields, payload = fields + _NULL, b""
            else:
                fields += _SIZE.pack(len(payload))
            crc = crc32(payload, crc32(fields))
            pieces += (_HEAD.pack(offset, 4 + len(fields) + len(payload), crc), fields, payload)
            offset += 1
    except struct.error as error:
        raise EncodeError(
            f"a message with a payload of {len(payload or b'')} bytes cannot be written: {error}"
        ) from error
    except ValueError as error:
        raise EncodeError("the numbers of keys, timestamps and payloads differ") from error
    return b"".join(pieces)


def encode_record_batch(
    payloads: Sequence[bytes | None],
    *,
    codec: RecordCodec = RecordCodec.NONE,
    keys: Sequence[bytes | None] | None = None,
    timestamps: int | Sequence[int] = NO_TIMESTAMP,
    headers: Mapping[int, Headers] | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    log_append_time: int | None = None,
    around: Surroundings | None = None,
) -> bytes:
    """One batch of a record per payload (magic 2).

    `keys`: one per payload, or none at all. `timestamps`: milliseconds, one for all or one each. `headers`: by the
    number of the payload. `producer_id`, `producer_epoch`, `base_sequence`: of an idempotent producer.
    `log_append_time`: what a broker sets whose topic has it. `around`: what the batch is written into; the whole frame
    is returned then, with its size. No payloads give no bytes. Raises EncodeError for what no field can hold.
    """
    if not payloads:
        return b""
    count = len(payloads)
    attributes = int(codec)
    if transactional:
        attributes |= _TRANSACTIONAL
    native = native_codec()
    if native is not None and not headers and codec is RecordCodec.NONE and log_append_time is None:
        numbers = attributes, base_offset, leader_epoch, producer_id, producer_epoch, base_sequence
        batch = native.encode_batch(payloads, keys or None, timestamps, numbers, around)
        if batch is not None:
            return batch
    written = None if native is None or headers else native.encode_records(payloads, keys or None, timestamps)
    records, base_time, max_time = written or _columns(payloads, keys, timestamps, headers)
    if log_append_time is not None:
        attributes, max_time = attributes | _LOG_APPEND_TIME, log_append_time
    body = compress(codec, records, record_batch.MAGIC)
    try:
        fields = _BATCH_FIELDS.pack(
            attributes, count - 1, base_time, max_time, producer_id, producer_epoch, base_sequence, count
        )
        length = record_batch.MIN_LENGTH + len(body)
        crc = extend_crc32c(crc32c(fields), body)
        head = _BATCH_HEAD.pack(base_offset, length, leader_epoch, record_batch.MAGIC, crc)
    except struct.error as error:
        raise EncodeError(f"a batch of {count} records and {len(records)} bytes cannot be written: {error}") from error
    return b"".join((head, fields, body)) if around is None else _framed(around, head, fields, body)


def _framed(around: Surroundings, head: bytes, fields: bytes, body: bytes) -> bytes:
    before, compact, after = around
    size = len(head) + len(fields) + len(body)
    try:
        length = uvarint(size + 1) if compact else _SIZE.pack(size)
        frame = _SIZE.pack(len(before) + len(length) + size + len(after))
    except struct.error:
        problem = f"a record batch of {size} bytes does not fit into one request: send smaller batches"
        raise EncodeError(problem) from None
    return b"".join((frame, before, length, head, fields, body, after))


def _columns(
    payloads: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps: int | Sequence[int],
    headers: Mapping[int, Headers] | None,
) -> tuple[bytes, int, int]:
    """The records, first and highest timestamp."""
    count = len(payloads)
    if isinstance(timestamps, int):
        base_time = max_time = timestamps
        deltas = [0] * count
    else:
        base_time, max_time = timestamps[0], max(timestamps)
        if max_time - base_time >= 1 << 63 or min(timestamps) - base_time < -1 << 63:
            raise EncodeError("timestamps are further apart than one batch can hold")
        deltas = [timestamp - base_time for timestamp in timestamps]
    try:
        if keys is None and not headers and count <= _TABLE:
            records = _plain_records(payloads, deltas)
        else:
            records = _records(payloads, keys or repeat(None, count), deltas, headers or {})
    except UnicodeEncodeError as error:
        raise EncodeError(f"the header name {error.object[:20]!r} cannot be sent: not UTF-8") from None
    except ValueError as error:
        raise EncodeError("the numbers of keys, timestamps and payloads differ") from error
    return records, base_time, max_time


def _plain_records(payloads: Sequence[bytes | None], deltas: Sequence[int]) -> bytes:
    """Records without keys and headers. What the table cannot say, the slower way can."""
    pieces: list[bytes] = []
    last_delta, time = 0, b"\x00" + _NONE
    overhead = len(time) + len(_NONE)
    try:
        for payload, delta, place in zip(payloads, deltas, _KEYLESS[: len(payloads)], strict=True):
            if delta != last_delta:
                last_delta, time = delta, b"\x00" + varint(delta)
                overhead = len(time) + len(_NONE)
            length = len(payload)  # type: ignore[arg-type]  # a null payload is a TypeError
            size = VARINTS[length]
            pieces += (_AFTER_PLAIN[overhead + len(place) + len(size) + length], time, place, size, payload)  # type: ignore[arg-type]
    except (IndexError, TypeError):
        return _records(payloads, repeat(None, len(payloads)), deltas, {})
    pieces[0] = pieces[0][len(_NONE) :]
    pieces.append(_NONE)
    return b"".join(pieces)


def _records(
    payloads: Sequence[bytes | None],
    keys: Iterable[bytes | None],
    deltas: Iterable[int],
    headers: Mapping[int, Headers],
) -> bytes:
    pieces: list[bytes] = []
    last_delta, time = 0, b"\x00" + _NONE
    for number, (payload, key, delta) in enumerate(zip(payloads, keys, deltas, strict=True)):
        if delta != last_delta:
            last_delta, time = delta, b"\x00" + varint(delta)
        place = VARINTS[number] if number < _TABLE else varint(number)
        if key is None:
            key, key_size = b"", _NULL_VARINT
        else:
            key_size = varint(len(key))
        if payload is None:
            payload, size = b"", _NULL_VARINT
        else:
            length = len(payload)
            size = VARINTS[length] if length < _TABLE else varint(length)
        tail = _headers(headers[number]) if number in headers else _NONE
        length = len(time) + len(place) + len(key_size) + len(key) + len(size) + len(payload) + len(tail)
        written = VARINTS[length] if length < _TABLE else varint(length)
        pieces += (written, time, place, key_size, key, size, payload, tail)
    return b"".join(pieces)


def _headers(headers: Headers) -> bytes:
    pieces = [varint(len(headers))]
    for name, value in headers:
        if value is None:
            pieces += (_header_name(name), _NULL_VARINT)
        else:
            length = len(value)
            pieces += (_header_name(name), VARINTS[length] if length < _TABLE else varint(length), value)
    return b"".join(pieces)


@lru_cache(maxsize=1024)
def _header_name(name: str) -> bytes:
    """With its length in front. There are few of them, and the same in every record."""
    written = name.encode()
    return varint(len(written)) + written
