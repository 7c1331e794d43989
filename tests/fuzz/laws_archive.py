"""What holds for each reader of archives, whatever is in their files, and however reads are cut."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable
from typing import Any, Final

from consumerd.storage import DamagedArchiveError
from consumerd.storage.archives.findings import SegmentSummary
from consumerd.storage.archives.zstd import ZstdDecoder
from consumerd.storage.log.archive import read_runs
from consumerd.storage.log.archive_items import Flaw
from consumerd.storage.log.archive_packed import UnpackedStream, gzip_decoder
from consumerd.storage.log.archive_tar import TarKind, list_members, read_members
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, check_batches, read_batches
from consumerd.storage.segments.checking import CheckedBatches
from consumerd.storage.segments.dialect import SegmentDialect, recognise
from consumerd.wire.v07 import BatchEnd, DecodeLimits, decode_batch

LIMITS: Final = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)


class Dribble:
    """A stream that gives a byte, or a few, at a time."""

    def __init__(self, data: bytes, most: int = 1) -> None:
        self.file = io.BytesIO(data)
        self.most = most

    def read(self, size: int, /) -> bytes:
        return self.file.read(min(size, self.most))


def told(stream: Any, size: int, *, resync: bool, window: int) -> list[Any]:
    found = list(read_runs(stream, 1000, limits=LIMITS, resync=resync, window=window))
    ends = [1000, *(item.next_offset for item in found)]
    assert [item.offset for item in found] == ends[:-1]
    assert ends[-1] == 1000 + size
    return [part for item in found for part in ([item] if isinstance(item, Flaw) else item.payloads)]


def exercise_segment(data: bytes) -> None:
    batch = decode_batch(data, 1000, limits=LIMITS)
    for resync in (False, True):
        whole = told(io.BytesIO(data), len(data), resync=resync, window=1 << 20)
        assert whole == told(Dribble(data), len(data), resync=resync, window=1 << 20)
        assert whole == told(Dribble(data, 7), len(data), resync=resync, window=50)
        flaws = [number for number, item in enumerate(whole) if isinstance(item, Flaw)]
        assert bool(flaws) is (batch.end is not BatchEnd.COMPLETE)
        assert whole[: flaws[0] if flaws else None] == batch.payloads


def without_records(item: StoredBatch | SegmentFlaw) -> tuple[Any, ...]:
    """What can be compared: the records of two readings are different objects."""
    return tuple(value for name, value in item._asdict().items() if name != "records")


def summed(items: Iterable[CheckedBatches | StoredBatch | SegmentFlaw]) -> SegmentSummary:
    summary = SegmentSummary("source", "stamp", "t-0", 1000, dialect=SegmentDialect.V08)
    for item in items:
        summary.see_batch(item)
    return summary


def exercise_batches(data: bytes) -> None:
    """Batches and flaws tile a segment since 0.8; each offset is read once, unless the batch says that it is wrong."""
    recognise(data)
    whole = list(read_batches(io.BytesIO(data), 1000, limits=LIMITS))
    ends = [0, *(item.position + item.size for item in whole)]
    assert [item.position for item in whole] == ends[:-1]
    assert ends[-1] == len(data)
    cut = list(read_batches(Dribble(data, 7), 1000, limits=LIMITS, window=50))
    assert [without_records(item) for item in whole] == [without_records(item) for item in cut]
    assert summed(check_batches(io.BytesIO(data), 1000, limits=LIMITS, shallow=False)) == summed(whole)
    checked = list(check_batches(Dribble(data, 7), 1000, limits=LIMITS, window=50, shallow=True))
    assert sum(item.size for item in checked) == len(data)
    least = 1000
    for item in whole:
        if isinstance(item, StoredBatch) and item.problem is None:
            assert item.offset >= least
            least = item.next_offset


def drained(stream: Any) -> bytes:
    return b"".join(iter(lambda: stream.read(1000), b""))


def outcome(read: Any) -> Any:
    try:
        return read()
    except DamagedArchiveError:
        return None


def exercise_tar(data: bytes) -> None:
    def members(stream: Any) -> list[Any]:
        found = []
        for member, inside in read_members(stream):
            kept = drained(inside)
            assert len(member.name) < 2000
            assert member.kind is TarKind.FILE or not kept
            found.append((member, kept))
        return found

    assert outcome(lambda: members(io.BytesIO(data))) == outcome(lambda: members(Dribble(data, 100)))
    outcome(lambda: list_members(io.BytesIO(data)))


def exercise_packed(data: bytes) -> None:
    for decoder in (gzip_decoder, ZstdDecoder):
        streams = [UnpackedStream(stream, decoder) for stream in (io.BytesIO(data), Dribble(data))]
        whole, cut = [outcome(functools.partial(drained, stream)) for stream in streams]
        assert whole == cut
