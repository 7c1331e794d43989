"""The ranges of brokers' logs, for whole topics at once, without a consumer.

Strategy: OFFSETS requests of one broker are pipelined on one connection. A broker closes the connection at a bad one
(golden notes, 1), so the request it was answering counts as the bad one, and the rest is sent again on a new
connection; every round settles at least one. A broker that does not answer is a result too, `LookupFailure`: one dead
broker must not hide the others. Nothing is retried later: the caller takes a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from consumerd.base.calls import read_all
from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.v07.boundaries import MAX_SEGMENTS
from consumerd.net.connect import Connection, Connector
from consumerd.net.errors import ConnectionClosedError, RequestTimeoutError
from consumerd.wire.errors import WireError
from consumerd.wire.registry.values import RegisteredBroker
from consumerd.wire.v07 import EARLIEST, LATEST, OffsetsRequest, decode_offsets_response

#: Requests in flight on one connection.
PIPELINED = 100


class LogRange(NamedTuple):
    """The offsets that a broker has: `earliest` starts its first segment, `end` is where the next message goes."""

    earliest: int
    end: int

    @property
    def size(self) -> int:
        """The readable size: bytes of the log in 0.7, messages since 0.8."""
        return self.end - self.earliest


@dataclass(frozen=True, slots=True)
class LookupFailure:
    """The reason why a range or offset is unknown; one sentence."""

    reason: str


Answer = tuple[int, ...] | LookupFailure
#: A partition, and the offset of the next message there.
Position = tuple[TopicPartition, int]
#: Reads the timestamps of the first messages at or after positions, in milliseconds, as far as they are known.
ReadTimestamps = Callable[[Collection[Position]], Awaitable[Mapping[Position, int]]]


class OffsetAtTime(NamedTuple):
    """The offset to start at for all messages since a time, and a remark about it."""

    offset: int
    note: str | None = None


class GroupLogs(Protocol):
    """Queries the brokers for their logs. What a broker does not answer is a `LookupFailure`; nothing is raised."""

    @property
    def timestamps(self) -> ReadTimestamps | None:
        """Asks for the timestamps of messages; None where they have none, or there is no broker to ask."""
        ...

    async def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | LookupFailure]:
        """The range of each partition, in the order of `partitions`."""
        ...

    async def at_time(
        self, ranges: Mapping[TopicPartition, LogRange], time_ms: int
    ) -> dict[TopicPartition, OffsetAtTime | LookupFailure]:
        """The offset to start at for all messages since `time_ms` (since 1970), as precisely as brokers find it.

        `ranges`: of these partitions, as they were read before.
        """
        ...


class BrokerLogs:
    """Asks the brokers that are registered, through `connect`."""

    #: Messages have none.
    timestamps: Final[ReadTimestamps | None] = None

    def __init__(self, brokers: Mapping[int, RegisteredBroker], connect: Connector) -> None:
        self._brokers = brokers
        self._connect = connect

    async def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | LookupFailure]:
        """The range of each partition, in the order of `partitions`. Raises nothing for brokers that do not answer."""
        wanted = list(dict.fromkeys(partitions))
        first = {partition: OffsetsQuery(partition, EARLIEST, 1) for partition in wanted}
        last = {partition: OffsetsQuery(partition, LATEST, 1) for partition in wanted}
        answers = await self.ask([*first.values(), *last.values()])
        return {partition: _range(answers[first[partition]], answers[last[partition]]) for partition in wanted}

    async def at_time(
        self, ranges: Mapping[TopicPartition, LogRange], time_ms: int
    ) -> dict[TopicPartition, OffsetAtTime | LookupFailure]:
        """As of `GroupLogs`.

        That is the start of the last segment that was written to its end before that time, so older messages come too;
        where every segment is younger, the earliest offset.
        """
        by_time = await self.ask(OffsetsQuery(partition, time_ms, 1) for partition in ranges)
        found: dict[TopicPartition, OffsetAtTime | LookupFailure] = {}
        for partition, known in ranges.items():
            answer = by_time[OffsetsQuery(partition, time_ms, 1)]
            if isinstance(answer, LookupFailure):
                found[partition] = answer
                continue
            offset = answer[0] if answer else known.earliest
            younger = "all messages in the log are younger" if offset == known.earliest else None
            found[partition] = OffsetAtTime(offset, younger)
        return found

    async def ask(self, questions: Iterable[OffsetsQuery]) -> dict[OffsetsQuery, Answer]:
        """The answers to all queries, from all brokers at once."""
        by_broker: dict[int, list[OffsetsQuery]] = {}
        for question in dict.fromkeys(questions):
            by_broker.setdefault(question.partition.broker, []).append(question)
        answers: dict[OffsetsQuery, Answer] = {}
        await read_all(by_broker, lambda broker: self._ask_broker(broker, by_broker[broker], answers))
        return answers

    async def segment_starts(self, partition: TopicPartition) -> tuple[int, ...]:
        """The offsets at which the segments of a partition begin, and its end. Raises BrokerError."""
        question = OffsetsQuery(partition, LATEST, MAX_SEGMENTS)
        answer = (await self.ask([question]))[question]
        if isinstance(answer, LookupFailure):
            raise BrokerError(answer.reason)
        return answer

    @asynccontextmanager
    async def connection(self, broker: int) -> AsyncIterator[Connection]:
        """A connection to a broker, closed at the end. Raises BrokerError."""
        known = self._brokers.get(broker)
        if known is None:
            raise BrokerError(f"broker {broker} is not registered in ZooKeeper; is it running?")
        connection = await self._connect(*known.address)
        try:
            yield connection
        finally:
            await connection.close()

    async def _ask_broker(
        self, broker: int, questions: list[OffsetsQuery], answers: dict[OffsetsQuery, Answer]
    ) -> None:
        left = questions
        while left:
            before = len(left)
            try:
                async with self.connection(broker) as connection:
                    for start in range(0, len(left), PIPELINED):
                        if await _round(connection, left[start : start + PIPELINED], answers):
                            break
            except BrokerError as error:
                answers.update(dict.fromkeys(left, LookupFailure(str(error))))
            left = [question for question in left if question not in answers]
            if len(left) == before:
                answers.update(
                    dict.fromkeys(left, LookupFailure(f"broker {broker} closes the connection without a reason"))
                )
                return


class OffsetsQuery(NamedTuple):
    """One OFFSETS request: up to `number` offsets at `time` (EARLIEST, LATEST, or milliseconds since 1970)."""

    partition: TopicPartition
    time: int
    number: int


async def _round(
    connection: Connection, questions: Iterable[OffsetsQuery], answers: dict[OffsetsQuery, Answer]
) -> bool:
    """Send all queries at once and note their answers. True when the connection was closed.

    After a closed connection only the query that caused it is answered; after a timeout all are: the broker hangs.
    """
    ended = False

    async def ask(question: OffsetsQuery) -> None:
        nonlocal ended
        partition = question.partition
        try:
            request = OffsetsRequest(partition.topic, partition.partition, question.time, question.number)
            body = await connection.request(request.encode(), max_response=request.longest_response)
            answers[question] = decode_offsets_response(body).offsets
        except ConnectionClosedError as error:
            ended = True
            if error.blamed:
                answers[question] = LookupFailure(str(error))
                if isinstance(error, RequestTimeoutError):
                    late.append(error)
        except (BrokerError, WireError) as error:
            answers[question] = LookupFailure(str(error))

    late: list[RequestTimeoutError] = []
    async with asyncio.TaskGroup() as group:
        for question in questions:
            group.create_task(ask(question))
    if late:
        raise late[0]
    return ended


def _range(earliest: Answer, end: Answer) -> LogRange | LookupFailure:
    if isinstance(earliest, LookupFailure):
        return earliest
    if isinstance(end, LookupFailure):
        return end
    if not (earliest and end):
        return LookupFailure("the broker returned no offsets for it")
    return LogRange(earliest[0], end[0])
