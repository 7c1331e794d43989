"""The handling of a batch from the queue: callbacks, event handler, and the count of failures.

Strategy: no error of a user's code ends the sending: the events being handled have failed, are counted, logged,
passed to `not_sent`, and raised by the next flush; the next batch is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from consumerd.base.errors import reason_of
from consumerd.producer.errors import NotSentError, ProducerClosedError
from consumerd.producer.v07.events import CallbackHandler, Event, EventHandler, EventsFailedError
from consumerd.producer.v07.producer import Producer

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class AsyncProducerStats:
    """Counters of messages, from the start (0.7.2: AsyncProducerStats)."""

    #: Put into the queue.
    enqueued: int = 0
    #: Thrown away because the queue had no room.
    dropped: int = 0
    #: Handled by the event handler: with the default one, sent and confirmed.
    sent: int = 0
    #: Given up.
    failed: int = 0
    batches: int = 0


class Dispatch:
    """Hands batches to `handler`, and counts in `stats`. Used by one task at a time."""

    def __init__(
        self, producer: Producer, handler: EventHandler, callbacks: CallbackHandler | None, stats: AsyncProducerStats
    ) -> None:
        self._producer = producer
        self._handler = handler
        self._callbacks = callbacks or CallbackHandler()
        #: Hooks that are not overridden cost nothing.
        self._hooked = callbacks is not None
        self._stats = stats
        self._unreported = 0
        self._cause: Exception | None = None

    def dequeued(self, events: Sequence[Event]) -> Sequence[Event]:
        """The batch, as the callbacks want it."""
        if not self._hooked:
            return events
        batch: list[Event] = []
        for event in events:
            try:
                batch += self._callbacks.after_dequeuing_existing_data(event)
            except Exception as error:
                log.exception("callback_failed", callback="after_dequeuing_existing_data")
                self.failed([event], error)
        return batch

    async def send(self, events: Sequence[Event]) -> None:
        """Hand a batch to the event handler and record the result. Raises nothing but CancelledError."""
        try:
            if self._hooked:
                events = self._callbacks.before_sending_data(events)
            if not events:
                return
            self._stats.batches += 1
            await self._handler.handle(events, self._producer, self._producer.encoder)
        except EventsFailedError as error:
            self._stats.sent += len(events) - len(error.failures)
            by_cause: dict[int, tuple[Exception, list[Event]]] = {}
            for event, cause in error.failures:
                by_cause.setdefault(id(cause), (cause, []))[1].append(event)
            for cause, failed in by_cause.values():
                self.failed(failed, cause)
        except Exception as error:
            self.failed(events, error)
        except asyncio.CancelledError:
            self.failed(events, ProducerClosedError("the producer was stopped while they were sent."))
            raise
        else:
            self._stats.sent += len(events)

    async def send_last(self) -> None:
        """The messages that callbacks still hold when the queue is drained for the last time."""
        try:
            last = self._callbacks.last_batch_before_close()
        except Exception:
            log.exception("callback_failed", callback="last_batch_before_close")
            return
        if last:
            await self.send(last)

    def failed(self, events: Sequence[Event], error: Exception) -> None:
        """Count and report events that failed."""
        self._stats.failed += len(events)
        if not self._unreported:
            self._cause = error
        self._unreported += len(events)
        topics = sorted({event.topic for event in events})
        log.error("messages_not_sent", messages=len(events), topics=topics, reason=reason_of(error))
        if self._hooked:
            try:
                self._callbacks.not_sent(events, error)
            except Exception:
                log.exception("callback_failed", callback="not_sent")

    def tell(self) -> None:
        """Raise NotSentError for events that failed since the last call."""
        if self._cause is not None:
            count, cause = self._unreported, self._cause
            self._unreported, self._cause = 0, None
            raise NotSentError(count, reason_of(cause)) from cause

    async def close(self) -> None:
        """End callbacks and event handler."""
        try:
            self._callbacks.close()
        finally:
            await self._handler.close()
