"""Decoded batches: values for the handler, and the failure policy for each message that cannot be decoded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, Letter, Message, RetryPolicy, make_handler, message_handler
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.decoding import stage
from consumerd.handlers.decoding.api import load_decoder, make_decoder
from consumerd.handlers.handler_stages import Stages
from consumerd.net.schemas.errors import DecodeError
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.model import parse
from consumerd.testing import FakeClock, HandlerHarness
from consumerd.testing.records import MemoryDeadLetters
from consumerd.wire.v08.records import decode_records, encode_record_batch

MakeBatch = Callable[..., Batch]


pytestmark = [pytest.mark.usefixtures("either_codec")]


def number(message: Message) -> int:
    return int(message.payload)


class Values(Handler):
    """Records the values of each call, and fails this number of times."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[list[Any]] = []
        self.failures = failures

    async def handle(self, batch: Batch) -> None:
        assert len(batch.values) == len(batch)
        assert [message.value for message in batch.messages()] == list(batch.values)
        self.calls.append(list(batch.values))
        if self.failures:
            self.failures -= 1
            raise OSError("not now")


def staged(
    inner: Handler, clock: Any, letters: list[Letter], *, counts: HandlerCounts | None = None, lanes: int | None = None,
    decoder: Any = number, **policy: Any,
) -> Handler:  # fmt: skip
    place = MemoryDeadLetters(letters) if policy.get("on_failure") == "dead_letter" else None
    stages = Stages("mine", decoder=make_decoder(decoder), decoder_name="number")
    return stages.around(
        inner, RetryPolicy(**policy), clock=clock, rng=random.Random(1), dead_letters=place, counts=counts, lanes=lanes
    )


async def test_without_a_decoder_values_are_the_payloads(make_batch: MakeBatch) -> None:
    batch = make_batch(b"a", [b"b", b"c"])
    assert list(batch.values) == [b"a", b"b", b"c"]
    assert [message.value for message in batch.messages()] == [b"a", b"b", b"c"]
    assert not batch.decoded


async def test_handler_gets_values_beside_payloads(make_batch: MakeBatch, clock: Any) -> None:
    batch, inner = make_batch(b"1", [b"2", b"3"], b"4"), Values()
    await staged(inner, clock, []).handle(batch)
    assert inner.calls == [[1, 2, 3, 4]]
    assert batch.handled == 4


async def test_message_that_cannot_be_decoded_is_dead_lettered_alone_and_in_order(
    make_batch: MakeBatch, clock: Any
) -> None:
    letters: list[Letter] = []
    inner, counts = Values(failures=1), HandlerCounts()
    batch = make_batch(b"1", [b"2", b"x", b"3"], b"y", b"4")
    handler = staged(inner, clock, letters, counts=counts, on_failure="dead_letter")
    await handler.handle(batch)
    assert inner.calls == [[1, 2], [1, 2], [3], [4]]  # the first one failed by itself, and was repeated
    assert [(letter.message.payload, letter.attempts) for letter in letters] == [(b"x", 1), (b"y", 1)]
    assert letters[0].message.identity == next(m for m in batch.messages() if m.payload == b"x").identity
    assert isinstance(letters[0].error, DecodeError)
    assert str(letters[0].error).startswith("ValueError: invalid literal for int()")
    assert batch.handled == 6
    assert (counts.undecodable["t"], counts.dead_lettered["t"], counts.skipped["t"]) == (2, 2, 0)


async def test_message_that_cannot_be_decoded_is_skipped_alone(make_batch: MakeBatch, clock: Any) -> None:
    inner, counts = Values(), HandlerCounts()
    await staged(inner, clock, [], counts=counts, on_failure="skip").handle(make_batch(b"x", b"1", b"y"))
    assert inner.calls == [[1]]
    assert counts.skipped["t"] == 2


async def test_message_that_cannot_be_decoded_stops_behind_those_before_it(make_batch: MakeBatch, clock: Any) -> None:
    inner = Values()
    batch = make_batch(b"1", b"2", b"x", b"3")
    with pytest.raises(HandlerFailedError) as caught:
        await staged(inner, clock, []).handle(batch)
    assert str(caught.value) == (
        "decoder 'number' failed at offset 22 of t/0-0 (DecodeError: ValueError: invalid literal for int() with base "
        "10: b'x'); fix it, or set on_failure to skip or dead_letter."
    )
    assert inner.calls == [[1, 2]]
    assert batch.prefix(batch.handled) == 22


async def test_progress_within_a_call_is_that_of_the_batch(make_batch: MakeBatch, clock: Any) -> None:
    batch, seen = make_batch(b"x", b"1", b"2", b"3"), list[int]()

    @message_handler
    async def each(message: Message) -> None:
        seen.append(batch.handled)
        if message.value == 3:
            raise HandlerFailedError("no more")

    with pytest.raises(HandlerFailedError):
        await staged(each, clock, [], on_failure="skip").handle(batch)
    assert seen == [1, 2, 3]
    assert batch.handled == 3


