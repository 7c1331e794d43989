"""Lines by the real producer to a broker in memory: what they become, and what is said when one does not arrive."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.cli.main import explain
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.producer.lines import LineReader
from consumerd.producer.v08.lines import LinePlan, LineSender
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.routing import key_partition
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.v08.records import Record, decode_records
from tests.support.prepared_requests import OneBroker, request_body

PARTITIONS = 3
TOO_LARGE, RECORD_LIST_TOO_LARGE, NOT_ALLOWED = 10, 18, 29


class MemoryBroker(OneBroker):
    """A client of one broker, which answers batches that have the payload `bad` with `code`, once `taking` is set."""

    def __init__(self, code: int = 0, bad: bytes | None = None) -> None:
        super().__init__(PARTITIONS)
        self.log: defaultdict[int, list[Record]] = defaultdict(list)
        self.taking = asyncio.Event()
        self.taking.set()
        self._code, self._bad = code, bad

    async def call(self, api: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        body = request_body(api, body)
        await self.taking.wait()
        answers = []
        for part in body["topic_data"][0]["partition_data"]:
            records = list(decode_records(part["records"], 0).messages())
            code = self._code if self._bad in [record.payload for record in records] else 0
            if not code:
                self.log[part["index"]] += records
            answers.append({"index": part["index"], "error_code": code, "base_offset": 0})
        return {"responses": [{"name": "t", "partition_responses": answers}]}


async def send(broker: MemoryBroker, data: bytes, plan: LinePlan, tmp_path: Path, **settings: Any) -> LineSender:
    (tmp_path / "in").write_bytes(data)
    client: Any = broker
    ours = V08ProducerSettings(**settings)
    with (tmp_path / "in").open("rb") as file:
        async with V08Producer(client, ours, clock=SystemClock(), rng=random.Random(1)) as producer:
            sender = LineSender(producer, plan)
            await sender.run(LineReader(file.fileno(), max_line_bytes=1 << 20))
    return sender


async def failure(
    broker: MemoryBroker, data: bytes, plan: LinePlan, tmp_path: Path, **settings: Any
) -> tuple[ExitCode, str]:
    """The exit code and the sentence of the command line for it."""
    with pytest.raises(Exception) as caught:  # alone, or in a group
        await send(broker, data, plan, tmp_path, **settings)
    code, sentence = explain(caught.value)
    assert sentence is not None
    return code, sentence


async def test_sends_keys_and_headers_in_order(tmp_path: Path) -> None:
    rng = random.Random(3)
    pairs = [(b"key %d" % rng.randrange(30), b"%d" % number * rng.randrange(9)) for number in range(3000)]
    data = b"".join(b"%s::%s\n" % pair for pair in pairs)
    broker = MemoryBroker()
    plan = LinePlan("t", separator=b"::", headers=(("h", b"v"),))
    sender = await send(broker, data, plan, tmp_path, batch_bytes=700)
    assert (sender.lines, sender.bytes) == (3000, len(data) - 3000)
    for number in range(PARTITIONS):
        assert [(each.key, each.payload, each.headers) for each in broker.log[number]] == [
            (key, value, (("h", b"v"),)) for key, value in pairs if key_partition(key, PARTITIONS) == number
        ]


async def test_names_a_line_without_a_key_and_sends_those_before_it(tmp_path: Path) -> None:
    broker = MemoryBroker()
    code, sentence = await failure(broker, b"a:1\nb:2\nc\nd:4\n", LinePlan("t", 0, b":"), tmp_path)
    assert (code, sentence) == (ExitCode.USAGE, "line 3 has no key separator ':'.")
    assert [each.payload for each in broker.log[0]] == [b"1", b"2"]


@pytest.mark.parametrize("largest", [10, None])
async def test_names_a_line_that_is_too_long_and_sends_those_before_it(tmp_path: Path, largest: int | None) -> None:
    broker = MemoryBroker()
    data = b"one\n" + b"x" * 5000 + b"\ntwo\n"
    plan = LinePlan("t", 0, max_bytes=largest)
    code, sentence = await failure(broker, data, plan, tmp_path, batch_bytes=100, buffer_bytes=4000)
    assert (code, sentence.startswith("line 2 ")) == (ExitCode.USAGE, True)
    assert [each.payload for each in broker.log[0]] == [b"one"]


async def test_sends_lines_together_that_the_limit_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for each would cost several times as much."""
    monkeypatch.setattr(V08Producer, "send", None)
    lines = [b"x" * (1 + number % 10) for number in range(100)]
    broker = MemoryBroker()
    sender = await send(broker, b"\n".join(lines), LinePlan("t", 0, max_bytes=10), tmp_path, batch_bytes=200)
    assert (sender.lines, sender.bytes) == (100, sum(map(len, lines)))
    assert [each.payload for each in broker.log[0]] == lines


