"""The lag in seconds of groups that are seen from outside: the age of the first message that is not handled.

Strategy: as for the daemon's own partitions, by the message's timestamp where a broker can be asked for it (0.10 and
later), else since the log was last seen to end at the committed offset or before it. A timestamp is asked for once,
until the committed offset moves. What neither of them tells is unknown, never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.member.offsets.end_times import EndTimes, age_of_next
from consumerd.operate.admin.lag import PartitionLag
from consumerd.operate.admin.v08.group_source import GroupSource
from consumerd.operate.admin.v08.next_messages import Position, next_timestamps

#: Reads the timestamps of the first messages at or after positions, in milliseconds, as far as they are known.
ReadTimestamps = Callable[[Collection[Position]], Awaitable[Mapping[Position, int]]]


class LagTimes:
    """The lag in seconds at the last `look`. `read`: None where messages have no timestamps (0.7)."""

    def __init__(self, clock: Clock, read: ReadTimestamps | None = None) -> None:
        self._clock = clock
        self._read = read
        self._end_times: dict[TopicPartition, EndTimes] = {}
        self._timestamps: Mapping[Position, int] = {}
        self._now = self._wall = 0.0

    async def look(self, partitions: Iterable[PartitionLag]) -> None:
        """Note where the logs end, and ask when the next messages were made. `partitions`: of all groups."""
        known = [each for each in partitions if each.lag is not None]
        self._now, self._wall = self._clock.monotonic(), self._clock.wall()
        self._note_ends(known)
        behind = {(each.partition, each.position) for each in known if each.lag}
        wanted = {(partition, position) for partition, position in behind if position is not None}
        kept = {position: self._timestamps[position] for position in wanted & self._timestamps.keys()}
        missing = wanted - kept.keys()
        self._timestamps = {**kept, **(await self._read(missing) if self._read and missing else {})}

    def _note_ends(self, partitions: Iterable[PartitionLag]) -> None:
        """Of a log that several groups read, the least position counts."""
        ends: dict[TopicPartition, int] = {}
        positions: defaultdict[TopicPartition, list[int]] = defaultdict(list)
        for each in partitions:
            if each.end is not None and each.position is not None:
                ends[each.partition] = each.end
                positions[each.partition].append(each.position)
        former, self._end_times = self._end_times, {}
        for partition, end in ends.items():
            times = self._end_times[partition] = former.get(partition) or EndTimes()
            times.note(end, self._now, min(positions[partition]))

    def age(self, each: PartitionLag) -> float | None:
        """The age of the first message that is not handled, in seconds; 0 without lag, None for unknown."""
        if not each.lag or each.position is None:
            return None if each.lag is None else 0.0
        timestamp = self._timestamps.get((each.partition, each.position))
        times = self._end_times.get(each.partition)
        return age_of_next(timestamp, times, each.position, wall=self._wall, now=self._now)


def timestamp_reader(source: GroupSource) -> ReadTimestamps | None:
    """How to ask the brokers of a source, after lags were read from it; None where there is none to ask."""
    client = source.logs.client
    return None if client is None else partial(next_timestamps, client)