async def test_keys_are_taken_from_decoded_values(make_batch: MakeBatch, clock: Any) -> None:
    seen: dict[str, list[int]] = {}

    class Keyed:
        def key(self, message: Message) -> str:
            return str(message.value["user"])

        @message_handler
        async def handle(self, message: Message) -> None:
            seen.setdefault(message.value["user"], []).append(message.value["n"])

    letters: list[Letter] = []
    payloads = [b'{"user":"u%d","n":%d}' % (n % 3, n) for n in range(30)]
    payloads[10:10] = [b"{", b'{"n":0}']  # the second one has no key, which is found by key() itself
    batch = make_batch(*payloads)
    handler = staged(
        make_handler(Keyed), clock, letters, decoder=load_decoder("json"), lanes=4, on_failure="dead_letter"
    )
    await handler.handle(batch)
    assert seen == {f"u{u}": list(range(u, 30, 3)) for u in range(3)}
    assert [(letter.message.payload, type(letter.error)) for letter in letters] == [
        (b"{", DecodeError),
        (b'{"n":0}', KeyError),
    ]
    assert batch.handled == len(batch)


@pytest.mark.parametrize(("key", "value"), [("decoder", "text"), ("bisect", True)])
async def test_sink_that_keeps_positions_is_refused(tmp_path: Path, key: str, value: object) -> None:
    handler = {"name": "files", "options": {"directory": str(tmp_path)}, key: value}
    config = parse({"group": {"id": "g", "topics": {"t": 1}}, "handler": handler}, "a test", environment=False)
    with pytest.raises(HandlerLoadError, match=rf"needs compressed messages whole.*remove handler\.{key}"):
        build_handler(config, clock=FakeClock(), rng=random.Random(1))


async def test_range_of_a_divided_compressed_message_is_not_contiguous(make_batch: MakeBatch, clock: Any) -> None:
    contiguous: list[tuple[list[bytes], bool]] = []

    class Ranges(Handler):
        async def handle(self, batch: Batch) -> None:
            contiguous.append((list(batch), batch.contiguous))

    batch = make_batch(b"1", [b"2", b"x", b"3", b"x"], b"4", [b"5", b"6"], b"x", b"7")
    await staged(Ranges(), clock, [], on_failure="skip").handle(batch)
    assert contiguous == [([b"1", b"2"], False), ([b"3"], False), ([b"4", b"5", b"6"], True), ([b"7"], True)]


async def test_message_whose_key_has_the_wrong_type_stops(make_batch: MakeBatch, clock: Any) -> None:
    class Keyed(Values):
        def key(self, message: Message) -> int:
            return int(message.value)  # neither bytes nor text

    with pytest.raises(HandlerFailedError, match=r"^key\(\) of handler 'mine' failed at offset 0 of t/0-0 \(TypeError"):
        await staged(Keyed(), clock, [], lanes=2).handle(make_batch(b"1"))

    class Panicking(Values):
        def key(self, message: Message) -> str:
            raise BaseException("no")

    with pytest.raises(HandlerFailedError, match=r"^key\(\) of handler 'mine' failed at offset 0 of t/0-0 \(BaseExc"):
        await staged(Panicking(), clock, [], lanes=2).handle(make_batch(b"1"))


async def test_tombstones_have_no_value(clock: Any) -> None:
    data = encode_record_batch([b"1", None, b"x"], keys=[b"k", b"gone", None], base_offset=7)
    batch, inner = Batch(TopicPartition.numbered("t", 3), decode_records(data, 7)), Values()
    letters: list[Letter] = []
    seen: list[tuple[Any, ...]] = []

    @message_handler
    async def each(message: Message) -> None:
        seen.append((message.key, message.value, message.offset))

    for handler in (inner, each):
        await staged(handler, clock, letters, on_failure="dead_letter").handle(batch)
        batch = Batch(batch.partition, decode_records(data, 7))
    assert inner.calls == [[1, None]]
    assert seen == [(b"k", 1, 7), (b"gone", None, 8)]
    assert [letter.message.key for letter in letters] == [None, None]


async def test_values_that_are_held_at_once_are_bounded(
    make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "RUN", 4)
    inner = Values()
    batch = make_batch(*[b"1"] * 9)
    await staged(inner, clock, []).handle(batch)
    assert [len(call) for call in inner.calls] == [4, 4, 1]
    # A compressed message is kept whole up to twice as many, and divided beyond: it has one position for all.
    inner.calls.clear()
    batch = make_batch(b"1", [b"2"] * 6, [b"3"] * 11)
    await staged(inner, clock, []).handle(batch)
    assert [len(call) for call in inner.calls] == [7, 8, 3]
    assert batch.handled == 18


async def test_large_messages_count_by_their_bytes(
    make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "RUN_BYTES", 100)
    inner = Values()
    await staged(inner, clock, []).handle(make_batch(*[b"1".rjust(60)] * 5))
    assert [len(call) for call in inner.calls] == [2, 2, 1]


@pytest.mark.parametrize("error", [SystemExit, BaseException])
async def test_decoder_that_exits_or_panics_fails_its_message(
    make_batch: MakeBatch, clock: Any, error: type[BaseException]
) -> None:
    def exits(message: Message) -> None:
        raise error

    with pytest.raises(HandlerFailedError, match=error.__name__):
        await staged(Values(), clock, [], decoder=exits).handle(make_batch(b"1"))


async def test_harness_decodes_as_the_daemon_does() -> None:
    @message_handler
    async def each(message: Message) -> None:
        assert message.value["id"] >= 0

    stages = Stages(decoder=load_decoder("json"), decoder_name="json")
    policy = RetryPolicy(max_attempts=2, on_failure="dead_letter")
    async with HandlerHarness(each, policy=policy, stages=stages) as harness:
        await harness.deliver([b'{"id":1}', b'{"id"', b'{"id":-1}'])
        assert [letter.message.payload for letter in harness.dead_letters] == [b'{"id"', b'{"id":-1}']
        assert harness.position() == harness.end()
