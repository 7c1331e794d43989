"""What brokers of 0.8 and later hold: the ends of partitions' logs, and where a time is in them.

Strategy: one look at all metadata (asking for a topic by name would make brokers before 0.11 create it), then one
OFFSETS request per leader and question. As in `logs`, what is not told is an answer too, `NoAnswer`: a partition
without a leader must not hide the others, and nothing is repeated later.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.admin.logs import LogRange, NoAnswer
from consumerd.client import error_of, list_offsets
from consumerd.errors import BrokerError
from consumerd.wire.errors import WireError
from consumerd.wire.v07 import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.client import ClusterClient
    from consumerd.partition import TopicPartition

#: No message is of that time or later.
_NOTHING: Final = -1


class Moment(NamedTuple):
    """Where a time is: the offset to start at, and whether the broker knows times of whole segments only (< 0.10.1)."""

    offset: int
    by_segment: bool


class V08BrokerLogs:
    """Asks the brokers of `client`; None where there is no broker to ask, and `reason` says why."""

    def __init__(self, client: ClusterClient | None, reason: str = "no broker can be asked") -> None:
        self.client = client
        self._reason = reason

    async def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | NoAnswer]:
        """The range of each partition, in the order of `partitions`. Raises nothing for brokers that do not answer."""
        wanted = list(dict.fromkeys(partitions))
        first = await self._ask(wanted, EARLIEST)
        last = await self._ask([one for one in wanted if not isinstance(first[one], NoAnswer)], LATEST)
        return {one: _range(first[one], last.get(one)) for one in wanted}

    async def at_time(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, Moment | NoAnswer]:
        """Where to start to see all that is of `time_ms` (since 1970) or later, as precisely as brokers can tell."""
        wanted = list(dict.fromkeys(partitions))
        told = await self._ask(wanted, time_ms)
        ranges = await self.ranges(wanted)
        found: dict[TopicPartition, Moment | NoAnswer] = {}
        for one in wanted:
            answer, known = told[one], ranges[one]
            if isinstance(answer, NoAnswer):
                found[one] = answer
            elif isinstance(known, NoAnswer):
                found[one] = known
            elif answer.by_segment:  # the start of the segment before; without one all is younger
                found[one] = answer if answer.offset != _NOTHING else Moment(known.earliest, by_segment=True)
            else:  # without a message all is older
                found[one] = answer if answer.offset != _NOTHING else Moment(known.end, by_segment=False)
        return found

    async def _ask(self, partitions: list[TopicPartition], time: int) -> dict[TopicPartition, Moment | NoAnswer]:
        client = self.client
        if client is None or not partitions:
            return dict.fromkeys(partitions, NoAnswer(self._reason))
        try:
            metadata = await client.refresh(None)
        except (BrokerError, WireError) as error:
            return dict.fromkeys(partitions, NoAnswer(str(error)))
        found: dict[TopicPartition, Moment | NoAnswer] = {}
        led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for one in partitions:
            topic = metadata.topics.get(one.topic)
            node = metadata.leader(one.topic, one.partition)
            if node is not None:
                led[node.id].append(one)
            elif topic is None or one.partition not in topic.partitions:
                found[one] = NoAnswer("the cluster has no such partition")
            else:
                found[one] = NoAnswer("the partition has no leader")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask_node(client, *item, time)) for item in led.items()]
        for task in tasks:
            found.update(task.result())
        return found

    async def _ask_node(
        self, client: ClusterClient, node_id: int, partitions: list[TopicPartition], time: int
    ) -> dict[TopicPartition, Moment | NoAnswer]:
        try:
            channel = await client.node_channel(node_id)
            told = await list_offsets(channel, [(one.topic, one.partition) for one in partitions], time)
        except (BrokerError, WireError) as error:
            return dict.fromkeys(partitions, NoAnswer(str(error)))
        found: dict[TopicPartition, Moment | NoAnswer] = {}
        for one in partitions:
            part = told.get((one.topic, one.partition))
            if part is None:
                found[one] = NoAnswer(f"broker {node_id} says nothing of it")
            elif refused := error_of(part.error, f"broker {node_id} returned no offset of {one}"):
                found[one] = NoAnswer(str(refused))
            else:
                found[one] = Moment(next(iter(part.offsets), _NOTHING), part.by_segment)
        return found


def _range(first: Moment | NoAnswer, last: Moment | NoAnswer | None) -> LogRange | NoAnswer:
    if isinstance(first, NoAnswer):
        return first
    if last is None or isinstance(last, NoAnswer):
        return last or NoAnswer("the broker did not say where the log ends")
    if first.offset == _NOTHING or last.offset == _NOTHING:
        return NoAnswer("the broker did not say where the log begins and ends")
    return LogRange(first.offset, last.offset)
