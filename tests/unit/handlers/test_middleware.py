"""Hooks around the calls of a handler: their order, their failures, and how they are configured."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.handlers import Batch, Handler, HandlerContext, Letter, Message, RetryPolicy, message_handler
from consumerd.handlers.handler_stages import Stages
from consumerd.handlers.middleware import HandlerCall, load_middleware, make_middleware
from consumerd.handlers.slow_calls import SlowCalls
from consumerd.testing import FakeClock
from consumerd.testing.records import MemoryDeadLetters

MakeBatch = Callable[..., Batch]


class Hooks:
    """Notes its hooks, and raises in those that are named, as often as they are."""

    def __init__(self, name: str, journal: list[str], failures: list[str] | None = None) -> None:
        self.name = name
        self.journal = journal
        self.failures = failures if failures is not None else []

    def note(self, hook: str, what: str = "") -> None:
        self.journal.append(f"{hook} {self.name}{what}")
        if hook in self.failures:
            self.failures.remove(hook)
            raise OSError(f"{hook} of {self.name}")

    async def start(self, context: HandlerContext) -> None:
        self.note("start")

    async def before(self, call: HandlerCall) -> None:
        self.note("before")

    async def after(self, call: HandlerCall) -> None:
        self.note("after")

    async def error(self, call: HandlerCall, error: BaseException) -> None:
        self.note("error", f": {error!r}")

    async def stop(self) -> None:
        self.note("stop")


class Inner(Handler):
    def __init__(self, journal: list[str], *script: BaseException) -> None:
        self.journal = journal
        self.script = list(script)

    async def start(self, context: HandlerContext) -> None:
        self.journal.append("start handler")

    async def handle(self, batch: Batch) -> None:
        self.journal.append(f"handle {len(batch)}")
        if self.script:
            raise self.script.pop(0)

    async def stop(self) -> None:
        self.journal.append("stop handler")


def around(
    inner: Handler, *hooks: object, clock: Any = None, letters: list[Letter] | None = None, **policy: Any
) -> Any:
    policy.setdefault("on_failure", "stop" if letters is None else "dead_letter")
    return Stages("mine", middleware=[make_middleware(each, name=f"m{n}") for n, each in enumerate(hooks, 1)]).around(
        inner, RetryPolicy(**policy), clock=clock or FakeClock(auto=True), rng=random.Random(1),
        dead_letters=None if letters is None else MemoryDeadLetters(letters),
    )  # fmt: skip


def context(clock: Any = None) -> HandlerContext:
    return HandlerContext("g", "g_1", clock or FakeClock(auto=True))


async def test_hooks_nest_in_the_order_of_the_configuration(make_batch: MakeBatch) -> None:
    journal: list[str] = []
    handler = around(Inner(journal), Hooks("a", journal), Hooks("b", journal))
    await handler.start(context())
    await handler.handle(make_batch(b"1", b"2"))
    await handler.stop()
    assert journal == [
        "start a", "start b", "start handler",
        "before a", "before b", "handle 2", "after b", "after a",
        "stop handler", "stop b", "stop a",
    ]  # fmt: skip


async def test_each_attempt_is_a_call(make_batch: MakeBatch) -> None:
    journal: list[str] = []
    handler = around(Inner(journal, ValueError("x")), Hooks("a", journal), Hooks("b", journal))
    await handler.start(context())
    await handler.handle(make_batch(b"1"))
    assert journal[3:] == [
        "before a", "before b", "handle 1", "error b: ValueError('x')", "error a: ValueError('x')",
        "before a", "before b", "handle 1", "after b", "after a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ("before", ["before a", "before b", "error a: OSError('before of b')"]),
        ("after", ["before a", "before b", "handle 1", "after b", "error b: OSError('after of b')",
                   "error a: OSError('after of b')"]),
    ],
)  # fmt: skip
async def test_failing_hooks_are_failures_of_the_call(make_batch: MakeBatch, hook: str, expected: list[str]) -> None:
    journal: list[str] = []
    letters: list[Letter] = []
    hooks = Hooks("a", journal), Hooks("b", journal, [hook] * 2)
    handler = around(Inner(journal), *hooks, letters=letters, max_attempts=2)
    await handler.start(context())
    await handler.handle(make_batch(b"1"))
    assert journal[3:] == expected * 2
    assert [(letter.attempts, str(letter.error)) for letter in letters] == [(2, f"{hook} of b")]
    journal.clear()
    await handler.handle(make_batch(b"2"))
    assert journal == ["before a", "before b", "handle 1", "after b", "after a"]


async def test_failing_error_hook_does_not_hide_the_failure(make_batch: MakeBatch) -> None:
    journal: list[str] = []
    handler = around(Inner(journal, ValueError("why")), Hooks("a", journal, ["error"]), max_attempts=1)
    await handler.start(context())
    with capture_logs() as logs, pytest.raises(HandlerFailedError, match="why"):
        await handler.handle(make_batch(b"1"))
    assert [(each["middleware"], each["reason"]) for each in logs if each["event"] == "middleware_failed"] == [
        ("m1", "OSError: error of a")
    ]


async def test_hook_that_fails_after_every_message_was_marked_repeats_nothing(make_batch: MakeBatch) -> None:
    seen: list[bytes] = []
    letters: list[Letter] = []

    @message_handler
    async def each(message: Message) -> None:
        seen.append(message.payload)

    handler = around(each, Hooks("a", [], ["after"]), letters=letters)
    await handler.start(context())
    batch = make_batch(b"1", b"2")
    with capture_logs() as logs:
        await handler.handle(batch)
    assert (seen, letters, batch.handled) == ([b"1", b"2"], [], 2)
    assert [event["reason"] for event in logs if event["event"] == "handler_failed"] == [
        "OSError: after of a (after the last message of the batch was handled)"
    ]


async def test_cancelled_call_ends_its_hooks(make_batch: MakeBatch) -> None:
    journal: list[str] = []
    entered = asyncio.Event()

    class Waiting(Handler):
        async def handle(self, batch: Batch) -> None:
            entered.set()
            await asyncio.Event().wait()

    handler = around(Waiting(), Hooks("a", journal, ["error"]), Hooks("b", journal))
    await handler.start(context())
    task = asyncio.create_task(handler.handle(make_batch(b"1")))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert journal[-2:] == ["error b: CancelledError()", "error a: CancelledError()"]


async def test_start_of_middleware_is_retried_and_all_is_stopped() -> None:
    journal: list[str] = []
    handler = around(Inner(journal), Hooks("a", journal), Hooks("b", journal, ["start", "stop"]), max_attempts=2)
    await handler.start(context())
    assert journal == ["start a", "start b", "start a", "start b", "start handler"]
    journal.clear()
    await handler.stop()
    assert journal == ["stop handler", "stop b", "stop a"] * 2


async def test_slow_calls_are_logged_and_counted(make_batch: MakeBatch) -> None:
    clock = FakeClock(auto=True)

    class Slow(Handler):
        async def handle(self, batch: Batch) -> None:
            await clock.sleep(len(batch))
            if batch[0] == b"bad":
                raise ValueError

    slow = SlowCalls(threshold=2.0)
    handler = around(Slow(), slow, clock=clock, max_attempts=1, on_failure="skip")
    metrics: list[Any] = []

    class Peek:
        async def start(self, context: HandlerContext) -> None:
            metrics.append(context.metrics)

        async def before(self, call: HandlerCall) -> None:
            return

    handler = around(Slow(), slow, Peek(), clock=clock, max_attempts=1, on_failure="skip")
    await handler.start(context(clock))
    with capture_logs() as logs:
        await handler.handle(make_batch(b"a", start=40))
        await handler.handle(make_batch(b"a", b"b", start=60))
        await handler.handle(make_batch(b"bad", b"b", b"c", start=90))
    slow_ones = [event for event in logs if event["event"] == "handler_call_slow"]
    assert [(e["offset"], e["messages"], e["seconds"], e["outcome"]) for e in slow_ones] == [
        (60, 2, 2.0, "handled"),
        (90, 3, 3.0, "ValueError"),
    ]
    assert {(e["handler"], e["partition"]) for e in slow_ones} == {("mine", "t/0-0")}
    (reading,) = metrics[0].readings("g")
    assert (reading.metric.name, reading.value) == ("consumerd_handler_mine_slow_calls_total", 2)


class Sync:
    def before(self, call: HandlerCall) -> None:
        return


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("slow", {}, "unknown middleware 'slow'.* There is slow_calls.$"),
        ("slow_calls", {"threshold": 0}, "refused its options: threshold must be a positive number"),
        ("slow_calls", {"treshold": 1}, "has no option 'treshold', did you mean 'threshold'"),
        (f"{__name__}:Sync", {}, "its method `before` must be an `async def`"),
        (f"{__name__}:Inner", {"journal": []}, "it should have a method before, after or error"),
        (f"{__name__}:INSTANCE", {"a": 1}, "takes no options"),
    ],
)
def test_rejects_wrong_configuration_in_one_sentence(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words) as caught:
        load_middleware(name, options)
    assert "\n" not in str(caught.value)


INSTANCE = Hooks("i", [])
