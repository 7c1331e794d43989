from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext
from consumerd.handlers.builtin.console import ConsoleHandler, EnoughError, parse_form
from consumerd.handlers.builtin.records import value_field
from consumerd.handlers.decoding.api import load_decoder, make_decoder
from consumerd.testing import FakeClock
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support.schema_registry import SchemaRegistryServer

MakeBatch = Callable[..., Batch]


class PausedClock(FakeClock):
    """Says when somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.set()
        await super().sleep(seconds)


@dataclass
class Order:
    number: int
    at: date


async def test_prints_payloads_as_lines_or_json_with_the_identity(tmp_path: Path, make_batch: MakeBatch) -> None:
    with (tmp_path / "out").open("wb") as out:
        await ConsoleHandler(descriptor=out.fileno()).handle(make_batch(b"one", b"\xff"))
        await ConsoleHandler(as_json=True, descriptor=out.fileno()).handle(make_batch(b"two", start=7))
    lines = (tmp_path / "out").read_bytes().splitlines()
    assert lines[:2] == [b"one", b"\xff"]
    assert json.loads(lines[2])["offset"] == 7


async def test_prints_keys_before_payloads_if_asked(tmp_path: Path, make_batch: MakeBatch) -> None:
    data = encode_record_batch([b"one", None, b"three"], keys=[b"k", b"gone", None])
    keyed = Batch(TopicPartition.numbered("t", 0), decode_records(data, 0))
    with (tmp_path / "out").open("wb") as out:
        handler = ConsoleHandler(key_separator=b": ", descriptor=out.fileno())
        await handler.handle(keyed)
        await handler.handle(make_batch(b"of 0.7"))
        await handler.handle(Batch(TopicPartition.numbered("t", 0), decode_records(data, 0), first=1))
    lines = [b"k: one", b"gone: ", b": three", b": of 0.7", b"gone: ", b": three"]
    assert (tmp_path / "out").read_bytes().splitlines() == lines


async def test_prints_exactly_the_maximum_from_concurrent_partitions(tmp_path: Path, make_batch: MakeBatch) -> None:
    with (tmp_path / "out").open("wb") as out:
        handler = ConsoleHandler(max_messages=5, descriptor=out.fileno())
        batches = [make_batch(b"a", b"b", partition=p) for p in range(4)]
        results = await asyncio.gather(*[handler.handle(batch) for batch in batches], return_exceptions=True)
    assert (tmp_path / "out").read_bytes().count(b"\n") == 5
    assert [batch.handled for batch in batches] == [2, 2, 1, 0]
    assert isinstance(results[2], EnoughError)
    assert isinstance(results[3], EnoughError)
    assert results[2].exit_code is ExitCode.OK


async def test_prints_what_a_format_of_kcat_says(tmp_path: Path, make_batch: MakeBatch) -> None:
    data = encode_record_batch([b"one", None], keys=[b"k", None], timestamps=7, headers={0: (("h", b"1"), ("i", None))})
    keyed = Batch(TopicPartition.numbered("t", 3), decode_records(data, 0))
    with (tmp_path / "out").open("wb") as out:
        form = parse_form(r"%t/%p@%o %T %k:%K %s:%S [%h] 100%%\x21\t\n")
        await ConsoleHandler(form=form, descriptor=out.fileno()).handle(keyed)
        await ConsoleHandler(form=parse_form("%p %s %K "), descriptor=out.fileno()).handle(make_batch(b"of 0.7"))
    assert (tmp_path / "out").read_bytes() == (
        b"t/3@0 7 k:1 one:3 [h=1,i=] 100%!\t\nt/3@1 7 :-1 :-1 [] 100%!\t\n0-0 of 0.7 -1 "
    )


@pytest.mark.parametrize("text", ["%", "%x", "\\", r"\xg", r"\q"])
def test_rejects_formats_that_kcat_does_not_have(text: str) -> None:
    with pytest.raises(ValueError, match="must consist of %s"):
        parse_form(text)


async def test_begins_at_the_given_offset() -> None:
    partition = TopicPartition.numbered("t", 3)
    assert await ConsoleHandler(starts={partition: 5}).position(partition) == 5
    assert await ConsoleHandler().position(partition) is None


async def test_adds_decoded_values_or_errors_to_the_lines(tmp_path: Path, make_batch: MakeBatch) -> None:
    data = encode_record_batch([b'{"a":[1]}', None, b"{", b"2"], keys=[b"k", b"l", None, None], timestamps=7)
    batches = [Batch(TopicPartition.numbered("t", 0), decode_records(data, 0)), make_batch(b'"of 0.7"')]
    with (tmp_path / "out").open("wb") as out:
        console = ConsoleHandler(as_json=True, descriptor=out.fileno())
        for batch in batches:
            await console.behind(load_decoder("json")).handle(batch)
    lines: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert [(line.get("value", "none"), line.get("error")) for line in lines] == [
        ({"a": [1]}, None), (None, None), ("none", "Input data was truncated"), (2, None), ("of 0.7", None),
    ]  # fmt: skip
    assert [(line["offset"], line["payload"], line.get("key")) for line in lines[:3]] == [
        (0, '{"a":[1]}', "k"), (1, None, "l"), (2, "{", None),
    ]  # fmt: skip
    assert [batch.handled for batch in batches] == [4, 1]
    assert console.undecodable == 1


async def test_message_that_cannot_be_decoded_counts_in_the_maximum(tmp_path: Path, make_batch: MakeBatch) -> None:
    batch = make_batch(b"1", b"no", b"3", b"nor")
    with (tmp_path / "out").open("wb") as out:
        console = ConsoleHandler(as_json=True, max_messages=2, descriptor=out.fileno())
        with pytest.raises(EnoughError):
            await console.behind(make_decoder(lambda message: int(message.payload))).handle(batch)
    lines = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert [line.get("value") for line in lines] == [1, None]
    assert lines[1]["error"].startswith("ValueError: invalid literal")
    assert (batch.handled, console.undecodable) == (2, 1)


async def test_waits_for_a_registry_until_it_is_cancelled(tmp_path: Path, make_batch: MakeBatch) -> None:
    with SchemaRegistryServer() as registry, (tmp_path / "out").open("wb") as out:
        key, clock = registry.add({"type": "string"}), PausedClock()
        handler = ConsoleHandler(as_json=True, descriptor=out.fileno()).behind(
            load_decoder("schema_registry", {"url": registry.url})
        )
        await handler.start(HandlerContext("g", "g_1", clock))
        registry.script.append((503, b""))
        batch = make_batch(b"not framed", b"\x00" + int(key).to_bytes(4) + b"\x04hi")
        waiting = asyncio.create_task(handler.handle(batch))
        waiting.add_done_callback(lambda _: clock.slept.set())
        await clock.slept.wait()
        assert (batch.handled, len((tmp_path / "out").read_bytes().splitlines())) == (1, 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        await handler.handle(batch.rest(1))
    lines = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert (lines[0]["error"], lines[1]["value"]) == (
        "it does not begin with a zero byte and the id of a schema", "hi",
    )  # fmt: skip


def test_values_are_valid_json() -> None:
    value = {
        "bytes": b"\xff", 1: datetime(2026, 11, 29, 1, tzinfo=UTC), (2, 3): Order(1, date(2026, 1, 2)),
        "numbers": (float("nan"), float("inf"), float("-inf"), 0.5, Decimal("1.20"), 1 << 70),
        "other": {UUID(int=1)}, "half": "\ud800",
    }  # fmt: skip
    field = value_field(value)
    assert json.loads(b"{%b}" % field, parse_constant=pytest.fail) == {
        "value": {
            "bytes": "/w==", "1": "2026-11-29T01:00:00+00:00", "[2, 3]": {"number": 1, "at": "2026-01-02"},
            "numbers": ["NaN", "Infinity", "-Infinity", 0.5, "1.20", 1 << 70],
            "other": ["00000000-0000-0000-0000-000000000001"], "half": "\ud800",
        }
    }  # fmt: skip
    assert value_field("\u00e4").decode() == '"value":"\u00e4"'


async def test_value_that_contains_itself_is_an_error_of_its_message(tmp_path: Path, make_batch: MakeBatch) -> None:
    circle: list[Any] = []
    circle.append(circle)
    with (tmp_path / "out").open("wb") as out:
        console = ConsoleHandler(as_json=True, descriptor=out.fileno())
        await console.behind(make_decoder(lambda _: circle)).handle(make_batch(b"a"))
    assert json.loads((tmp_path / "out").read_bytes())["error"].startswith("RecursionError")