@pytest.mark.parametrize(
    ("data", "separator", "largest", "words", "stored"),
    [
        (b"ab:cde\nabc:def\n", b":", 5, "line 2 has 6 bytes; --max-message-bytes is 5.", [b"cde"]),
        (b":abcde\na:bcdef\n", b":", 5, "line 2 has 6 bytes; --max-message-bytes is 5.", [b"abcde"]),
        (b"abc\nabcd\n", None, 3, "line 2 has 4 bytes; --max-message-bytes is 3.", [b"abc"]),
    ],
)
async def test_limits_key_and_message_together(
    tmp_path: Path, data: bytes, separator: bytes | None, largest: int, words: str, stored: list[bytes]
) -> None:
    broker = MemoryBroker()
    plan = LinePlan("t", 0, separator, max_bytes=largest)
    assert await failure(broker, data, plan, tmp_path) == (ExitCode.USAGE, words)
    assert [each.payload for each in broker.log[0]] == stored


@pytest.mark.parametrize(
    ("bad", "batch_bytes", "words"),
    [
        (b"1", 1, "line 1 may not have arrived, nothing was sent before it: "),
        (b"2", 1, "line 2 may not have arrived, all lines before it were sent: "),
        (b"1", 1000, "line 1 and 1 more in its batch may not have arrived, nothing was sent before it: "),
    ],
)
async def test_tells_how_far_lines_arrived(tmp_path: Path, bad: bytes, batch_bytes: int, words: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await send(
            MemoryBroker(NOT_ALLOWED, bad), b"1\n2\n", LinePlan("t", 0), tmp_path, batch_bytes=batch_bytes, linger=60
        )
    (error,) = caught.value.exceptions
    assert str(error).startswith(words)
    assert isinstance(error.__cause__, BrokerRefusedError)


async def test_names_the_first_line_of_a_refused_batch(tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(1, 100)]
    data = b"\n".join(lines)
    broker = MemoryBroker(TOO_LARGE, b"50")
    code, sentence = await failure(broker, data, LinePlan("t", 0), tmp_path, batch_bytes=1)
    assert (code, "line 50 has 2 bytes, more than" in sentence) == (ExitCode.USAGE, True)
    assert "all lines before it were sent" in sentence
    assert [each.payload for each in broker.log[0]][:49] == lines[:49]
    code, sentence = await failure(MemoryBroker(TOO_LARGE, b"50"), data, LinePlan("t", 0), tmp_path, linger=60)
    assert "line 50 has 2 bytes, more than" in sentence
    assert "all lines before it were sent" in sentence
    code, sentence = await failure(MemoryBroker(NOT_ALLOWED, b"50"), data, LinePlan("t", 0), tmp_path, batch_bytes=1)
    assert (code, sentence.startswith("line 50 may not have arrived, all lines before")) == (ExitCode.BROKER, True)
    assert "TOPIC_AUTHORIZATION_FAILED" in sentence


@pytest.mark.parametrize("batch_bytes", [1, 1000])
@pytest.mark.parametrize(
    ("code", "setting"),
    [
        (TOO_LARGE, "(max.message.bytes, or message.max.bytes of the brokers)"),
        (RECORD_LIST_TOO_LARGE, "(segment.bytes, or log.segment.bytes of the brokers)"),
    ],
)
async def test_names_the_setting_that_limits_a_batch(tmp_path: Path, code: int, setting: str, batch_bytes: int) -> None:
    broker = MemoryBroker(code, b"1")
    _, sentence = await failure(broker, b"1\n2\n", LinePlan("t", 0), tmp_path, batch_bytes=batch_bytes, linger=60)
    assert setting in sentence


async def test_failure_ends_the_wait_for_lines() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"1\n")
        client: Any = MemoryBroker(NOT_ALLOWED, b"1")
        async with asyncio.timeout(60):
            with pytest.raises(ExceptionGroup):
                async with V08Producer(client, clock=SystemClock(), rng=random.Random(1)) as producer:
                    await LineSender(producer, LinePlan("t")).run(LineReader(reading, max_line_bytes=100))
    finally:
        os.close(reading)
        os.close(writing)
