from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import random
import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import (
    Batch,
    DeadLetters,
    Handler,
    HandlerContext,
    Letter,
    Message,
    RejectedError,
    RetryLaterError,
    RetryPolicy,
    make_handler,
    message_handler,
    retrying,
)
from consumerd.handlers.counts import HandlerCounts

MakeBatch = Callable[..., Batch]


pytestmark = pytest.mark.usefixtures("either_codec")


class Memory(DeadLetters):
    """Keeps letters; for the policy alone, the file has its own tests."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def write(self, letters: Sequence[Letter]) -> None:
        self.letters += letters

    async def stop(self) -> None:
        self.calls.append("stop")


class Scripted(Handler):
    """A batch handler that raises what the script says, one entry per call, and then takes everything."""

    def __init__(self, *script: BaseException | None) -> None:
        self.script = list(script)
        self.calls: list[list[bytes]] = []

    async def handle(self, batch: Batch) -> None:
        self.calls.append(list(batch))
        if self.script and (error := self.script.pop(0)) is not None:
            raise error


def wrapped(
    inner: Handler, clock: Any, *, dead_letters: DeadLetters | None = None, seed: int = 1, **policy: Any
) -> Handler:
    return retrying(
        inner, RetryPolicy(**policy), clock=clock, rng=random.Random(seed), name="mine", dead_letters=dead_letters
    )


class Poisoned(Handler):
    """A batch handler that fails at each batch with one of `poison`, and lists the batches that it took."""

    def __init__(self, *poison: bytes) -> None:
        self.poison = set(poison)
        self.calls = 0
        self.taken: list[bytes] = []

    async def handle(self, batch: Batch) -> None:
        self.calls += 1
        if self.poison & set(batch):
            raise ValueError("poison")
        self.taken += batch


@pytest.mark.parametrize("poison", [[0], [6], [3, 4], [0, 1, 2, 3, 4, 5, 6]])
async def test_bisection_gives_up_the_messages_that_fail_alone(
    make_batch: MakeBatch, clock: Any, poison: list[int]
) -> None:
    payloads = [bytes([number]) for number in range(7)]
    bad = [payloads[number] for number in poison]
    inner, letters = Poisoned(*bad), Memory()
    handler = wrapped(
        inner, clock, dead_letters=letters, bisect=True, max_attempts=2, initial_backoff=0.0, on_failure="dead_letter"
    )
    batch = make_batch(*payloads)

    await handler.handle(batch)

    assert [letter.message.payload for letter in letters.letters] == bad
    assert {letter.attempts for letter in letters.letters} == {2}
    assert inner.taken == [payload for payload in payloads if payload not in bad]
    assert batch.handled == 7


async def test_bisection_of_500_messages_costs_about_20_calls(make_batch: MakeBatch, clock: Any) -> None:
    inner = Poisoned(b"321")
    handler = wrapped(inner, clock, bisect=True, max_attempts=1, on_failure="skip")
    await handler.handle(make_batch(*(b"%d" % number for number in range(500))))
    assert len(inner.taken) == 499
    assert inner.calls <= 20


async def test_bisection_that_stops_leaves_what_is_before_the_message_handled(
    make_batch: MakeBatch, clock: Any
) -> None:
    batch = make_batch(*(b"%d" % number for number in range(8)))
    with pytest.raises(HandlerFailedError, match=f"failed once at offset {batch.prefix(5)} "):
        await wrapped(Poisoned(b"5"), clock, bisect=True, max_attempts=1).handle(batch)
    assert batch.handled == 5


async def test_bisection_does_not_divide_what_a_handler_counts(make_batch: MakeBatch, clock: Any) -> None:
    seen: list[bytes] = []

    @message_handler
    async def handle(message: Message) -> None:
        seen.append(message.payload)
        if message.payload == b"b":
            raise ValueError("poison")

    await wrapped(handle, clock, bisect=True, max_attempts=2, initial_backoff=0.0, on_failure="skip").handle(
        make_batch(b"a", b"b", b"c")
    )
    assert seen == [b"a", b"b", b"b", b"c"]


async def test_message_for_a_retry_topic_is_counted_as_deferred_and_not_as_a_dead_letter(
    make_batch: MakeBatch, clock: Any
) -> None:
    counts, letters = HandlerCounts(), Memory()
    policy = RetryPolicy(max_attempts=1, on_failure="retry_topic")
    handler = retrying(
        Scripted(ValueError("no")), policy, clock=clock, rng=random.Random(1), dead_letters=letters, counts=counts
    )
    with capture_logs() as logs:
        await handler.handle(make_batch(b"a", b"b"))
    assert [letter.message.payload for letter in letters.letters] == [b"a", b"b"]
    assert (dict(counts.deferred), dict(counts.dead_lettered)) == ({"t": 2}, {})
    assert [(each["event"], each["log_level"]) for each in logs] == [("messages_deferred", "warning")]


async def test_retries_a_batch_until_it_succeeds(make_batch: MakeBatch, clock: Any) -> None:
    inner = Scripted(ValueError("no"), OSError("no"), None)
    batch = make_batch(b"a", b"b")
    await wrapped(inner, clock).handle(batch)
    assert inner.calls == [[b"a", b"b"]] * 3
    assert batch.handled == 2
    assert len(clock.sleeps) == 2


async def test_first_attempt_makes_nothing_that_only_a_failure_needs(make_batch: MakeBatch, clock: Any) -> None:
    class Deep(Scripted):
        frames = 0

        async def handle(self, batch: Batch) -> None:
            self.frames = len(inspect.stack(0))
            await super().handle(batch)

    inner = Deep()
    await wrapped(inner, clock).handle(make_batch(b"a"))
    assert inner.frames - len(inspect.stack(0)) <= 6  # itself among them


async def test_pauses_are_random_and_their_bound_doubles_up_to_a_limit(make_batch: MakeBatch, clock: Any) -> None:
    failures = 60
    policy: dict[str, Any] = {"max_attempts": failures + 1, "initial_backoff": 0.5, "max_backoff": 3.0}
    await wrapped(Scripted(*[ValueError()] * failures), clock, **policy).handle(make_batch(b"a"))
    bounds = [0.5, 1.0, 2.0] + [3.0] * (failures - 3)
    assert len(clock.sleeps) == failures
    assert all(0 <= pause <= bound for pause, bound in zip(clock.sleeps, bounds, strict=True))
    assert len(set(clock.sleeps)) == failures
    assert max(clock.sleeps) > 2.5
    again = type(clock)(auto=True)
    await wrapped(Scripted(*[ValueError()] * failures), again, **policy).handle(make_batch(b"a"))
    assert again.sleeps == clock.sleeps  # all randomness is the generator's


async def test_a_rejected_message_has_no_further_attempt_and_the_next_one_has_all(
    make_batch: MakeBatch, clock: Any
) -> None:
    calls = []

    @message_handler
    async def each(message: Message) -> None:
        calls.append(message.payload)
        if message.payload == b"bad":
            raise RejectedError("it is not valid")
        if message.payload == b"later" and calls.count(b"later") < 3:
            raise ValueError("not yet")

    letters = Memory()
    batch = make_batch(b"bad", b"later", b"c")
    handler = wrapped(each, clock, on_failure="dead_letter", dead_letters=letters, max_attempts=3)
    await handler.handle(batch)
    assert calls == [b"bad", b"later", b"later", b"later", b"c"]
    assert [(letter.message.payload, letter.attempts) for letter in letters.letters] == [(b"bad", 1)]
    assert len(clock.sleeps) == 2
    assert batch.handled == 3


async def test_pause_is_as_long_as_the_handler_asks_if_that_is_longer(make_batch: MakeBatch, clock: Any) -> None:
    inner = Scripted(RetryLaterError("busy", 90.0), RetryLaterError("busy", 0.0), ValueError(), None)
    policy: dict[str, Any] = {"initial_backoff": 0.5, "max_backoff": 3.0}
    await wrapped(inner, clock, **policy).handle(make_batch(b"a"))
    assert clock.sleeps[0] == 90.0
    assert 0 < clock.sleeps[1] <= 1.0
    assert 0 < clock.sleeps[2] <= 2.0


async def test_stop_names_the_offset_and_the_cause(make_batch: MakeBatch, clock: Any) -> None:
    inner = Scripted(*[ValueError("bad\nthing")] * 9)
    batch = make_batch(b"a", b"b", start=400, topic="events", broker=1, partition=2)
    with pytest.raises(HandlerFailedError) as caught:
        await wrapped(inner, clock, max_attempts=3).handle(batch)
    assert len(inner.calls) == 3
    assert str(caught.value) == (
        "handler 'mine' failed 3 times at offset 400 of events/1-2 (ValueError: bad thing); "
        "fix it, or set on_failure to skip or dead_letter."
    )
    assert isinstance(caught.value.__cause__, ValueError)
    assert batch.handled == 0


async def test_skip_continues_after_the_batch_of_a_handler_without_marks(make_batch: MakeBatch, clock: Any) -> None:
    batch = make_batch(b"a", b"b")
    await wrapped(Scripted(*[ValueError()] * 9), clock, max_attempts=2, on_failure="skip").handle(batch)
    assert batch.handled == 2


async def test_skips_only_the_failed_message_and_repeats_none(make_batch: MakeBatch, clock: Any) -> None:
    calls: list[bytes] = []
    flaky = {b"once"}

    @message_handler
    async def work(message: Message) -> None:
        calls.append(message.payload)
        if message.payload.startswith(b"poison") or message.payload in flaky:
            flaky.discard(message.payload)
            raise ValueError(message.payload.decode())

    memory = Memory()
    batch = make_batch(b"a", [b"b", b"poison 1", b"c"], b"once", b"poison 2")
    handler = wrapped(work, clock, max_attempts=3, on_failure="dead_letter", dead_letters=memory)
    await handler.handle(batch)
    assert calls == [b"a", b"b", *[b"poison 1"] * 3, b"c", *[b"once"] * 2, *[b"poison 2"] * 3]
    assert [(letter.message.payload, letter.attempts, str(letter.error)) for letter in memory.letters] == [
        (b"poison 1", 3, "poison 1"),
        (b"poison 2", 3, "poison 2"),
    ]
    assert memory.letters[0].message.identity == ("t", 0, 0, 11, 1)
    assert batch.handled == 6


async def test_progress_resets_the_count_of_attempts(make_batch: MakeBatch, clock: Any) -> None:
    failed: set[bytes] = set()

    @message_handler
    async def every_message_fails_once(message: Message) -> None:
        if message.payload not in failed:
            failed.add(message.payload)
            raise ValueError

    batch = make_batch(*[b"%d" % n for n in range(20)])
    await wrapped(every_message_fails_once, clock, max_attempts=2).handle(batch)
    assert batch.handled == 20
    assert max(clock.sleeps) <= 0.1  # and so does the back-off


async def test_writes_a_whole_batch_of_dead_letters(make_batch: MakeBatch, clock: Any) -> None:
    memory = Memory()
    handler = wrapped(Scripted(ValueError()), clock, max_attempts=1, on_failure="dead_letter", dead_letters=memory)
    await handler.handle(make_batch(b"a", b"b"))
    assert [letter.message.payload for letter in memory.letters] == [b"a", b"b"]
    assert clock.sleeps == []


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
async def test_never_retries_or_skips_a_declared_failure(make_batch: MakeBatch, clock: Any, on_failure: str) -> None:
    class DiskGoneError(HandlerFailedError):
        pass

    inner = Scripted(DiskGoneError("the disk is gone."))
    with pytest.raises(DiskGoneError):
        await wrapped(inner, clock, on_failure=on_failure).handle(make_batch(b"a"))
    assert len(inner.calls) == 1


async def test_message_is_not_handled_if_its_dead_letter_cannot_be_written(make_batch: MakeBatch, clock: Any) -> None:
    class Full(Memory):
        async def write(self, letters: Sequence[Letter]) -> None:
            raise HandlerFailedError("no room for dead letters.")

    batch, counts = make_batch(b"a"), HandlerCounts()
    policy = RetryPolicy(max_attempts=1, on_failure="dead_letter")
    handler = retrying(
        Scripted(ValueError()), policy, clock=clock, rng=random.Random(1), dead_letters=Full(), counts=counts
    )
    with pytest.raises(HandlerFailedError, match="no room"):
        await handler.handle(batch)
    assert batch.handled == 0
    assert (counts.dead_lettered.total(), counts.skipped.total(), counts.failures.total()) == (0, 0, 1)


async def test_counts_dead_letters_when_they_are_written(make_batch: MakeBatch, clock: Any) -> None:
    counts, seen = HandlerCounts(), []

    class Counted(Memory):
        async def write(self, letters: Sequence[Letter]) -> None:
            seen.append(counts.dead_lettered.total())

    policy = RetryPolicy(max_attempts=1, on_failure="dead_letter")
    handler = retrying(
        Scripted(ValueError()), policy, clock=clock, rng=random.Random(1), dead_letters=Counted(), counts=counts
    )
    await handler.handle(make_batch(b"a", b"b"))
    assert (seen, counts.dead_lettered) == ([0], {"t": 2})


async def test_cancels_and_counts_an_attempt_that_times_out(make_batch: MakeBatch, clock: Any) -> None:
    ended: list[str] = []

    class Slow(Handler):
        async def handle(self, batch: Batch) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

    with pytest.raises(HandlerFailedError, match=r"failed 2 times.*timed out after 0\.01 s"):
        await wrapped(Slow(), clock, max_attempts=2, timeout=0.01).handle(make_batch(b"a"))
    assert ended == ["ended"] * 2


async def test_cancellation_is_neither_retried_nor_swallowed_and_keeps_the_progress(
    make_batch: MakeBatch, clock: Any
) -> None:
    at_second = asyncio.Event()

    @message_handler
    async def work(message: Message) -> None:
        if message.payload == b"b":
            at_second.set()
            await asyncio.Event().wait()

    batch = make_batch(b"a", b"b", b"c")
    task = asyncio.create_task(wrapped(work, clock, timeout=60.0).handle(batch))
    await at_second.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert batch.handled == 1
    assert clock.sleeps == []


async def test_a_plain_function_that_takes_long_times_out_between_two_messages(
    make_batch: MakeBatch, clock: Any
) -> None:
    called = 0

    @message_handler
    def work(message: Message) -> None:
        nonlocal called
        called += 1
        time.sleep(0.002)

    batch = make_batch(*[b"x"] * 1000)
    with pytest.raises(HandlerFailedError, match=r"failed once.*timed out after 0\.03 s"):
        await wrapped(work, clock, max_attempts=1, timeout=0.03).handle(batch)
    assert 0 < batch.handled == called < 1000


async def test_pause_can_be_cancelled(make_batch: MakeBatch) -> None:
    class Stuck:
        pausing = asyncio.Event()

        def monotonic(self) -> float:
            return 0.0

        def wall(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            self.pausing.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wrapped(Scripted(ValueError()), Stuck()).handle(make_batch(b"a")))
    await Stuck.pausing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_by_the_handler_itself_is_a_failure(make_batch: MakeBatch, clock: Any) -> None:
    with pytest.raises(HandlerFailedError, match="a task or future that the handler awaited was cancelled"):
        await wrapped(Scripted(*[asyncio.CancelledError()] * 2), clock, max_attempts=2).handle(make_batch(b"a"))


async def test_handles_an_empty_batch_which_can_fail(make_batch: MakeBatch, clock: Any) -> None:
    await wrapped(Scripted(), clock).handle(make_batch())
    await wrapped(Scripted(ValueError()), clock, max_attempts=1, on_failure="skip").handle(make_batch())
    with pytest.raises(HandlerFailedError, match="failed once at offset 5"):
        await wrapped(Scripted(ValueError()), clock, max_attempts=1).handle(make_batch(start=5))


async def test_retries_a_failed_position(clock: Any) -> None:
    class Sink(Scripted):
        async def position(self, partition: TopicPartition) -> int | None:
            if self.script and (error := self.script.pop(0)) is not None:
                raise error
            return 7

    here = TopicPartition("t", 0, 0)
    assert await wrapped(Sink(OSError("away"), OSError("away")), clock).position(here) == 7
    assert len(clock.sleeps) == 2
    with pytest.raises(
        HandlerFailedError, match=r"'mine' cannot tell the position of t/0-0: .* 5 times \(OSError: away\)"
    ):
        await wrapped(Sink(*[OSError("away")] * 9), clock).position(here)
    with pytest.raises(HandlerFailedError, match="final"):
        await wrapped(Sink(HandlerFailedError("final")), clock).position(here)


@pytest.mark.parametrize("answer", ["12", 1.5, True, -1, 1 << 63])
async def test_rejects_a_position_that_is_not_an_offset(clock: Any, answer: Any) -> None:
    class Sink(Scripted):
        async def position(self, partition: TopicPartition) -> Any:
            return answer

    handler = wrapped(make_handler(Sink()), clock)
    with pytest.raises(
        HandlerFailedError,
        match=r"handler 'mine' returned .* as the position of t/0-0; it must return an offset or None",
    ):
        await handler.position(TopicPartition("t", 0, 0))


class Lifelike(Scripted):
    """Its `start` and `stop` raise what their scripts say, one entry per call."""

    def __init__(self, start: Sequence[BaseException] = (), stop: Sequence[BaseException] = ()) -> None:
        super().__init__()
        self.life: list[Any] = []
        self._start, self._stop = list(start), list(stop)

    async def start(self, context: HandlerContext) -> None:
        self.life.append(context)
        if self._start:
            raise self._start.pop(0)

    async def stop(self) -> None:
        self.life.append("stop")
        if self._stop:
            raise self._stop.pop(0)

    async def position(self, partition: TopicPartition) -> int | None:
        return 7


async def test_passes_the_rest_of_the_life_cycle_through(clock: Any) -> None:
    memory = Memory()
    inner = Lifelike()
    handler = wrapped(inner, clock, on_failure="dead_letter", dead_letters=memory)
    context = HandlerContext("g", "c", clock)
    await handler.start(context)
    assert await handler.position(TopicPartition("t", 0, 0)) == 7
    await handler.stop()
    assert inner.life == [context, "stop"]
    assert memory.calls == ["start", "stop"]


async def test_retries_starts_and_stops_like_batches(clock: Any) -> None:
    away = [OSError("no route to host")] * 4
    inner = Lifelike(away, away)
    handler = wrapped(inner, clock)
    await handler.start(HandlerContext("g", "c", clock))
    await handler.stop()
    assert len(inner.life) == 10
    assert len(clock.sleeps) == 8


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
async def test_reports_a_start_that_keeps_failing_under_any_policy(clock: Any, on_failure: str) -> None:
    inner = Lifelike([OSError("no route to host")] * 9, [OSError("no route to host")] * 9)
    handler = wrapped(inner, clock, max_attempts=3, on_failure=on_failure)
    with pytest.raises(HandlerFailedError) as caught:
        await handler.start(HandlerContext("g", "c", clock))
    assert str(caught.value) == (
        "handler 'mine' cannot be started: start() failed 3 times (OSError: no route to host)."
    )
    assert isinstance(caught.value.__cause__, OSError)
    await handler.stop()  # cleans up once, and its error is not logged
    assert [call for call in inner.life if call == "stop"] == ["stop"]


async def test_reports_a_stop_that_keeps_failing_and_closes_dead_letters(clock: Any) -> None:
    memory = Memory()
    inner = Lifelike(stop=[ValueError("not\nnow")] * 9)
    handler = wrapped(inner, clock, on_failure="dead_letter", dead_letters=memory)
    await handler.start(HandlerContext("g", "c", clock))
    with pytest.raises(HandlerFailedError, match=r"cannot be stopped: stop\(\) failed 5 times \(ValueError: not now\)"):
        await handler.stop()
    assert memory.calls == ["start", "stop"]


async def test_treats_sys_exit_as_a_failure(make_batch: MakeBatch, clock: Any) -> None:
    inner = Scripted(SystemExit(0), SystemExit("went away"), None)
    await wrapped(inner, clock).handle(make_batch(b"a"))
    assert len(inner.calls) == 3
    with pytest.raises(
        HandlerFailedError, match=r"failed 2 times at offset 0 .* \(RuntimeError: it called sys\.exit\(0\)\)"
    ):
        await wrapped(Scripted(*[SystemExit(0)] * 9), clock, max_attempts=2).handle(make_batch(b"a"))
    with pytest.raises(HandlerFailedError, match=r"cannot be started: .*sys\.exit\(\)"):
        await wrapped(Lifelike([SystemExit()] * 9), clock).start(HandlerContext("g", "c", clock))
    handler = wrapped(Lifelike(stop=[SystemExit(3)] * 9), clock)
    await handler.start(HandlerContext("g", "c", clock))
    with pytest.raises(HandlerFailedError, match=r"cannot be stopped: .*sys\.exit\(3\)"):
        await handler.stop()


class PanicError(BaseException):
    """As a library written in Rust raises one."""


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("panic", [PanicError("broken"), BaseExceptionGroup("several", [PanicError()])])
async def test_treats_what_is_not_an_exception_as_a_failure(
    make_batch: MakeBatch, clock: Any, panic: BaseException, timeout: float | None
) -> None:
    inner, kept = Scripted(panic, panic, None), Memory()
    handler = wrapped(inner, clock, max_attempts=2, on_failure="dead_letter", dead_letters=kept, timeout=timeout)
    with capture_logs():
        for number in range(2):
            await handler.handle(make_batch(b"%d" % number))
    assert [letter.message.payload for letter in kept.letters] == [b"0"]
    assert str(kept.letters[0].error).startswith(f"it raised {type(panic).__name__}")
    assert kept.letters[0].error.__cause__ is panic
    with pytest.raises(HandlerFailedError, match=r"cannot be started: .*it raised PanicError: no"), capture_logs():
        await wrapped(Lifelike([PanicError("no")] * 9), clock).start(HandlerContext("g", "c", clock))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()])
async def test_passes_on_what_ends_the_process_or_the_coroutine(
    make_batch: MakeBatch, clock: Any, error: BaseException
) -> None:
    handling = wrapped(Scripted(error), clock).handle(make_batch(b"a"))
    with pytest.raises(type(error)):
        handling.send(None)  # not in a task, which would end the loop


def test_dead_letters_require_their_policy(clock: Any) -> None:
    for arguments in ({"on_failure": "dead_letter"}, {"dead_letters": Memory()}):
        with pytest.raises(ValueError, match="go together"):
            wrapped(Scripted(), clock, **arguments)


async def test_writes_many_dead_letters_in_pieces(make_batch: MakeBatch, clock: Any) -> None:
    sizes: list[int] = []

    class Writes(Memory):
        async def write(self, letters: Sequence[Letter]) -> None:
            sizes.append(len(letters))
            await super().write(letters)

    kept = Writes()
    batch = make_batch([b""] * 25_000, b"x" * (3 << 19), b"y" * (3 << 19))
    handler = wrapped(Scripted(OSError()), clock, dead_letters=kept, max_attempts=1, on_failure="dead_letter")
    await handler.handle(batch)
    assert sizes == [10_000, 10_000, 5_000, 1, 1]
    assert [letter.message for letter in kept.letters] == list(batch.messages())


async def test_returning_after_a_timeout_is_a_failure(make_batch: MakeBatch, clock: Any) -> None:
    class Swallows(Scripted):
        async def handle(self, batch: Batch) -> None:
            await super().handle(batch)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    inner, memory = Swallows(), Memory()
    handler = wrapped(inner, clock, max_attempts=2, timeout=0.01, on_failure="dead_letter", dead_letters=memory)
    await handler.handle(make_batch(b"a"))
    assert inner.calls == [[b"a"]] * 2
    assert [str(letter.error) for letter in memory.letters] == [
        "timed out after 0.01 s, and returned in spite of its cancellation"
    ]


async def test_a_batch_that_is_marked_as_handled_after_its_timeout_is_not_repeated(
    make_batch: MakeBatch, clock: Any
) -> None:
    class Finishes(Scripted):
        async def handle(self, batch: Batch) -> None:
            await super().handle(batch)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            batch.mark(len(batch))

    inner = Finishes()
    await wrapped(inner, clock, timeout=0.01).handle(make_batch(b"a"))
    assert inner.calls == [[b"a"]]


async def test_a_call_that_ignores_its_cancellation_is_reported_and_never_joined_by_another(
    make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.handlers.retry.OBEY_SECONDS", 0.01)
    running, most = 0, 0
    reported, over = asyncio.Event(), asyncio.Event()

    class Stubborn(Handler):
        async def handle(self, batch: Batch) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()
            running -= 1

    def note(_: Any, method: str, event: MutableMapping[str, Any]) -> str:
        events.append((method, event))
        if event["event"] == "handler_cancellation_ignored":
            reported.set()
        raise structlog.DropEvent

    events: list[tuple[str, MutableMapping[str, Any]]] = []
    structlog.configure(processors=[note])
    task = asyncio.create_task(
        wrapped(Stubborn(), clock, max_attempts=2, timeout=0.01, on_failure="skip").handle(make_batch(b"a", start=7))
    )
    await reported.wait()
    assert not task.done()
    assert running == 1
    over.set()
    await task
    assert most == 1
    logged = {event["event"]: event for _, event in events}
    assert logged["handler_cancellation_ignored"]["partition"] == "t/0-0"
    assert logged["handler_cancellation_ignored"]["offset"] == 7
    assert logged["handler_ended_late"]["seconds"] > 0.01
    assert logged["handler_failed"]["attempt"] == 1


@pytest.mark.parametrize("failures", [0, 1, 3])
async def test_a_handled_batch_does_not_wait_for_the_garbage_collector(
    make_batch: MakeBatch, clock: Any, failures: int
) -> None:
    sizes: list[int] = []

    async def handle(batch: Batch) -> None:
        sizes.append(len(batch))
        if len(sizes) <= failures:
            raise ValueError("no")

    handler = wrapped(make_handler(handle), clock, max_attempts=3, on_failure="skip")
    gc.collect()
    gc.disable()
    try:
        await handler.handle(make_batch(b"a", b"b", topic="freed"))
        assert [each for each in gc.get_objects() if isinstance(each, Batch) and each.topic == "freed"] == []
    finally:
        gc.enable()
    assert sizes == [2] * min(failures + 1, 3)
