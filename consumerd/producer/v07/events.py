"""The stages of an asynchronous producer and their hooks (spec 003, 5.1: CallbackHandler, EventHandler).

    send ── before_enqueue ──► queue ── after_dequeuing_existing_data ──► batch ── before_sending_data ──► EventHandler
              after_enqueue             (at the end: last_batch_before_close)                    (encodes and sends)

Strategy: hooks are plain functions, called on the event loop in that order, and must not block. An event handler is a
coroutine, since it sends. All have defaults that change nothing, so that users override only what they need.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from consumerd.base.errors import BrokerError
from consumerd.producer.encoders import Encoder
from consumerd.producer.v07.producer import Producer


class Event(NamedTuple):
    """One queued message. `message` is the sender's value, not encoded yet."""

    topic: str
    message: Any
    key: Hashable = None
    partition: int | None = None


class EventsFailedError(BrokerError):
    """Raised by an EventHandler when some events of a call failed: (event, its error) pairs. The others are done."""

    def __init__(self, failures: Sequence[tuple[Event, Exception]]) -> None:
        super().__init__(f"{len(failures)} events failed; first error: {failures[0][1]}")
        self.failures = tuple(failures)


class CallbackHandler:
    """Inherit, and override the points that matter.

    Errors of `before_enqueue` and `after_enqueue` reach the sender. Errors of the others fail the events being
    handled: they are not sent, counted, and raised by the next flush.
    """

    def before_enqueue(self, event: Event) -> Event:
        """The event to put into the queue instead of `event`, in the sender's task."""
        return event

    def after_enqueue(self, event: Event, added: bool) -> None:
        """Called with the result: `added` is False if the queue was full and `event` dropped, or the sender gave up."""

    def after_dequeuing_existing_data(self, event: Event) -> Sequence[Event]:
        """The events to put into the batch instead of an event that was just taken out: none, one or several."""
        return (event,)

    def before_sending_data(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events to pass to the event handler instead of a whole batch."""
        return events

    def last_batch_before_close(self) -> Sequence[Event]:
        """The events that are still to be sent. Called once, when the queue is drained for good."""
        return ()

    def not_sent(self, events: Sequence[Event], error: Exception) -> None:
        """Events that were given up, and why. (Not in 0.7.2, which only logs them.)"""

    def close(self) -> None:
        """The end; called once."""


@runtime_checkable
class EventHandler(Protocol):
    """Takes whole batches: encodes them and sends them on, or does anything else with them."""

    async def handle(self, events: Sequence[Event], producer: Producer, encoder: Encoder) -> None:
        """Do all of `events`; the next batch comes after this returned.

        Raise EventsFailedError where only some failed, anything else where all did. `producer` sends synchronously.
        """
        ...

    async def close(self) -> None:
        """The end; called once, after the last batch, before `producer` is closed."""
        return
