"""What holds for the native codec and the pure one together, whatever bytes they are given: they agree in everything.

Where the native codec is not built, the pure one runs alone, and has to end with a verdict or a declared error.
"""

from __future__ import annotations

import io
import json
import struct
from typing import Any, Final

from google_crc32c import value as crc32c

from consumerd.base import native
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.builtin.records import encode_pieces, encode_records
from consumerd.storage.archives.ndjson import NdjsonWriter
from consumerd.storage.archives.rows import RowOrigin
from consumerd.storage.log.archive import read_indexed
from consumerd.storage.log.archive_items import ArchivedRun, Flaw
from consumerd.storage.log.archive_names import SegmentName
from consumerd.wire import compress, crc32
from consumerd.wire.v07 import Codec, decode_batch, encode_message
from consumerd.wire.v07 import DecodeLimits as SetLimits
from consumerd.wire.v07 import encode_message_set as encode_set_v07
from consumerd.wire.v08.records import (
    DecodeLimits,
    RecordCodec,
    decode_records,
    encode_message_set,
    encode_record_batch,
)
from tests.support.codecs import (
    decode_by_both,
    decode_records_by_both,
    installed_native_codec,
    judge_by_both,
    written_by_both,
)

_LARGE: Final = 1 << 20
#: Sizes of values and keys where a length takes another byte, or a buffer grows.
SIZES: Final = (None, 0, 1, 2, 40, 57, 58, 59, 62, 63, 64, 127, 128, 8100, 8185, 8200)
#: Bytes of the first window of `verify`.
WINDOW: Final = 4096
_SEGMENT: Final = SegmentName("t\u00e4", None, 3, 1000)
_ARCHIVED: Final = SetLimits(max_message_bytes=_LARGE, max_decompressed_bytes=_LARGE)
#: Producers and first offsets of aborted transactions.
_ABORTED: Final = ((-1, 0), (-1, 1000), (7, 1000), (7, 1004))
_ROW: Final = struct.Struct(">BBq")


def exercise_sets(data: bytes) -> None:
    """A set of 0.7 within any limits, fetched, produced and recovered. The first two bytes choose the limits."""
    first, second = (data + bytes(2))[:2]
    limits = SetLimits(
        max_message_bytes=(_LARGE, 10, 60, 300)[first & 3],
        max_decompressed_bytes=(_LARGE, 40, 200, 4000)[first >> 2 & 3],
        max_batch_bytes=(_LARGE, 1, 300, 2000)[first >> 4 & 3],
        max_depth=(5, 0, 1, 2)[first >> 6],
        max_pieces=(1000, 0, 2, 10)[second & 3],
    )
    _decode_set(data[2:], limits)
    # Of a buffer that others may write to, the native codec checks a window at a time.
    before = (0, WINDOW - 100, WINDOW - 10, WINDOW - 2)[second >> 2 & 3] * (1 + (second >> 4 & 3))
    judge_by_both((encode_message(bytes(before - 10)) if before else b"") + data[2:], limits)


def _decode_set(data: bytes, limits: SetLimits) -> None:
    if installed_native_codec() is None:
        decode_batch(data, 1000, limits=limits)
    else:
        decode_by_both(data, 1000, limits=limits)


def exercise_records(data: bytes) -> None:
    """Records within any limits and with any aborted transactions. The first two bytes choose them."""
    first, second = (data + bytes(2))[:2]
    limits = DecodeLimits(
        max_message_bytes=(_LARGE, 60, 300, 4000)[first & 3],
        max_decompressed_bytes=(_LARGE, 40, 200, 4000)[first >> 2 & 3],
        max_batch_bytes=(_LARGE, 1, 300, 2000)[first >> 4 & 3],
    )
    aborted = [transaction for number, transaction in enumerate(_ABORTED) if second & 1 << number]
    _decode_records(data[2:], (1000, 0, 1002, 1 << 40)[second >> 6], limits, aborted)


def _decode_records(data: bytes, offset: int, limits: DecodeLimits, aborted: list[tuple[int, int]]) -> None:
    if installed_native_codec() is None:
        decode_records(data, offset, limits=limits, aborted=aborted)
    else:
        decode_records_by_both(data, offset, limits=limits, aborted=aborted)


def exercise_lines(data: bytes) -> None:
    """Messages as lines of JSON, in pieces; the first three bytes choose the first one and the size of the pieces."""
    first, lines, size = (data + bytes(3))[:3]
    found = []
    for codec in (None, installed_native_codec()):
        with native.using(codec):
            content = decode_batch(data[3:], 1000)
            batch = Batch(TopicPartition("t\u00e4", 3, 7), content, first=min(first, len(content)))
            found.append(list(encode_pieces(batch, lines + 1, 2 * size + 1)))
            assert b"".join(found[-1]) == b"".join(encode_records(batch))
    assert found[0] == found[1]


