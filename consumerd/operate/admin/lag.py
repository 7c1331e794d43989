"""The lag of a group: in bytes of the logs where offsets are byte positions (0.7), in messages since 0.8.

Strategy: a number that is not known is None, and so is a sum with such a part. A partition that the cluster does not
have is not missing in the sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError, ConsumerdError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.member.offsets.end_times import EndTimes, age_of_next
from consumerd.operate.admin.errors import CheckFailedError
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.logs import LogRange, LookupFailure, Position, ReadTimestamps
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.wire.errors import WireError

#: Groups that are read at once.
_AT_ONCE: Final = 8


class PartitionLag(NamedTuple):
    """One partition. `lag` is None where its committed offset or the end of its log is not known."""

    partition: TopicPartition
    owner: str | None
    committed: int | None
    earliest: int | None
    end: int | None
    lag: int | None
    remark: str
    #: Whether the cluster has no such partition.
    gone: bool = False

    @property
    def position(self) -> int | None:
        """The offset of the first message that is not handled, as far as the log has it; None for unknown."""
        if self.earliest is None:
            return None
        return self.earliest if self.committed is None else max(self.committed, self.earliest)

    @property
    def unread(self) -> bool:
        """Whether the partition has a lag that could not be read."""
        return self.lag is None and not self.gone


async def read_lag(source: GroupSource, group: str, topics: Sequence[str]) -> list[PartitionLag]:
    """The lag of a group, in all topics or in those of `topics`.

    Raises NotFoundError, CheckFailedError for a share group, which has no lag.
    """
    snapshot = await _with_offsets(source, group)
    ranges = await source.logs.ranges(_existing([snapshot]))
    return [each for each in lag_of(snapshot, ranges) if not topics or each.partition.topic in topics]


async def _with_offsets(source: GroupSource, group: str) -> GroupSnapshot:
    """Read a group that commits offsets. Raises CheckFailedError for a share group."""
    snapshot = await source.snapshot(group)
    if snapshot.group_type == "share":
        raise CheckFailedError(
            f"the lag of group {group!r} is unknown: it is a share group, whose members acknowledge single messages "
            "and commit no offsets; see `kafka-share-groups.sh --describe`"
        )
    return snapshot


class GroupLag(NamedTuple):
    """The lag of one of several groups. `clients`: "client id at host" of members, where brokers tell it."""

    partitions: Sequence[PartitionLag]
    clients: Mapping[str, str]

    def client_of(self, owner: str | None) -> tuple[str, str]:
        """Return client id and host of a partition's owner, each empty if it is not known."""
        client, _, host = self.clients.get(owner or "", "").rpartition(" at ")
        return client, host


async def read_lags(source: GroupSource, groups: Sequence[str]) -> dict[str, GroupLag | ConsumerdError | WireError]:
    """The lag of several groups; in place of one that could not be read its error.

    Groups that do not exist any more are absent. A log that several of them read is looked at once.
    """
    with suppress(BrokerError):  # of which the snapshots tell
        await source.prepare(groups)

    async def read(group: str) -> GroupSnapshot | ConsumerdError | WireError | None:
        try:
            return await _with_offsets(source, group)
        except NotFoundError:
            return None  # it was deleted meanwhile
        except (ConsumerdError, WireError) as error:
            return error

    found = await read_all(groups, read, at_once=_AT_ONCE)
    ranges = await source.logs.ranges(_existing(each for each in found.values() if isinstance(each, GroupSnapshot)))
    return {
        name: GroupLag(lag_of(each, ranges), each.clients) if isinstance(each, GroupSnapshot) else each
        for name, each in found.items()
        if each is not None
    }


def _existing(snapshots: Iterable[GroupSnapshot]) -> list[TopicPartition]:
    return [partition for each in snapshots for partition in each.partitions() if each.exists(partition)]


def lag_of(snapshot: GroupSnapshot, ranges: Mapping[TopicPartition, LogRange | LookupFailure]) -> list[PartitionLag]:
    """The lag of every partition that is subscribed to, owned or committed.

    What can still be read counts: without a committed offset all of the log, and not what retention took away.
    """
    found = []
    unread = _unread_offsets(snapshot)
    for partition in [*snapshot.partitions(), *sorted(unread.keys() - set(snapshot.partitions()))]:
        committed, known = snapshot.committed(partition), ranges.get(partition)
        name = snapshot.owner_name(partition)
        if committed is None and partition in unread:
            start, end = (known.earliest, known.end) if isinstance(known, LogRange) else (None, None)
            found.append(PartitionLag(partition, name, None, start, end, None, unread[partition]))
        elif isinstance(known, LogRange):
            start = known.earliest if committed is None else committed
            lag = max(known.end - max(start, known.earliest), 0)
            remark = _remark(committed, known, snapshot.unit)
            found.append(PartitionLag(partition, name, committed, known.earliest, known.end, lag, remark))
        else:
            remark = known.reason if known is not None else snapshot.absence(partition)
            gone = known is None and not snapshot.may_return(partition)
            found.append(PartitionLag(partition, name, committed, None, None, None, remark, gone))
    return found


def _unread_offsets(snapshot: GroupSnapshot) -> dict[TopicPartition, str]:
    """The partitions that may have a committed offset which could not be read, and why."""
    found = {}
    if snapshot.kept_unknown:
        found = dict.fromkeys(snapshot.partitions(), snapshot.kept_unknown)
    for subject, fault in snapshot.offset_faults(read=True).items():
        topic, _, name = subject.partition("/")
        found[TopicPartition.parse_any(topic, name)] = fault
    return found


def _remark(committed: int | None, known: LogRange, unit: str) -> str:
    if committed is None:
        return "no committed offset: all of the log"
    if committed < known.earliest:
        return f"{known.earliest - committed} {unit} before the earliest were deleted unread"
    if committed > known.end:
        return f"committed {committed - known.end} {unit} beyond the end"
    return ""


def known_lag(lags: Iterable[PartitionLag]) -> int:
    """The sum over the partitions whose lag is known."""
    return sum(each.lag for each in lags if each.lag is not None)


def total_lag(lags: Sequence[PartitionLag]) -> int | None:
    """The lag of all partitions; None where one of them could not be read."""
    return None if any(each.unread for each in lags) else known_lag(lags)


# The lag in seconds of groups that are seen from outside: the age of the first message that is not handled.
#
# Strategy: as for the daemon's own partitions, by the message's timestamp where a broker can be asked for it (0.10 and
# later), else since the log was last seen to end at the committed offset or before it. A timestamp is asked for once,
# until the committed offset moves. What neither of them tells is unknown, never 0.


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
