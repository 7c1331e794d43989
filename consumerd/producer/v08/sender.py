"""Batches -> brokers: which are ready, their leaders, their outcomes.

Strategy: in the turn of the loop after there is news, the queues of which something is new are looked at, their leaders
found, and each leader is given one request with all of its; an answer settles batches or puts them back, with a pause.
A partition's next batch is sent only when the last is settled: that keeps the order, also with retries. A request that
waits for nothing is written in that turn, and its batch is settled in the turn in which the answer is read; any other
(several batches, compression, a connection to open) is a task.

What is open does not wait for company while the broker has nothing to do, and gathers while it has (as Nagle's
algorithm): an open batch is sent when it has lingered and nothing was sent to its broker since the broker's last
answer. Full batches, those that are sent again and those of a flush wait for no answer, only for the limit of requests
in flight. Each broker has its own line, and leaders that are not known are looked up beside: no broker waits for
another. A round costs what is new, however many partitions there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import structlog

from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.client.metadata import ClusterMetadata
from consumerd.producer.errors import TransactionAbortedError
from consumerd.producer.v08.batches import PartitionQueue, ProducerBatch
from consumerd.producer.v08.delivery import BatchOutcome, DeliveryError, Outcomes, ProduceRequests, is_too_large
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.producer.v08.transactions import Transactions
from consumerd.wire.v08.error_codes import ErrorCode

log = structlog.get_logger(__name__)

#: Longest pause between two attempts to send a batch.
_LONGEST_PAUSE: Final = 2.0
#: The first one while the coordinator still writes the end of the transaction before, which takes milliseconds.
_UNFINISHED_PAUSE: Final = 0.02


class _Broker:
    """The queues that wait for a request to a broker, in order, and how many requests are in flight."""

    __slots__ = ("answered", "gathering", "in_flight", "node_id", "ready")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.in_flight = 0
        #: Nothing was sent since the last answer.
        self.answered = True
        self.ready: dict[PartitionQueue, None] = {}
        #: With a batch that is still open: they go after the next answer.
        self.gathering: dict[PartitionQueue, None] = {}

    def take(self) -> list[PartitionQueue]:
        """The queues that may be sent now; they do not wait here any more."""
        line = [*self.ready]
        self.ready.clear()
        if self.answered:
            line += self.gathering
            self.gathering.clear()
        return line


class Sender:
    """The queues of all partitions and their way out. `settled` is called for every batch that needs no more sending,
    `sealed` of queues whose open batch had to go. `divides`: whether what a broker finds too large is sent in parts.
    """

    def __init__(
        self,
        client: ClusterClient,
        settings: V08ProducerSettings,
        clock: Clock,
        rng: Random,
        settled: Callable[[ProducerBatch], None],
        sealed: Callable[[PartitionQueue], object],
        transactions: Transactions | None = None,
        *,
        divides: bool = True,
    ) -> None:
        self._client = client
        self.settings = settings
        self._divides = divides
        self._clock = clock
        self._rng = rng
        self._settled = settled
        self._sealed = sealed
        self._exchange = ProduceRequests(client, settings, transactions)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        #: All batches that are open, wait, or are in flight.
        self._unsettled: dict[ProducerBatch, None] = {}
        #: The queues to look at, and the brokers.
        self._changed: dict[PartitionQueue, None] = {}
        self._free: dict[_Broker, None] = {}
        #: Whether there is a round in the next turn.
        self._woken = False
        #: While it runs: the owner of its tasks, and the first defect.
        self._group: asyncio.TaskGroup | None = None
        self._defect: asyncio.Future[None] | None = None
        #: The last reason of a retry in the log: a request that fails as a whole has one for all of its partitions.
        self._reported: BrokerError | None = None
        self._brokers: dict[int, _Broker] = {}
        #: Where each queue waits, or did last. It waits at one broker, unless it is busy or its leader is looked up.
        self._waits_at: dict[PartitionQueue, _Broker] = {}
        #: By topic: the queues whose leaders are being looked up.
        self._unknown: dict[str, dict[PartitionQueue, None]] = {}
        #: Where the leaders are from.
        self._metadata: ClusterMetadata | None = None
        self._flushing = 0

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition, made when it is not there yet."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    @property
    def idle(self) -> bool:
        """Whether all batches are settled."""
        return not self._unsettled

    def opened(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Have the new open batch of a queue sent when it is due."""
        self._unsettled[batch] = None
        self.look_at(queue)

    def hurry(self, more: int) -> None:
        """Send open batches at once while a flush is active (`more` is 1 to begin one and -1 to end it)."""
        self._flushing += more
        for batch in self._unsettled:
            self.look_at(self._queues[batch.partition])

    def unsettled(self) -> list[asyncio.Future[tuple[int | None, int]]]:
        """The outcomes of all batches that are open, wait, or are under way."""
        return [batch.outcome for batch in self._unsettled]

    def give_up(self, error: Exception) -> None:
        """Fail everything that is left."""
        for batch in list(self._unsettled):
            self._settle(batch)
            batch.fail(error)

    async def run(self) -> None:
        """Send until cancelled. What has to wait for something is a task of this one, and a defect ends it."""
        self._defect = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._turn(group)
                try:
                    await self._defect
                finally:
                    self._group = None
        finally:
            for queue in self._queues.values():
                queue.sleep()

    def _wake(self) -> None:
        """Have a round in the next turn of the loop."""
        if not self._woken and self._group is not None:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._turn, self._group)

    def _turn(self, group: asyncio.TaskGroup) -> None:
        self._woken = False
        try:
            if self._group is not None:
                self._round(group)
        except Exception as error:
            self._end(error)

    def _end(self, defect: Exception) -> None:
        """End `run` by an error of what the loop or a connection called."""
        if self._defect is not None and not self._defect.done():
            self._defect.set_exception(defect)
            self._defect.exception()  # retrieved: `run` may be ending already

    def _round(self, group: asyncio.TaskGroup) -> None:
        """Send the batches that are ready, of the queues and to the brokers of which something is new."""
        if self._client.metadata is not self._metadata:
            self._follow_leaders()
        now = self._clock.monotonic()
        changed, self._changed = self._changed, {}
        for queue in changed:
            at = queue.ready_at(now, hurry=self._flushing > 0)
            if at is None:
                continue
            if at > now:
                self._wake_at(queue, at)
                continue
            topic, number = queue.partition.topic, queue.partition.partition
            unknown = self._unknown.get(topic)
            if (node := self._client.known_leader(topic, number)) is not None:
                if unknown is not None:  # others have looked it up meanwhile
                    unknown.pop(queue, None)
                self._line_up(queue, node.id)
                continue
            self._leave(queue)
            if unknown is not None:
                unknown[queue] = None
            else:
                self._unknown[topic] = {queue: None}
                group.create_task(self._look_up(topic))
        free, self._free = self._free, {}
        for broker in free:
            self._serve(broker, group)

    def _serve(self, broker: _Broker, group: asyncio.TaskGroup) -> None:
        """Send to a broker what waits for it, as far as there may be more requests in flight."""
        while broker.in_flight < self.settings.in_flight and (line := broker.take()):
            queues, left = self._request(line)
            broker.ready.update(dict.fromkeys(left))
            now = self._clock.monotonic()
            for queue in queues:
                queue.busy = True
                batch = queue.sealed[0]
                batch.first_sent = now if batch.first_sent is None else batch.first_sent
            broker.in_flight += 1
            broker.answered = False
            settle = partial(self._answered, broker, queues)
            if len(queues) > 1 or not self._exchange.post(broker.node_id, queues[0], settle):
                group.create_task(self._send(broker, queues))

    def _request(self, line: list[PartitionQueue]) -> tuple[list[PartitionQueue], list[PartitionQueue]]:
        """Return those of a line whose first batches fit into one request, and the others."""
        queues: list[PartitionQueue] = []
        left: list[PartitionQueue] = []
        size = 0
        for queue in line:
            self._seal(queue)
            more = queue.sealed[0].size
            if queues and size + more > self._client.settings.max_request_bytes // 2:
                left.append(queue)
            else:
                queues.append(queue)
                size += more
        return queues, left

    def _line_up(self, queue: PartitionQueue, node_id: int) -> None:
        """Have the first batch of a queue sent to its leader."""
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = _Broker(node_id)
        self._waits_at[queue] = broker
        if queue.sealed or self._flushing:
            broker.gathering.pop(queue, None)
            broker.ready[queue] = None
        elif queue not in broker.ready:
            broker.gathering[queue] = None
        self._free[broker] = None

    def _leave(self, queue: PartitionQueue) -> None:
        broker = self._waits_at.pop(queue, None)
        if broker is not None:
            broker.ready.pop(queue, None)
            broker.gathering.pop(queue, None)

    def _follow_leaders(self) -> None:
        """Queues that wait at a broker that does not lead their partitions any more, are looked at again."""
        self._metadata = metadata = self._client.metadata
        for queue, broker in list(self._waits_at.items()):
            node = metadata.leader(queue.partition.topic, queue.partition.partition)
            if node is None or node.id != broker.node_id:
                self._leave(queue)
                self._changed[queue] = None

    async def _look_up(self, topic: str) -> None:
        """Find the leaders of a topic's queues. Those without one have to wait."""
        failure: BrokerError | None = None
        try:
            await self._client.topics([topic])
        except BrokerError as error:
            failure = error
        for queue in self._unknown.pop(topic):
            number = queue.partition.partition
            node = None if failure else self._client.metadata.leader(topic, number)
            if node is not None:
                self._line_up(queue, node.id)
            else:
                self._seal(queue)
                self._put_off(queue, failure or self._client.leaderless(topic, number))
        self._wake()

    def _seal(self, queue: PartitionQueue) -> None:
        if not queue.sealed:
            queue.seal()
            self._sealed(queue)

    def look_at(self, queue: PartitionQueue) -> None:
        """Have the batches of a queue sent that are sealed or due."""
        self._changed[queue] = None
        self._wake()

    def _wake_at(self, queue: PartitionQueue, at: float) -> None:
        """Look at a queue at a time, or earlier."""
        if queue.wakes_at <= at:
            return
        queue.sleep()
        queue.wakes_at = at
        delay = max(0.0, at - self._clock.monotonic())
        queue.timer = asyncio.get_running_loop().call_later(delay, self._ring, queue)

    def _ring(self, queue: PartitionQueue) -> None:
        queue.sleep()
        self.look_at(queue)

    async def _send(self, broker: _Broker, queues: list[PartitionQueue]) -> None:
        outcomes: Outcomes | Exception
        try:
            outcomes = await self._exchange.produce(broker.node_id, {queue.partition: queue for queue in queues})
        except Exception as error:
            outcomes = error
        self._answered(broker, queues, outcomes)

    def _answered(self, broker: _Broker, queues: list[PartitionQueue], outcomes: Outcomes | Exception) -> None:
        """Settle the first batches of the queues of a request, or put them off. Ends `run` by a defect."""
        if self._group is None:
            return  # sending has ended: what was under way has failed, or will
        try:
            if isinstance(outcomes, BrokerError):
                outcome = BatchOutcome(outcomes, retry=not isinstance(outcomes, DeliveryError))
                outcomes = {queue.partition: outcome for queue in queues}
            elif isinstance(outcomes, Exception):
                raise outcomes
            broker.in_flight -= 1
            broker.answered = True
            self._free[broker] = None
            for queue in queues:
                queue.busy = False
                self._digest(queue, outcomes[queue.partition])
                self.look_at(queue)
        except Exception as error:
            self._end(error)

    def _settle(self, batch: ProducerBatch) -> None:
        del self._unsettled[batch]
        self._settled(batch)

    def _digest(self, queue: PartitionQueue, outcome: BatchOutcome) -> None:
        if outcome.error is None:
            batch = queue.sealed.popleft()
            queue.trouble = 0
            self._settle(batch)
            batch.succeed(outcome.base_offset, outcome.timestamp)
        elif outcome.retry:
            self._put_off(queue, outcome.error)
        elif self._divides and len(queue.sealed[0].values) > 1 and is_too_large(outcome.error):
            self._divide(queue, outcome.error)
        else:
            self._fail(queue, outcome.error)

    def _divide(self, queue: PartitionQueue, error: BrokerError) -> None:
        """Send the first batch in halves. What of it the broker does not take in the end, fails alone."""
        batch = queue.sealed[0]
        queue.trouble = 0
        if batch.size // 2 < queue.limit:  # else a part, or a batch that was full before the first was divided
            log.info("batch_divided", partition=str(queue.partition), bytes=batch.size, reason=reason_of(error))
        del self._unsettled[batch]
        self._unsettled.update(dict.fromkeys(queue.divide()))

    def _put_off(self, queue: PartitionQueue, error: BrokerError) -> None:
        """Try the first batch again later, unless that has been done for long enough."""
        if isinstance(error, BrokerRefusedError) and error.info.refresh:
            self._client.stale([queue.partition.topic])
        batch = queue.sealed[0]
        now = self._clock.monotonic()
        batch.first_sent = now if batch.first_sent is None else batch.first_sent
        if now - batch.first_sent > self.settings.delivery_timeout:
            self._fail(queue, error)
            return
        unfinished = isinstance(error, BrokerRefusedError) and error.code == ErrorCode.CONCURRENT_TRANSACTIONS
        if not queue.trouble and not unfinished and error is not self._reported:
            self._reported = error
            log.warning("produce_retried", partition=str(queue.partition), reason=reason_of(error))
        queue.trouble += 1
        first = _UNFINISHED_PAUSE if unfinished else self._client.settings.retry_backoff_min
        pause = min(_LONGEST_PAUSE, first * 2.0 ** min(queue.trouble - 1, 30))
        queue.not_before = now + pause * (0.5 + self._rng.random() / 2)
        self._wake_at(queue, queue.not_before)

    def _fail(self, queue: PartitionQueue, error: BrokerError) -> None:
        batch = queue.sealed.popleft()
        queue.trouble = 0
        if not isinstance(error, TransactionAbortedError):  # the batch that failed first is logged
            log.error(
                "produce_failed", partition=str(queue.partition), messages=len(batch.values), reason=reason_of(error)
            )
        self._exchange.failed(queue, error)
        self._settle(batch)
        batch.fail(error)
