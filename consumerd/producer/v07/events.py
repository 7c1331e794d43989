"""The stages of an asynchronous producer and their hooks (spec 003, 5.1: CallbackHandler, EventHandler).

    send ── before_enqueue ──► queue ── after_dequeuing_existing_data ──► batch ── before_sending_data ──► EventHandler
              after_enqueue             (at the end: last_batch_before_close)                    (encodes and sends)

Strategy: hooks are plain functions, called on the event loop in that order, and must not block. An event handler is a
coroutine, since it sends. All have defaults that change nothing, so that users override only what they need.

The event handler by default encodes a batch and sends it. Consecutive events with the same place become one piece of
data, so order is kept within every partition for any keys; the sender then joins the pieces of one partition, and sends
one MULTIPRODUCE per broker with one entry per topic and partition, even if there is only one (golden notes, 7).
Messages without a key that go out in one batch share one random partition per topic: fewer, larger sets. A message that
cannot be sent at all (too large, no such partition, refused by the encoder) fails alone: the others of its batch are
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, runtime_checkable

from consumerd.base.errors import BrokerError, ZooKeeperError
from consumerd.producer.encoders import Encoder, encode_all
from consumerd.producer.v07.data import ProducerData
from consumerd.producer.v07.producer import Producer
from consumerd.producer.v07.sending import Sender


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


_Failures = list[tuple[Event, Exception]]


class DefaultEventHandler(EventHandler):
    """Encodes and sends. After the sender's retries, network errors fail the unconfirmed part of a batch."""

    async def handle(self, events: Sequence[Event], producer: Producer, encoder: Encoder) -> None:
        """Raises EventsFailedError."""
        failures: _Failures = []
        pieces = _encode(events, encoder, failures)
        pending = [data for data, _ in pieces]
        try:
            await producer.sender.send(pending, merge=True, multi=True)
        except (BrokerError, ZooKeeperError) as error:
            _fail(pieces, pending, error, failures)
        except Exception:
            # About a message: nothing of `pending` was sent.
            await _send_what_can_be(pieces, pending, producer.sender, failures)
        if failures:
            raise EventsFailedError(failures)


#: Topic, key and partition of an event.
_place: Callable[[Event], tuple[str, Hashable, int | None]] = itemgetter(0, 2, 3)

_Piece = tuple[ProducerData, list[Event]]


def _encode(events: Sequence[Event], encoder: Encoder, failures: _Failures) -> list[_Piece]:
    pieces = []
    for (topic, key, partition), group in groupby(events, _place):
        run = list(group)
        try:
            payloads = encode_all(encoder, [event.message for event in run])
        except Exception:
            run, payloads = _encode_singly(run, encoder, failures)
        pieces.append((ProducerData(topic, payloads, key, partition), run))
    return pieces


def _encode_singly(run: list[Event], encoder: Encoder, failures: _Failures) -> tuple[list[Event], list[bytes]]:
    """The events that the encoder takes, and their payloads."""
    good: list[Event] = []
    payloads: list[bytes] = []
    for event in run:
        try:
            payloads += encode_all(encoder, [event.message])
        except Exception as error:
            failures.append((event, error))
        else:
            good.append(event)
    return good, payloads


def _fail(pieces: list[_Piece], pending: list[ProducerData], error: Exception, failures: _Failures) -> None:
    undone = set(map(id, pending))
    failures += [(event, error) for data, run in pieces if id(data) in undone for event in run]


async def _send_what_can_be(
    pieces: list[_Piece], pending: list[ProducerData], sender: Sender, failures: _Failures
) -> None:
    undone = set(map(id, pending))
    singles: list[_Piece] = []
    for data, run in pieces:
        if id(data) not in undone:
            continue
        for event, payload in zip(run, data.payloads, strict=True):
            single = ProducerData(data.topic, [payload], data.key, data.partition)
            try:
                await sender.check(single)
            except Exception as own:
                failures.append((event, own))
            else:
                singles.append((single, [event]))
    rest = [data for data, _ in singles]
    try:
        await sender.send(rest, merge=True, multi=True)
    except Exception as again:
        _fail(singles, rest, again, failures)
