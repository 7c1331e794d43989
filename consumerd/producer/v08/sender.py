"""Sealed batches -> brokers: which are ready, their leaders, their outcomes.

Strategy: one dispatcher selects the batches that are ready, finds their leaders, and gives each leader one request with
all of its; an answer settles batches or puts them back, with a pause. A partition's next batch is sent only when the
last is settled: that keeps the order, also with retries. The dispatcher runs when there is something to send, and not
for each batch that is opened or settled: for those that have to wait there is one timer, for the earliest of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import structlog

from consumerd.client import BrokerRefusedError
from consumerd.errors import BrokerError, reason_of
from consumerd.producer.v08.batches import PartitionQueue
from consumerd.producer.v08.delivery import DeliveryError, Exchange, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from consumerd.client import ClusterClient
    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock
    from consumerd.producer.v08.batches import Batch
    from consumerd.producer.v08.settings import V08ProducerSettings

log = structlog.get_logger(__name__)

#: Longest pause between two attempts to send a batch.
_LONGEST_PAUSE: Final = 2.0


class Sender:
    """The queues of all partitions and their way out. `settled` is called for every batch that needs no more sending,
    `sealed` of queues whose open batch had to go.
    """

    def __init__(
        self,
        client: ClusterClient,
        settings: V08ProducerSettings,
        clock: Clock,
        rng: Random,
        settled: Callable[[Batch], None],
        sealed: Callable[[PartitionQueue], object],
    ) -> None:
        self._client = client
        self.settings = settings
        self._clock = clock
        self._rng = rng
        self._settle = settled
        self._sealed = sealed
        self._exchange = Exchange(client, settings)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._in_flight: defaultdict[int, int] = defaultdict(int)
        #: Some batches wait for the end of a request.
        self._held_back = False
        self._flushing = 0

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition, made when it is not there yet."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    def opened(self, batch: Batch) -> None:
        """Have a new open batch sent when it is due."""
        if self._flushing:
            self._news.set()
        else:
            self._wake_at(batch.due)

    def full(self, queue: PartitionQueue) -> None:
        """Have the sealed batches of a queue sent."""
        if not queue.busy:  # else at the end of its request
            self._news.set()

    def hurry(self, more: int) -> None:
        """Send open batches at once while a flush is active (`more` is 1 to begin one and -1 to end it)."""
        self._flushing += more
        self._news.set()

    def unsettled(self) -> list[asyncio.Future[tuple[int | None, int]]]:
        """The outcomes of all batches that are open, wait, or are under way."""
        return [
            batch.outcome
            for queue in self._queues.values()
            for batch in (*queue.sealed, queue.open)
            if batch is not None
        ]

    def give_up(self, error: Exception) -> None:
        """Fail everything that is left."""
        for queue in self._queues.values():
            queue.seal()
            for batch in queue.sealed:
                self._settle(batch)
                batch.fail(error)
            queue.sealed.clear()

    async def run(self) -> None:
        """Send until cancelled. Every request is a task of this one."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._round(group)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _round(self, group: asyncio.TaskGroup) -> None:
        """Send the batches that are ready, then wait for a change or for the next one."""
        self._news.clear()
        self._held_back = False
        ready, next_at = self._ready(self._clock.monotonic())
        found, left = await self._by_leader(ready)
        for node_id, queues in found.items():
            if self._in_flight[node_id] >= self.settings.in_flight:
                self._held_back = True
                continue
            for queue in queues:
                queue.busy = True
            self._in_flight[node_id] += 1
            group.create_task(self._send(node_id, queues))
            if node_id in left:
                self._news.set()
        if next_at is not None:
            self._wake_at(next_at)
        await self._news.wait()

    def _ready(self, now: float) -> tuple[list[PartitionQueue], float | None]:
        ready: list[PartitionQueue] = []
        next_at: float | None = None
        for queue in self._queues.values():
            at = queue.ready_at(now)
            if at is None:
                continue
            if self._flushing and queue.open is not None:
                at = max(queue.not_before, now)
            if at <= now:
                if not queue.sealed:
                    queue.seal()
                    self._sealed(queue)
                ready.append(queue)
            else:
                next_at = at if next_at is None else min(next_at, at)
        return ready, next_at

    def _wake_at(self, at: float) -> None:
        """Wake the dispatcher at a time, or earlier."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        delay = max(0.0, at - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._news.set()

    async def _by_leader(self, ready: list[PartitionQueue]) -> tuple[dict[int, list[PartitionQueue]], set[int]]:
        """The queues by their leaders, as many as one request may hold, and the leaders that have more of them.

        Those without a leader have to wait.
        """
        found: defaultdict[int, list[PartitionQueue]] = defaultdict(list)
        left: set[int] = set()
        sizes: defaultdict[int, int] = defaultdict(int)
        for queue in ready:
            try:
                node = await self._client.leader(queue.partition.topic, queue.partition.partition)
            except BrokerError as error:
                self._put_off(queue, error)
                continue
            size = queue.sealed[0].size
            if sizes[node.id] and sizes[node.id] + size > self._client.settings.max_request_bytes // 2:
                left.add(node.id)
                continue
            sizes[node.id] += size
            found[node.id].append(queue)
        return found, left

    async def _send(self, node_id: int, queues: list[PartitionQueue]) -> None:
        batches = {queue.partition: queue.sealed[0] for queue in queues}
        now = self._clock.monotonic()
        for queue in queues:
            batch = queue.sealed[0]
            batch.first_sent = now if batch.first_sent is None else batch.first_sent
        try:
            outcomes = await self._exchange.produce(node_id, {queue.partition: queue for queue in queues})
        except BrokerError as error:
            outcomes = {partition: Outcome(error, retry=not isinstance(error, DeliveryError)) for partition in batches}
        finally:
            for queue in queues:
                queue.busy = False
            self._in_flight[node_id] -= 1
        if self._held_back:
            self._news.set()
        for queue in queues:
            self._digest(queue, outcomes[queue.partition])
            if queue.sealed:
                self._news.set()
            elif queue.open is not None:
                self.opened(queue.open)

    def _digest(self, queue: PartitionQueue, outcome: Outcome) -> None:
        if outcome.error is None:
            batch = queue.sealed.popleft()
            queue.trouble = 0
            queue.not_before = 0.0
            self._settle(batch)
            batch.succeed(outcome.base_offset, outcome.timestamp)
        elif outcome.retry:
            self._put_off(queue, outcome.error)
        else:
            self._fail(queue, outcome.error)

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
        if not queue.trouble:
            log.warning("produce_retried", partition=str(queue.partition), reason=reason_of(error))
        queue.trouble += 1
        pause = min(_LONGEST_PAUSE, self._client.settings.retry_backoff_min * 2.0 ** min(queue.trouble - 1, 30))
        queue.not_before = now + pause * (0.5 + self._rng.random() / 2)
        self._news.set()

    def _fail(self, queue: PartitionQueue, error: BrokerError) -> None:
        batch = queue.sealed.popleft()
        queue.trouble = 0
        log.error("produce_failed", partition=str(queue.partition), messages=len(batch.values), reason=reason_of(error))
        self._exchange.forget(queue)
        self._settle(batch)
        batch.fail(error)
