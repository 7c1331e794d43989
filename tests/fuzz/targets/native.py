"""The native codec beside the pure one: each path that is written twice, with limits and behind compression."""

from __future__ import annotations

import functools
from typing import Any, Final

import cramjam
import zstandard

from consumerd.wire.lz4 import lz4_compress
from consumerd.wire.v07 import Codec
from consumerd.wire.v07 import encode_message_set as encode_set_v07
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch
from consumerd.wire.v08.records.codecs import compress
from tests.fuzz.laws_native import (
    exercise_archive,
    exercise_compressed,
    exercise_encoding,
    exercise_lines,
    exercise_records,
    exercise_sets,
)
from tests.fuzz.mending import changed_records, changed_set
from tests.fuzz.mending_packed import CHANGED, behind
from tests.fuzz.targets.target import Target

_VALUES: Final = (b"one", b"", b"three" * 9)
_CODECS: Final = (RecordCodec.GZIP, RecordCodec.SNAPPY, RecordCodec.LZ4, RecordCodec.ZSTD)


def _sets() -> dict[str, bytes]:
    found = {}
    for codec in Codec:
        data = encode_set_v07([*_VALUES], codec=codec)
        for name, choice in (("free", b"\0\0"), ("limited", b"\x5a\2"), ("small", b"\x15\1")):
            found[f"{codec.name.lower()}-{name}"] = choice + data + data
    return found


def _records() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for codec in RecordCodec:
        data = encode_record_batch([*_VALUES], codec=codec, base_offset=1000)
        marked = encode_record_batch([*_VALUES], codec=codec, base_offset=1003, transactional=True)
        for name, choice in (("free", b"\0\0"), ("limited", b"\x1a\2"), ("aborted", b"\0\x0f"), ("late", b"\0\x80")):
            found[f"{codec.name.lower()}-{name}"] = choice + data + marked
        if codec is not RecordCodec.ZSTD:
            old = [encode_message_set([*_VALUES], magic=magic, codec=codec, base_offset=1000) for magic in (0, 1)]
            found |= {f"{codec.name.lower()}-{magic}": b"\0\0" + data for magic, data in enumerate(old)}
    return found


def _lines() -> dict[str, bytes]:
    texts = ['"\\/\n\t\x00\x1f\x7f', "\u00e4\u20ac\U0001f600", "\u2028"]
    values = [text.encode() for text in texts] + [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff", b""]
    return {codec.name.lower(): b"\0\3\x30" + encode_set_v07(values, codec=codec) for codec in Codec}


def _segments() -> dict[str, bytes]:
    found = {}
    for codec in Codec:
        plain, packed = encode_set_v07([*_VALUES], magic=0), encode_set_v07([*_VALUES], codec=codec)
        for name, choice in (("whole", b"\0"), ("base64", b"\7")):
            found[f"{codec.name.lower()}-{name}"] = choice + plain + packed + bytes(9) + packed
    return found


def _columns() -> dict[str, bytes]:
    rows = b"".join(bytes([size, size + 1]) + (number << 40).to_bytes(8) for number, size in enumerate(range(16)))
    return {f"kind-{flags}": bytes([flags]) + (1000).to_bytes(8) + rows for flags in (0, 1, 2, 3, 6, 14, 21, 34, 71)}


def _compressed(codec: RecordCodec) -> dict[str, bytes]:
    """Sets and records in all forms that there are of the codec; the first byte of each says how they are read."""
    found: dict[str, bytes] = {}
    plain = {
        "v07": (9, encode_set_v07([*_VALUES])),
        "magic-0": (9, encode_message_set([*_VALUES], magic=0, base_offset=1000)),
        "magic-1": (10, encode_message_set([*_VALUES], magic=1)),
        "magic-2": (11, encode_record_batch([*_VALUES], base_offset=1000)[61:]),
    }
    for name, (choice, data) in plain.items():
        forms = [compress(codec, data, 2)]
        if codec is RecordCodec.SNAPPY:
            forms.append(bytes(cramjam.snappy.compress_raw(data)))
        elif codec is RecordCodec.LZ4:
            forms += [bytes(cramjam.lz4.compress(data)), lz4_compress(data, broken_checksum=True)]
        elif codec is RecordCodec.ZSTD:
            options: dict[str, Any] = {"write_checksum": True, "write_content_size": True}
            forms.append(zstandard.ZstdCompressor(19, **options).compress(data))
        found |= {f"{name}-{number}": bytes([choice]) + form for number, form in enumerate(forms)}
    return found


TARGETS: Final = (
    Target(
        "native-sets", "Both codecs agree on sets of 0.7 within any limits, fetched, produced and recovered.",
        exercise_sets, _sets, behind(2, changed_set),
    ),
    Target(
        "native-records", "Both codecs agree on records within any limits and with any aborted transactions.",
        exercise_records, _records, behind(2, changed_records),
    ),
    Target(
        "native-lines", "Both codecs write the same lines of JSON, however these are divided.",
        exercise_lines, _lines, behind(3, changed_set),
    ),
    Target(
        "native-archive", "Both codecs write the same rows of a segment, and find the same flaws.",
        exercise_archive, _segments, behind(1, changed_set),
    ),
    Target("native-encoding", "Both codecs write the same bytes or raise the same error.", exercise_encoding, _columns),
    *(
        Target(
            f"native-{codec.name.lower()}", "Both codecs agree on compressed data in a message whose CRC is right.",
            functools.partial(exercise_compressed, codec), functools.partial(_compressed, codec),
            behind(1, CHANGED[codec.name.lower()]), 2048,
        )
        for codec in _CODECS
    ),
)  # fmt: skip
