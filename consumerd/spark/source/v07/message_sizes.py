"""How many bytes of a 0.7 log a message takes, about: what a limit in messages needs where offsets count bytes.

Strategy: the next messages of some partitions are read and counted, those inside of compressed ones, too. It is an
estimate: messages further on may be larger or smaller. It bounds a batch and decides nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumerd.spark.source.logs import SegmentLog
from consumerd.wire.v07 import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.spark.source.logs import PartitionLog

#: Bytes that are read of one partition, and how many partitions are asked.
_SAMPLE: Final = 256 << 10
_PARTITIONS: Final = 8


def bytes_per_message(places: Iterable[tuple[PartitionLog, int]]) -> float:
    """The mean over the messages behind these places; 1 where nothing can be read. Raises as the logs do."""
    size = count = 0
    for log, start in places:
        sampled = _sample(log, start)
        size, count = size + sampled[0], count + sampled[1]
    return max(1.0, size / count) if count else 1.0


def some(places: list[tuple[PartitionLog, int]]) -> list[tuple[PartitionLog, int]]:
    """Evenly spread ones of many."""
    step = -(-len(places) // _PARTITIONS) or 1
    return places[::step]


def _sample(log: PartitionLog, start: int) -> tuple[int, int]:
    """Bytes, and messages in them, from the boundary `start` on; of a large first message its bytes, as one."""
    if not isinstance(log, SegmentLog):
        return 0, 0
    segment = next((each for each in log.segments if each.start <= start < each.end), None)
    if segment is None:
        return 0, 0
    data = b""
    with log.open_segment(log, segment) as fetch:
        while len(data) < _SAMPLE and (more := fetch(start + len(data), _SAMPLE - len(data))):
            data += more
    last, count = start, 0
    for message in decode_batch(data, start, limits=log.limits).messages():
        last, count = max(last, message.next_offset), count + 1
    return (last - start, count) if last > start else (len(data), 1)