def exercise_archive(data: bytes) -> None:
    """A segment as rows of NDJSON. The first byte chooses the size of a read and the form of payloads."""
    first = data[0] if data else 0
    found = []
    for codec in (None, installed_native_codec()):
        flaws, sink = [], io.BytesIO()
        writer = NdjsonWriter(sink, RowOrigin(_SEGMENT, 'a "log"'), base64=bool(first & 4))
        with native.using(codec):
            window = (1 << 16, 300, 50, 7)[first & 3]
            for item in read_indexed(io.BytesIO(data[1:]), 1000, limits=_ARCHIVED, window=window, resync=True):
                if isinstance(item, Flaw):
                    flaws.append(item)
                    writer.add_flaw(item)
                elif isinstance(item, ArchivedRun):
                    writer.add_run(item)
                else:
                    writer.add_indexed(item)
            writer.finish()
        found.append((sink.getvalue(), flaws))
    assert found[0] == found[1]
    assert all(json.loads(line)["topic"] == "t\u00e4" for line in found[0][0].splitlines())


def exercise_encoding(data: bytes) -> None:
    """Columns of rows as messages or records. The first byte chooses the format, ten bytes are a row."""
    flags = data[0] if data else 0
    offset = int.from_bytes(data[1:9].ljust(8, b"\0"), signed=True)
    rows = list(_ROW.iter_unpack(data[9 : 9 + (len(data) - 9) // _ROW.size * _ROW.size])) if len(data) > 9 else []
    values: list[Any] = [_filled(value, number) for number, (value, _, _) in enumerate(rows)]
    kind: Any = (list, tuple)[flags >> 5 & 1]
    if flags & 64:
        values = [value if value is None else bytearray(value) for value in values]
    if flags & 3 == 3:
        written_by_both(encode_set_v07, kind(value or b"" for value in values), magic=flags >> 2 & 1)
        return
    options: dict[str, Any] = {
        "codec": RecordCodec.GZIP if flags & 16 else RecordCodec.NONE,
        "base_offset": offset,
        "keys": kind(_filled(key, number) for number, (_, key, _) in enumerate(rows)) if flags & 4 else None,
        "timestamps": offset if flags & 8 else [time for _, _, time in rows],
    }
    if flags & 3 == 2:
        written_by_both(encode_record_batch, kind(values), **options)
    else:
        written_by_both(encode_message_set, kind(values), magic=flags & 1, **options)


def _filled(choice: int, number: int) -> bytes | None:
    size = SIZES[choice % len(SIZES)]
    return None if size is None else bytes([choice ^ number & 0xFF]) * size


def exercise_compressed(codec: RecordCodec, data: bytes) -> None:
    """Compressed data in a wrapper or batch with its right CRC. The first byte: magic, number of records, limits."""
    first, payload = data[0] if data else 0, data[1:]
    small = 60 if first & 128 else _LARGE
    if codec in (RecordCodec.GZIP, RecordCodec.SNAPPY):
        wrapper = encode_message(payload, codec=Codec(codec))
        _decode_set(wrapper + encode_message(b"last"), SetLimits(max_decompressed_bytes=small))
        nested = encode_message(compress(Codec.GZIP, wrapper), codec=Codec.GZIP)
        _decode_set(nested, SetLimits(max_decompressed_bytes=small))
    wrapped = packed_records(payload, codec, first % 3, first // 3 % 8)
    last = encode_record_batch([b"last"], base_offset=1020)
    _decode_records(wrapped + last, 1000, DecodeLimits(max_decompressed_bytes=small), [])


def packed_records(payload: bytes, codec: RecordCodec, magic: int, count: int) -> bytes:
    """`payload` as the compressed records of a batch of `count`, or as the value of a wrapper, with its right CRC."""
    if magic == 2:
        fields = struct.pack(">hiqqqhii", codec, max(0, count - 1), 5, 9, -1, -1, -1, count) + payload
        return struct.pack(">qiibI", 1000, len(fields) + 9, 0, 2, crc32c(fields)) + fields
    time = struct.pack(">q", 9) if magic else b""
    fields = bytes([magic, codec]) + time + struct.pack(">ii", -1, len(payload)) + payload
    return struct.pack(">qiI", 1000 + max(0, count - 1), 4 + len(fields), crc32(fields)) + fields
