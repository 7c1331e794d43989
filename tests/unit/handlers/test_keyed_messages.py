"""Batches of brokers of 0.8 and later: keys, timestamps, headers, tombstones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.handlers import Batch, FileDeadLetters, KeyedMessage, Letter, MessageHandler, message_handler
from consumerd.handlers.builtin import postgres
from consumerd.handlers.builtin.records import encode_records
from consumerd.handlers.dead_letter_replay import TopicTarget
from consumerd.handlers.dead_letters import StoredLetter
from consumerd.handlers.sparse_content import SparseContent
from consumerd.producer import ProducerData
from consumerd.wire.v08.records import TimestampType, decode_records, encode_record_batch

PLACE = TopicPartition.numbered("t", 3)


@pytest.fixture
def batch() -> Batch:
    data = encode_record_batch(
        [b"one", None, b"\xff"],
        keys=[b"k", b"gone", None],
        timestamps=[1000, 2000, -1],
        headers={0: (("h", b"v"), ("n", None))},
        base_offset=7,
    )
    return Batch(PLACE, decode_records(data, 7))


def test_messages_have_all_fields_of_the_protocol(batch: Batch) -> None:
    messages: list[object] = list(batch.messages())
    assert all(isinstance(message, KeyedMessage) for message in messages)
    first, second, third = batch.messages()
    assert (first.offset, first.next_offset, first.payload, first.key, first.timestamp) == (7, 8, b"one", b"k", 1000)
    assert first.headers == (("h", b"v"), ("n", None))
    assert [second.payload, second.key] == [None, b"gone"]
    assert (third.payload, third.key, third.headers) == (b"\xff", None, ())
    assert first.identity == ("t", NO_BROKER, 3, 7, 0)
    assert batch.keys == [b"k", b"gone", None]
    assert batch.rest(1).keys == [b"gone", None]
    assert [message.offset for message in batch.rest(1).messages()] == [8, 9]


@pytest.mark.usefixtures("either_codec")
def test_messages_are_like_any_others() -> None:
    data = encode_record_batch([b"one"], keys=[b"k"], timestamps=[1000], headers={0: (("h", b"v"),)}, base_offset=7)
    message: Any = next(Batch(PLACE, decode_records(data, 7)).messages())
    made = KeyedMessage(PLACE, 7, 0, 8, b"one", b"k", 1000, TimestampType.CREATE_TIME, (("h", b"v"),))
    assert isinstance(message, KeyedMessage)
    assert (message, made, repr(message), hash(message)) == (made, message, repr(made), hash(made))
    assert (*message,) == (*made,)
    assert (len(message), message.value, message.topic, message.broker) == (9, b"one", "t", NO_BROKER)
    assert (message.timestamp_type, message.identity) == (TimestampType.CREATE_TIME, made.identity)
    assert message._replace(key=None) == made._replace(key=None)
    same = pickle.loads(pickle.dumps(message))
    assert (type(same), same) == (KeyedMessage, made)


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize("step", [1, 3, 64])
def test_messages_that_are_kept_stay_as_they_were(step: int) -> None:
    values, keys = [b"%d" % number for number in range(200)], [b"k%d" % number for number in range(200)]
    headers: Any = {number: (("h", b"%d" % number),) for number in range(0, 200, 2)}
    data = encode_record_batch(values, keys=keys, timestamps=range(1000, 1200), headers=headers, base_offset=7)
    batch = Batch(PLACE, decode_records(data, 7))
    kept: list[object] = [message for number, message in enumerate(batch.messages()) if number % step == 1 % step]
    assert kept == list(batch.messages_as(KeyedMessage._make, PLACE))[1 % step :: step]


def test_records_have_all_fields_of_the_protocol(batch: Batch) -> None:
    first, second, third = (json.loads(line) for line in encode_records(batch))
    assert first == {
        "topic": "t", "broker": None, "partition": 3, "offset": 7, "index": 0, "payload": "one", "key": "k",
        "timestamp": 1000, "headers": [["h", "dg=="], ["n", None]],
    }  # fmt: skip
    assert (second["payload"], second["key"]) == (None, "gone")
    assert (third["payload_base64"], "key" in third, "timestamp" in third) == ("/w==", False, False)


@pytest.mark.parametrize(("time", "stored"), [((1 << 63) - 1, (1 << 63) - 1), (1 << 63, None), (-(1 << 63), None)])
async def test_sinks_store_no_timestamp_that_their_receivers_cannot_hold(time: int, stored: int | None) -> None:
    message: Any = KeyedMessage(PLACE, 7, 0, 8, b"one", None, time, 0, ())
    (line,) = encode_records(Batch(PLACE, SparseContent([message])))
    assert json.loads(line).get("timestamp") == stored
    assert postgres._row(message)[-2] == stored
    sent: list[ProducerData] = []

    class Producer:
        async def send_all(self, data: Sequence[ProducerData], *, merge: bool = False) -> None:
            sent.extend(data)

    await TopicTarget(Producer(), "again", headers=True).replay([StoredLetter(message, "ValueError", "no", 1, 0.0)])
    assert [each.timestamp for each in sent] == [stored]


async def test_function_for_one_message_receives_all_fields(batch: Batch) -> None:
    seen = []

    @message_handler
    async def handler(message: KeyedMessage) -> None:
        seen.append((message.key, message.payload))

    assert isinstance(handler, MessageHandler)
    await handler.handle(batch)
    assert seen == [(b"k", b"one"), (b"gone", None), (None, b"\xff")]


async def test_dead_letter_keeps_all_fields(batch: Batch, tmp_path: Path) -> None:
    letters = FileDeadLetters(tmp_path / "dead", clock=SystemClock())
    await letters.start()
    await letters.write([Letter(message, ValueError("no"), 1) for message in batch.messages()])
    await letters.stop()
    first, second, _ = (json.loads(line) for line in (tmp_path / "dead").read_text().splitlines())
    assert (first["key_base64"], first["headers"][0], first["broker"]) == ("aw==", ["h", "dg=="], None)
    assert second["payload_base64"] is None


def test_rest_is_the_same_wherever_it_begins() -> None:
    count = 1500  # more than are made at once
    first = encode_record_batch(
        [b"%d" % number for number in range(count)], timestamps=list(range(count)), headers={1200: (("h", b"v"),)}
    )
    second = encode_record_batch([b"a", b"b"], keys=[b"k", None], timestamps=[5, 6], base_offset=count)
    batch = Batch(PLACE, decode_records(first + second, 0))
    messages = list(batch.messages())
    for done in range(0, count + 3, 7):
        assert list(batch.rest(done).messages()) == messages[done:]
        assert list(batch.rest(done)) == [message.payload for message in messages[done:]]
