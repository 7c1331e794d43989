"""Changes that keep checksums, sizes and compression right, so that a fuzzer gets to what is behind these.

Strategy: `changed_set` and `changed_records` let `change` work on the messages inside of a wrapper or batch, as often
as on the bytes around it, and then write the sizes and CRCs that belong to the result. A message that cannot be
compressed or opened is changed as it stands. `changed_json` replaces a value of a JSON document by one that its reader
may not expect, since a change of its bytes hardly ever leaves a document.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from google_crc32c import value as crc32c

from consumerd.wire import WireError
from consumerd.wire.compression import Codec, compress, decompress
from consumerd.wire.v08.records import codecs as record_codecs

if TYPE_CHECKING:
    import random

_MOST: Final = 1 << 16
#: The bytes of a record batch before its records.
_BATCH_HEADER: Final = 61
#: The bytes of a message of magic 1 before its value.
_WRAPPER_HEADER: Final = 34


def signed_set(data: bytes) -> bytes:
    """The messages of a set of 0.7 with their right CRCs; one that is longer than the rest gets that size."""
    found = bytearray(data)
    at = 0
    while at + 10 <= len(found):
        size = int.from_bytes(found[at : at + 4], signed=True)
        if not 6 <= size <= len(found) - at - 4:
            size = len(found) - at - 4
            found[at : at + 4] = size.to_bytes(4)
        body = at + 9 + (found[at + 4] == 1)
        end = at + 4 + size
        found[body - 4 : body] = zlib.crc32(found[body:end]).to_bytes(4)
        at = end
    return bytes(found)


def signed_records(data: bytes) -> bytes:
    """The first message or batch with the size that it has and the CRC that belongs to it."""
    if len(data) < 22:
        return data
    found = bytearray(data)
    found[8:12] = struct.pack(">i", len(found) - 12)
    if found[16] == 2:
        found[17:21] = struct.pack(">I", crc32c(bytes(found[21:])))
    else:
        found[12:16] = struct.pack(">I", zlib.crc32(found[16:]))
    return bytes(found)


def signed_entries(data: bytes) -> bytes:
    """Each message or batch with its right CRC; one that is longer than the rest gets that size."""
    found = bytearray(data)
    at = 0
    while at + 18 <= len(found):
        size = int.from_bytes(found[at + 8 : at + 12], signed=True)
        if not 6 <= size <= len(found) - at - 12:
            size = len(found) - at - 12
            found[at + 8 : at + 12] = size.to_bytes(4)
        end = at + 12 + size
        if found[at + 16] == 2 and size >= _BATCH_HEADER - 12:
            found[at + 17 : at + 21] = crc32c(bytes(found[at + 21 : end])).to_bytes(4)
        else:
            found[at + 12 : at + 16] = zlib.crc32(found[at + 16 : end]).to_bytes(4)
        at = end
    return bytes(found)


def changed_set(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A set of 0.7 after `change`, of its first message's inside if that is compressed; signed three times of four."""
    if len(data) > 10 and data[4] == 1 and data[5] in (1, 2) and rng.random() < 0.5:
        codec = Codec(data[5])
        size = int.from_bytes(data[:4], signed=True)
        end = 4 + size if 6 <= size <= len(data) - 4 else len(data)
        try:
            inside = decompress(codec, data[10:end], limit=_MOST)
            payload = compress(codec, changed_set(inside, change, rng))
        except WireError:
            return signed_set(change(data))
        return signed_set((len(payload) + 6).to_bytes(4) + data[4:10] + payload + data[end:])
    changed = change(data)
    return signed_set(changed) if rng.random() < 0.75 else changed


def changed_records(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A batch of 0.11 and later, or a message of 0.8, after `change`; as `changed_set`."""
    if len(data) > _WRAPPER_HEADER and data[16] < 2 and data[17] & 7 and rng.random() < 0.5:
        value = 26 + 8 * data[16]  # behind a key that is null
        try:
            inside = record_codecs.decompress(data[17], data[value:], data[16], limit=_MOST)
            codec = record_codecs.RecordCodec(data[17] & 7)
            payload = record_codecs.compress(codec, signed_entries(change(inside)), data[16])
        except (WireError, ValueError):
            return signed_entries(change(data))
        return signed_records(data[: value - 4] + len(payload).to_bytes(4) + payload)
    if len(data) > _BATCH_HEADER and data[16] == 2 and data[22] & 7 and rng.random() < 0.5:
        try:
            codec = record_codecs.RecordCodec(data[22] & 7)
            inside = record_codecs.decompress(data[22], data[_BATCH_HEADER:], 2, limit=_MOST)
            payload = record_codecs.compress(codec, change(inside), 2)
        except (WireError, ValueError):
            return signed_entries(change(data))
        return signed_records(data[:_BATCH_HEADER] + payload)
    changed = change(data)
    return signed_entries(changed) if rng.random() < 0.75 else changed


#: JSON texts that a reader may not expect in the place of another one.
_HOSTILE: Final = (
    "null", "true", "0", "-1", "1.5", "1e999", "NaN", "9223372036854775808", "9" * 5000, '""', '".."', '"/"',
    '"\\ud800"', '"\\u0000"', "[]", "{}", "[[]]", '{"": {}}', "[1, 2, 3, 4]", "[" * 2000 + "]" * 2000,
)  # fmt: skip
_PLACE: Final = "a place of another text"


def changed_json(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """One line of `data`, or all of it, with another value or key; as often the bytes after `change`."""
    if rng.random() < 0.5:
        return change(data)
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    for part in (lines[number], data):
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        whole = [found]
        holders = [whole, *_holders(found)]
        holder = rng.choice([each for each in holders if each])
        key = rng.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
        if isinstance(holder, dict) and rng.random() < 0.2:
            holder[change(str(key).encode()).decode(errors="replace")] = holder.pop(key)
        else:
            holder[key] = _PLACE
        text = json.dumps(whole[0]).replace(json.dumps(_PLACE), rng.choice(_HOSTILE)).encode()
        return text if part is data else b"\n".join([*lines[:number], text, *lines[number + 1 :]])
    return change(data)


def _holders(found: Any) -> list[Any]:
    """Every object and list in a document, without recursion."""
    holders, left = [], [found]
    while left:
        each = left.pop()
        if isinstance(each, dict | list):
            holders.append(each)
            left += each.values() if isinstance(each, dict) else each
    return holders
