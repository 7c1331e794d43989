"""The event handler that an asynchronous producer has by default: encode a batch, send it, say which events failed.

Strategy: consecutive events with the same place become one piece of data, so order is kept within every partition
for any keys; the sender then joins the pieces of one partition, and sends one MULTIPRODUCE per broker with one
entry per topic and partition, even if there is only one (golden notes, 7). Messages without a key that go out
in one batch share one random partition per topic: fewer, larger sets.

A message that cannot be sent at all (too large, no such partition, refused by the encoder) fails alone: the others of
its batch are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from operator import itemgetter

from consumerd.base.errors import BrokerError, ZooKeeperError
from consumerd.producer.encoders import Encoder, encode_all
from consumerd.producer.v07.data import ProducerData
from consumerd.producer.v07.events import Event, EventHandler, EventsFailedError
from consumerd.producer.v07.producer import Producer
from consumerd.producer.v07.sending import Sender

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
