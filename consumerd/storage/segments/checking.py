"""Sound batches that follow one another, of which nothing is kept: what a verification passes at once.

Strategy: what is whole, intact and in its place is counted and passed; the check ends before anything else, which the
reader of single batches judges. A shallow check reads headers and CRCs alone, as a broker does when it recovers a log:
the number of records is what the header says. Else their records must be readable, too, which the native codec alone
sees faster than a reader does. A compressed message of magic 0 or 1 does not say how many it holds, so none passes.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from consumerd.base.native import codec as native_codec
from consumerd.storage.segments.kinds import MAGIC_AT, MAX_OFFSET, OFFSET_AND_LENGTH, OVERHEAD
from consumerd.wire.crc import crc32
from consumerd.wire.v07 import DecodeLimits
from consumerd.wire.v08.records.codecs import CODEC_MASK
from consumerd.wire.v08.records.fetched import record_limits
from consumerd.wire.v08.records.record_batch import CRC_END, HEADER, MAGIC, read_header

_LARGEST_CODEC: Final = 4
#: Of a message of magic 0 and 1: the position of its key's length.
_KEY_AT: Final = (18, 26)
_LENGTH = struct.Struct(">i")


class CheckedBatches(NamedTuple):
    """Sound batches that follow one another, without their records: where they begin and end, in bytes.

    How many there are, how many of them are compressed, and control batches. `records`: those of the batches that are
    not control batches. `next_offset`: the least offset that may follow. `first_epoch` and `last_epoch`: the first and
    the greatest leader epoch, -1 for none.
    """

    position: int
    end: int
    batches: int
    compressed: int
    control: int
    records: int
    next_offset: int
    first_epoch: int
    last_epoch: int

    @property
    def size(self) -> int:
        return self.end - self.position


def sound_batches(
    data: bytes, position: int, least: int, epoch: int, *, limits: DecodeLimits, shallow: bool
) -> CheckedBatches:
    """The sound batches from `position` on, perhaps none.

    `least` and `epoch`: the least offset and leader epoch that may follow. `shallow`: by headers and CRCs alone.
    """
    native = native_codec()
    if native is not None:
        bounds = record_limits(native, limits)
        return CheckedBatches(position, *native.check_batches(data, position, least, epoch, bounds, shallow))
    found = CheckedBatches(position, position, 0, 0, 0, 0, least, -1, epoch)
    while shallow and (passed := _passed(data, found, limits.max_message_bytes)) is not None:
        found = passed
    return found


def _passed(data: bytes, found: CheckedBatches, most: int) -> CheckedBatches | None:
    """What was found, with what stands behind it; None where that is not sound, or has to be decoded."""
    position = found.end
    if len(data) - position <= MAGIC_AT:
        return None
    offset, size = OFFSET_AND_LENGTH.unpack_from(data, position)
    end = position + OVERHEAD + size
    if not 0 <= size <= most or end > len(data) or offset < found.next_offset:
        return None
    if data[position + MAGIC_AT] == MAGIC:
        return _batch(data, found, end)
    if offset > MAX_OFFSET or not _is_plain_message(data[position:end]):
        return None
    return found._replace(end=end, batches=found.batches + 1, records=found.records + 1, next_offset=offset + 1)


def _batch(data: bytes, found: CheckedBatches, end: int) -> CheckedBatches | None:
    # 2 MiB, with the library of C++: not before the first batch.
    from consumerd.wire.v08.records.crc32c import crc32c  # noqa: PLC0415

    if end < found.end + HEADER.size:
        return None
    header = read_header(data, found.end)
    codec, epoch = header.attributes & CODEC_MASK, header.leader_epoch
    is_possible = (
        header.last_offset_delta >= 0
        and header.last_offset <= MAX_OFFSET
        and codec <= _LARGEST_CODEC
        and (header.control or 0 <= header.count <= header.last_offset_delta + 1)
        and not 0 <= epoch < found.last_epoch
    )
    if not is_possible or crc32c(data[found.end + CRC_END : end]) != header.crc:
        return None
    return CheckedBatches(
        found.position,
        end,
        found.batches + 1,
        found.compressed + (codec > 0),
        found.control + header.control,
        found.records + (0 if header.control else header.count),
        header.last_offset + 1,
        epoch if found.first_epoch < 0 <= epoch else found.first_epoch,
        max(found.last_epoch, epoch),
    )


def _is_plain_message(message: bytes) -> bool:
    """Whether a whole message of magic 0 or 1 is intact, not compressed, and as long as its fields."""
    magic = message[MAGIC_AT]
    if magic >= len(_KEY_AT) or len(message) < _KEY_AT[magic] + 2 * _LENGTH.size:
        return False
    if message[MAGIC_AT + 1] & CODEC_MASK or crc32(message[MAGIC_AT:]) != int.from_bytes(message[12:MAGIC_AT]):
        return False
    place = _KEY_AT[magic]
    for _ in range(2):
        if not 0 <= place <= len(message) - _LENGTH.size:
            return False
        length = _LENGTH.unpack_from(message, place)[0]
        if length < -1:
            return False
        place += _LENGTH.size + max(0, length)
    return place == len(message)
