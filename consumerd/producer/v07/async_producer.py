"""The asynchronous producer: `send` puts messages into a queue, and a task of its own sends them in batches.

Strategy: the queue decides when a batch is due (`event_queue`); an event handler encodes and sends it
(`dispatch`, `events`), through a synchronous `Producer` and with its settings. Batches go out one after the
other, so the order of a partition is the order of `send`. The guarantees:

- `send` returned: the message is in the queue. It is lost if the process ends without `close`.
- `flush` or `close` returned: everything sent before is with the brokers, as `Producer.send` promises it.
- NotSentError from them: that many messages were given up since the last one, after the tries that the settings
  allow; `CallbackHandler.not_sent` was called with them. Of those some may be stored nevertheless.
- A queue without room makes the sender wait, or drops, as the settings say; drops are counted (`stats.dropped`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import structlog

from consumerd.base.backoff import sleep_unless
from consumerd.base.errors import reason_of
from consumerd.base.ports import Clock
from consumerd.producer.errors import ProducerClosedError, QueueFullError
from consumerd.producer.v07.data import NOT_A_LIST, ProducerData, require_plain
from consumerd.producer.v07.dispatch import AsyncProducerStats, Dispatch
from consumerd.producer.v07.event_queue import EventQueue
from consumerd.producer.v07.events import CallbackHandler, DefaultEventHandler, Event, EventHandler
from consumerd.producer.v07.producer import Producer
from consumerd.producer.v07.settings import QueueSettings, WhenFull
from consumerd.wire.v07 import validate_topic
from consumerd.wire.v08.records import Headers

log = structlog.get_logger(__name__)

DEFAULT_QUEUE = QueueSettings()
#: As `Event`, from a tuple of its fields; saves a call for each message.
_event = functools.partial(tuple.__new__, Event)


class AsyncProducer:
    """Sends messages in the background through `producer`, which it owns and closes.

    Use as `async with AsyncProducer(...) as producer:`. The methods are those of `Producer`.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        clock: Clock,
        queue: QueueSettings = DEFAULT_QUEUE,
        callbacks: CallbackHandler | None = None,
        event_handler: EventHandler | None = None,
    ) -> None:
        self._producer = producer
        self._clock = clock
        self._settings = queue
        self._queue = EventQueue(queue, clock)
        self._callbacks = callbacks or CallbackHandler()
        #: Hooks that are not overridden cost nothing.
        self._hooked = callbacks is not None
        self._stats = AsyncProducerStats()
        self._dispatch = Dispatch(producer, event_handler or DefaultEventHandler(), callbacks, self._stats)
        #: Names that were found good.
        self._topics: set[str] = set()
        self._unyielded = 0
        self._task: asyncio.Task[None] | None = None
        #: Events that were taken from the queue and handled, one way or the other.
        self._finished = 0
        self._progress = asyncio.Event()

    @property
    def stats(self) -> AsyncProducerStats:
        """The counters."""
        return replace(self._stats, enqueued=self._queue.put_count)

    @property
    def queued(self) -> int:
        """Messages that wait in the queue now."""
        return len(self._queue)

    # -- the senders' side

    async def start(self) -> None:
        """Begin to send. `async with` does it."""
        if self._task is not None:
            raise ProducerClosedError("the producer was started already.")
        self._task = asyncio.create_task(self._run(), name="async producer")

    async def send(
        self,
        topic: str,
        payloads: Sequence[Any],
        *,
        key: Hashable = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        """Put `payloads` into the queue, one message each, in order.

        Brokers of 0.7 keep neither `headers` nor `timestamp`: EncodingError.
        Raises InvalidTopicError, ProducerClosedError; QueueFullError with WhenFull.TIMEOUT; what the callbacks raise.
        """
        if self._task is None or topic not in self._topics:
            self._check(topic)
        if type(payloads) is not list and isinstance(payloads, (str, bytes, bytearray, memoryview)):
            raise TypeError(NOT_A_LIST)
        if headers or timestamp is not None:
            require_plain(ProducerData(topic, payloads, key, partition, headers, timestamp))
        accepted, queue = 0, self._queue
        offer = queue.offer
        queue.mark()
        for message in payloads:
            event = _event((topic, message, key, partition))
            if self._hooked or not offer(event):
                accepted += await self._enqueue(event, accepted)
                queue.mark()
            else:
                accepted += 1
            self._unyielded += 1
            if self._unyielded >= self._settings.batch_size:
                self._unyielded = 0
                await asyncio.sleep(0)  # or a sender that never waits would starve the task that sends
                queue.mark()

    async def send_all(self, data: Sequence[ProducerData], *, merge: bool = True) -> None:
        """The same for several. Messages to one partition in one batch are joined with any value of `merge`."""
        for item in data:
            self._check(item.topic)
            require_plain(item)
        for item in data:
            await self.send(item.topic, item.payloads, key=item.key, partition=item.partition)

    def _check(self, topic: str) -> None:
        if self._task is None:
            raise ProducerClosedError("the producer was not started: use `async with`, or await start().")
        if topic not in self._topics:
            validate_topic(topic)
            self._topics.add(topic)

    async def _enqueue(self, event: Event, accepted: int) -> bool:
        """The slow way: with hooks, or into a full queue. Whether it is in."""
        event = self._callbacks.before_enqueue(event)
        added = self._queue.offer(event)
        try:
            if not added and self._settings.when_full is not WhenFull.DROP:
                block = self._settings.when_full is WhenFull.BLOCK
                added = await self._queue.put(event, None if block else self._settings.enqueue_timeout)
        finally:
            if self._hooked:
                self._callbacks.after_enqueue(event, added)
        if not added:
            self._stats.dropped += 1
            if self._settings.when_full is WhenFull.TIMEOUT:
                raise QueueFullError(self._settings.queue_size, self._settings.enqueue_timeout, accepted)
            await asyncio.sleep(0)
        return added

    async def flush(self) -> None:
        """Return when everything that was sent is handled.

        Raises NotSentError, ProducerClosedError if a `close` ended the sending meanwhile, and as `Producer.flush`.
        """
        last = self._queue.hurry()
        while self._finished < last and self._task is not None:
            if self._task.done():
                raise ProducerClosedError("the producer was stopped before all of its messages were sent.")
            progress = self._progress
            await progress.wait()
        self._dispatch.tell()
        await self._producer.flush()

    async def close(self, timeout: float | None = None) -> None:
        """Accept nothing more, send the queued events, then close everything. May be called again.

        After `timeout` seconds (None: as long as it takes) the remaining events fail. Raises as `flush`, when
        everything is closed.
        """
        self._queue.close()
        try:
            await self._drain(timeout)
            self._dispatch.tell()
        except BaseException:
            await self._abandon()
            raise
        await self._producer.close()

    async def _drain(self, timeout: float | None) -> None:
        task = self._task
        if task is None:
            return
        if timeout is None:
            await asyncio.wait([task])
        else:
            done = asyncio.Event()
            task.add_done_callback(lambda _: done.set())
            await sleep_unless(self._clock, timeout, done)
        await self._stop(f"no end of sending within {timeout} s")

    async def _stop(self, reason: str) -> None:
        """Cancel the task; the events left in the queue have failed. Raises the error of the task."""
        task = self._task
        if task is None:
            return
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if left := self._queue.abandon():
            self._dispatch.failed(left, ProducerClosedError(f"it was closed before they were sent: {reason}."))
        if not task.cancelled():
            task.result()

    async def _abandon(self) -> None:
        try:
            await self._stop("it was stopped")
        finally:
            await self._producer.sender.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            # Accepted events are sent; the error in the block matters more than one of the flush.
            try:
                await self.close()
            except Exception as own:
                log.error("producer_close_failed", reason=reason_of(own))
        else:
            self._queue.close()
            await self._abandon()

    # -- the task that sends

    async def _run(self) -> None:
        try:
            while events := await self._queue.batch():
                try:
                    await self._dispatch.send(self._dispatch.dequeued(events))
                finally:
                    self._finish(len(events))
            await self._dispatch.send_last()
        finally:
            self._queue.close()
            self._finish(0)
            await self._dispatch.close()

    def _finish(self, count: int) -> None:
        self._finished += count
        self._progress.set()
        self._progress = asyncio.Event()
