"""The ranges of logs of brokers of 0.8 and later, and offsets by time.

Strategy: one look at all metadata (asking for a topic by name would make brokers before 0.11 create it), then one
OFFSETS request per leader and question. As in `logs`, a missing result is an answer too, `LookupFailure`: a partition
without a leader must not hide the others, and nothing is repeated later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.epochs import EpochEnd, epoch_ends
from consumerd.net.client.errors import error_of
from consumerd.net.client.offsets import list_offsets
from consumerd.operate.admin.logs import LogRange, LookupFailure, OffsetAtTime, ReadTimestamps
from consumerd.operate.admin.v08.next_messages import next_timestamps
from consumerd.wire.errors import WireError
from consumerd.wire.v07 import EARLIEST, LATEST

#: No message is of that time or later.
_NOTHING: Final = -1


class TimestampOffset(NamedTuple):
    """The offset of a time, and whether the broker knows times of whole segments only (before 0.10.1)."""

    offset: int
    by_segment: bool


class V08BrokerLogs:
    """Asks the brokers of `client`; None where there is no broker to ask, and `reason` says why."""

    def __init__(self, client: ClusterClient | None, reason: str = "no broker can be asked") -> None:
        self.client = client
        self._reason = reason

    @property
    def timestamps(self) -> ReadTimestamps | None:
        """Asks leaders for the timestamps of messages; None where there is no broker to ask."""
        return None if self.client is None else partial(next_timestamps, self.client)

    async def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | LookupFailure]:
        """The range of each partition, in the order of `partitions`. Raises nothing for brokers that do not answer."""
        wanted = list(dict.fromkeys(partitions))
        first = await self._ask(wanted, EARLIEST)
        last = await self._ask([one for one in wanted if not isinstance(first[one], LookupFailure)], LATEST)
        return {one: _range(first[one], last.get(one)) for one in wanted}

    async def readable_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where readers of committed messages end, as far as brokers say: at the log's end or an open transaction."""
        listed = await self._ask(list(partitions), LATEST, read_committed=True)
        return {
            one: found.offset
            for one, found in listed.items()
            if not isinstance(found, LookupFailure) and found.offset != _NOTHING
        }

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Where these leader epochs end in the leaders' logs, as far as brokers say (0.11 and later).

        To be called after `ranges`: it uses the same metadata, and what does not answer has no range, either.
        """
        client = self.client
        if client is None:
            return {}
        led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for one in epochs:
            if (node := client.metadata.leader(one.topic, one.partition)) is not None:
                led[node.id].append(one)

        async def ask(node_id: int) -> dict[TopicPartition, EpochEnd]:
            topics, partitions = client.metadata.topics, led[node_id]
            asked = [
                (one.topic, one.partition, topics[one.topic].partitions[one.partition].leader_epoch, epochs[one])
                for one in partitions
            ]
            try:
                reported = await epoch_ends(await client.node_channel(node_id), asked)
            except (BrokerError, WireError):
                return {}
            found = {one: reported.get((one.topic, one.partition)) for one in partitions}
            return {one: end for one, end in found.items() if end is not None and not end.error}

        return {one: end for found in (await read_all(led, ask)).values() for one, end in found.items()}

    async def at_time(
        self, ranges: Mapping[TopicPartition, LogRange], time_ms: int
    ) -> dict[TopicPartition, OffsetAtTime | LookupFailure]:
        listed = await self._ask([*ranges], time_ms)
        return {each: _at_time(listed[each], known) for each, known in ranges.items()}

    async def _ask(
        self, partitions: list[TopicPartition], time: int, *, read_committed: bool = False
    ) -> dict[TopicPartition, TimestampOffset | LookupFailure]:
        client = self.client
        if client is None or not partitions:
            return dict.fromkeys(partitions, LookupFailure(self._reason))
        try:
            metadata = await client.refresh(None)
        except (BrokerError, WireError) as error:
            return dict.fromkeys(partitions, LookupFailure(str(error)))
        found: dict[TopicPartition, TimestampOffset | LookupFailure] = {}
        led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for one in partitions:
            topic = metadata.topics.get(one.topic)
            node = metadata.leader(one.topic, one.partition)
            if node is not None:
                led[node.id].append(one)
            elif topic is None or one.partition not in topic.partitions:
                found[one] = LookupFailure("the cluster has no such partition")
            else:
                found[one] = LookupFailure("the partition has no leader")

        async def ask(node_id: int) -> dict[TopicPartition, TimestampOffset | LookupFailure]:
            return await self._ask_node(client, node_id, led[node_id], time, read_committed=read_committed)

        for answers in (await read_all(led, ask)).values():
            found |= answers
        return found

    async def _ask_node(
        self,
        client: ClusterClient,
        node_id: int,
        partitions: list[TopicPartition],
        time: int,
        *,
        read_committed: bool,
    ) -> dict[TopicPartition, TimestampOffset | LookupFailure]:
        try:
            channel = await client.node_channel(node_id)
            places = [(one.topic, one.partition) for one in partitions]
            listed = await list_offsets(channel, places, time, read_committed=read_committed)
        except (BrokerError, WireError) as error:
            return dict.fromkeys(partitions, LookupFailure(str(error)))
        found: dict[TopicPartition, TimestampOffset | LookupFailure] = {}
        for one in partitions:
            part = listed.get((one.topic, one.partition))
            if part is None:
                found[one] = LookupFailure(f"broker {node_id} returned no entry for it")
            elif refused := error_of(part.error, f"broker {node_id} returned no offset of {one}"):
                found[one] = LookupFailure(str(refused))
            else:
                found[one] = TimestampOffset(next(iter(part.offsets), _NOTHING), part.by_segment)
        return found


def _at_time(found: TimestampOffset | LookupFailure, known: LogRange) -> OffsetAtTime | LookupFailure:
    if isinstance(found, LookupFailure):
        return found
    if found.by_segment:  # the start of the segment before; without one all is younger
        offset = known.earliest if found.offset == _NOTHING else found.offset
        return OffsetAtTime(offset, "the broker knows times of whole segments only: older messages come too")
    offset = known.end if found.offset == _NOTHING else found.offset  # without a message all is older
    return OffsetAtTime(offset, "all messages in the log are older" if offset == known.end else None)


def _range(
    first: TimestampOffset | LookupFailure, last: TimestampOffset | LookupFailure | None
) -> LogRange | LookupFailure:
    if isinstance(first, LookupFailure):
        return first
    if last is None or isinstance(last, LookupFailure):
        return last or LookupFailure("the broker did not report where the log ends")
    if first.offset == _NOTHING or last.offset == _NOTHING:
        return LookupFailure("the broker did not report where the log begins and ends")
    return LogRange(first.offset, last.offset)
