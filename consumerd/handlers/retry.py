"""The failure policy of a handler: retries with backoff, then stop, skip or dead letter.

Strategy: one wrapper around the handler. The unit of a retry is the rest of the batch: a handler that counts
(per-message ones do, see `Batch.mark`) continues from the message that failed, and its attempts are counted per
message; one that does not count gets the whole batch again. The unit of giving up follows: one message, or the batch.

    raise ──► attempts left? ──yes──► pause (exponential, full jitter) ──► the rest again
                   │no
                   ▼
      on_failure: stop         raise HandlerFailedError: nothing of it is committed
                  skip         log it, continue after it
                  dead_letter  write it down, confirmed on disk, then continue after it

An attempt that exceeds `timeout` is cancelled and has failed, also where it returns after its cancellation. One that
swallows the cancellation is reported, and its partition stands still until it ends: no message is ever with two calls.

A handler may know more: `RejectedError` leaves no attempts for its unit, `RetryLaterError` makes a pause longer. A
`HandlerFailedError` out of the handler is its own last word: it passes at once, and no policy skips over it.
A full disk is none of these: see `consumerd.handlers.disk_full`. `start`, `stop` and `position` are tried as often and
with the same pauses; there nothing can be skipped. A call of `sys.exit` is a failure like any other: it must not end
the process without drain and commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import RetryPolicy
from consumerd.handlers.api import Handler, RejectedError, RetryLaterError
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.dead_letters import DeadLetters
from consumerd.handlers.disk_full import DiskSpace, is_disk_full
from consumerd.handlers.giving_up import GivingUp
from consumerd.handlers.messages import Batch
from consumerd.handlers.retry_order import RetryOrder
from consumerd.handlers.tracebacks import brief, short_traceback

log = structlog.get_logger(__name__)

#: Offsets are signed numbers of 64 bits.
MAX_OFFSET: Final = (1 << 63) - 1
#: Seconds that a handler has to obey its cancellation before the log says that it does not.
OBEY_SECONDS: Final = 5.0

_T = TypeVar("_T")


def retrying(
    handler: Handler,
    policy: RetryPolicy,
    *,
    clock: Clock,
    rng: random.Random,
    name: str = "handler",
    dead_letters: DeadLetters | None = None,
    counts: HandlerCounts | None = None,
    order: RetryOrder | None = None,
) -> Handler:
    """Wrap `handler` so that its failures are met with `policy`; `name` is what errors and logs call it.

    The wrapper starts and stops `dead_letters`, which `on_failure="dead_letter"` needs. Its `handle` raises
    HandlerFailedError when the policy, or the handler itself, says to stop.
    The results of failures are added to `counts`. `order`, which goes with `on_failure="retry_topic"`, is started and
    stopped, too: what follows a message that waits in a retry topic goes there without an attempt.
    """
    counts = counts or HandlerCounts()
    space = DiskSpace(policy.on_disk_full, policy.max_backoff, clock=clock, rng=rng, name=name, counts=counts)
    giving_up = GivingUp(name, policy.on_failure, dead_letters, counts, space, order)
    return _Retrying(handler, policy, clock, rng, name, dead_letters, giving_up, counts, space, order)


class _Failures:
    """The failures in a row of one unit. Made for each batch, so without a call of Python code."""

    count = 0
    last: BaseException = Exception()


class _Retrying(Handler):
    def __init__(
        self,
        inner: Handler,
        policy: RetryPolicy,
        clock: Clock,
        rng: random.Random,
        name: str,
        dead_letters: DeadLetters | None,
        giving_up: GivingUp,
        counts: HandlerCounts,
        space: DiskSpace,
        order: RetryOrder | None,
    ) -> None:
        self._inner = inner
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._name = name
        self._dead_letters = dead_letters
        self._giving_up = giving_up
        self._counts = counts
        self._started = False
        self._space = space
        self._order = order

    async def start(self, context: HandlerContext) -> None:
        if self._dead_letters is not None:
            await self._space.needed_by(self._dead_letters.start)
        if self._order is not None:
            await self._order.start()
        await self._patiently("start", "cannot be started", lambda: self._inner.start(context))
        self._started = True

    async def stop(self) -> None:
        try:
            if self._started:
                await self._patiently("stop", "cannot be stopped", self._inner.stop)
            else:
                await self._clean_up()
        finally:
            if self._order is not None:
                await self._order.stop()
            if self._dead_letters is not None:
                await self._dead_letters.stop()

    async def _clean_up(self) -> None:
        """Stop a handler that did not start. Its error is reported already, and this may fail for the same reason."""
        try:
            await _answer(self._inner.stop())
        except Exception as error:
            log.warning("handler_failed", handler=self._name, method="stop", **_log_fields(error))

    async def position(self, partition: TopicPartition) -> int | None:
        """Return the handler's answer; a sink that cannot be reached is retried as often as one that cannot store."""
        if self._order is not None:
            await self._order.begin()  # a former owner may have written to the retry topics
        where = str(partition)
        failed = f"cannot tell the position of {where}"
        answer: object = await self._patiently(
            "position", failed, lambda: self._inner.position(partition), partition=where
        )
        if answer is None or (isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer <= MAX_OFFSET):
            return answer
        raise HandlerFailedError(
            f"handler {self._name!r} returned {answer!r} as the position of {where}; it must return an offset or None."
        )

    async def _patiently(self, method: str, failed: str, call: Callable[[], Awaitable[_T]], **fields: str) -> _T:
        """The answer of a method that takes no batch. Raises HandlerFailedError with the words `failed`."""
        failures = _Failures()

        async def attempt() -> _T:
            try:
                return await self._space.needed_by(lambda: _answer(call()))
            except Exception as error:
                failures.count, failures.last = failures.count + 1, error
                raise

        try:
            return await self._attempts(
                attempt,
                failures,
                lambda pause: self._log(failures, pause, method=method, **fields),
                self._policy.max_attempts,
            )
        except HandlerFailedError:
            raise
        except Exception as error:
            raise HandlerFailedError(
                f"handler {self._name!r} {failed}: {method}() failed {_times(failures)} ({brief(error)})."
            ) from error

    async def handle(self, batch: Batch) -> None:
        if self._order is not None:
            await self._handle_in_order(batch, self._order)
            return
        exhausted: _Failures | None = None
        failures = _Failures()
        # As `_exhausted`, with two calls less for nearly each batch.
        whole = not batch.counted and self._policy.timeout is None
        try:
            try:
                await (self._inner.handle(batch) if whole else self._try_rest(batch, failures))
            except BaseException as error:
                _require_own(error)
                raise
        except Exception as error:
            if not whole or self._failed(error, batch, batch, failures):
                exhausted = await self._exhausted_after(error, batch, failures, self._policy.max_attempts)
        if exhausted is not None:
            await self._give_up_each(batch, exhausted)
        batch.mark_all()

    async def _give_up_each(self, batch: Batch, exhausted: _Failures) -> None:
        """Apply the policy to each unit of `batch` that fails, the first one at its front, and handle the others."""
        failures: _Failures | None = exhausted
        while failures is not None:
            if self._policy.bisect and not batch.counted and len(batch) > 1:
                await self._divide(batch, failures)
                break
            end = batch.handled + 1 if batch.counted else len(batch)
            await self._give_up(batch, end, failures)
            failures.last = Exception()  # its traceback has the batch, and the failures themselves
            if end >= len(batch):
                break
            batch.mark(end)
            failures = await self._exhausted(batch, self._policy.max_attempts)

    async def _handle_in_order(self, batch: Batch, order: RetryOrder) -> None:
        """Handle `batch` but for messages whose keys wait, which go to the retry topic behind their earlier ones."""
        while (done := batch.handled) < len(batch):
            rest = batch.rest(done)
            free = await order.free(rest)
            if not free:
                count = order.waiting(rest)
                await self._giving_up.follow(rest.part(0, count), order)
                batch.mark(done + count)
                continue
            part = rest if free == len(rest) else rest.part(0, free)
            try:
                end = free
                if failures := await self._exhausted(part, self._policy.max_attempts):
                    end = part.handled + 1 if part.counted else free
                    await self._give_up(part, end, failures)
                    failures.last = Exception()  # as in `handle`
            except BaseException:
                if part is not batch and part.counted:
                    batch.mark(done + part.handled)
                raise
            batch.mark(done + end)

    async def _divide(self, batch: Batch, failures: _Failures) -> None:
        """Handle `batch`, which failed as a whole, in halves. What is handled is marked, so that it is not repeated."""
        self._log(failures, 0.0, partition=str(batch.partition), offset=batch.start_offset, divided=len(batch))
        failures.last = Exception()  # as in `handle`
        waiting = _halves(0, len(batch))
        while waiting:
            first, length = waiting.pop()
            part = batch.part(first, length)
            if length == 1 or await self._exhausted(part, 1):
                if length > 1 and not part.counted:
                    waiting += _halves(first, length)
                    continue
                await self.handle(part)
            batch.mark(first + length)

    async def _exhausted(self, batch: Batch, attempts: int) -> _Failures | None:
        """Try the rest of `batch`; None once all is handled, else the failures of the unit at its front."""
        failures = _Failures()
        try:
            await self._try_rest(batch, failures)
        except Exception as error:
            return await self._exhausted_after(error, batch, failures, attempts)
        return None

    async def _exhausted_after(
        self, first: Exception | None, batch: Batch, failures: _Failures, attempts: int
    ) -> _Failures | None:
        """As `_exhausted`, after a first attempt that raised `first`: all else is made for a failure only."""

        async def try_rest() -> None:
            nonlocal first
            if first is not None:
                error, first = first, None
                try:
                    raise error
                finally:
                    del error
            await self._try_rest(batch, failures)

        async def attempt() -> None:
            await self._space.needed_by(try_rest)

        def note(pause: float) -> None:
            self._counts.retries[batch.partition.topic] += 1
            self._log(failures, pause, partition=str(batch.partition), offset=batch.prefix(batch.handled))

        try:
            await self._attempts(attempt, failures, note, attempts)
        except HandlerFailedError:
            raise
        except Exception:
            return failures
        failures.last = Exception()  # its traceback has the batch, whose memory must be free once it is handled
        return None

    async def _attempts(
        self, attempt: Callable[[], Awaitable[_T]], failures: _Failures, note: Callable[[float], None], attempts: int
    ) -> _T:
        """Return what `attempt()` does, or raise its last error of `attempts`; `note` is called with each pause."""
        while True:
            try:
                return await attempt()
            except HandlerFailedError:
                raise
            except Exception:
                if failures.count >= attempts or isinstance(failures.last, RejectedError):
                    raise
            pause = self._pause(failures)
            note(pause)
            await self._clock.sleep(pause)

    async def _try_rest(self, batch: Batch, failures: _Failures) -> None:
        """One attempt at the rest of `batch`. Progress makes the failure that of another message: the first one."""
        done = batch.handled if batch.counted else 0
        rest = batch.rest(done) if done else batch
        try:
            if self._policy.timeout is None:
                try:
                    await self._inner.handle(rest)  # as `_answer`, with a call less for each batch
                except BaseException as error:
                    _require_own(error)
                    raise
            else:
                await self._in_time(rest, self._policy.timeout)
        except Exception as error:
            if self._failed(error, batch, rest, failures):
                raise
        finally:
            if rest is not batch and rest.counted:
                batch.mark(done + rest.handled)

    def _failed(self, error: Exception, batch: Batch, rest: Batch, failures: _Failures) -> bool:
        """Count a failed attempt at `rest`, the rest of `batch`. False: all of that was handled before the failure."""
        if is_disk_full(error):
            return True
        self._counts.failures[batch.partition.topic] += 1
        if rest.counted and rest.handled == len(rest) and not isinstance(error, HandlerFailedError):
            self._log_late(batch, error)
            return False
        failures.count = 1 if rest.handled else failures.count + 1
        failures.last = error
        return True

    async def _in_time(self, batch: Batch, seconds: float) -> None:
        """Call the handler once. Raises what it raises, and TimeoutError once it has ended after its time (`seconds`).

        The outcome of a handler after its cancellation does not count, unless it marked all of the batch as handled.
        """
        timeout = asyncio.timeout(seconds)
        overdue = _Overdue(self._name, batch, seconds)
        try:
            with overdue:
                async with timeout:
                    await _answer(self._inner.handle(batch))
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise TimeoutError(f"timed out after {seconds:g} s") from error
        if timeout.expired() and not (batch.counted and batch.handled == len(batch)):
            raise TimeoutError(f"timed out after {seconds:g} s, and returned in spite of its cancellation")

    def _pause(self, failures: _Failures) -> float:
        bound = self._policy.initial_backoff * 2.0 ** min(failures.count - 1, 64)
        pause = self._rng.uniform(0.0, min(bound, self._policy.max_backoff))
        return max(pause, failures.last.seconds) if isinstance(failures.last, RetryLaterError) else pause

    def _log(self, failures: _Failures, pause: float, **fields: object) -> None:
        log.warning(
            "handler_failed",
            handler=self._name,
            attempt=failures.count,
            of=self._policy.max_attempts,
            pause=round(pause, 3),
            **_log_fields(failures.last),
            **fields,
        )

    def _log_late(self, batch: Batch, error: Exception) -> None:
        """Log a failure after the last message was marked: there is nothing to repeat or to skip."""
        log.warning(
            "handler_failed",
            handler=self._name,
            partition=str(batch.partition),
            offset=batch.next_offset,
            reason=f"{brief(error)} (after the last message of the batch was handled)",
            traceback=short_traceback(error),
        )

    async def _give_up(self, batch: Batch, end: int, failures: _Failures) -> None:
        """Apply the policy to the rest of the first `end` messages, which failed for the last time."""
        await self._giving_up.give_up(
            batch.part(batch.handled, end - batch.handled),
            failures.last,
            failures.count,
            what=f"handler {self._name!r} failed {_times(failures)}",
        )


class _Overdue:
    """Reports a call that continues after it was cancelled for its timeout, and its end."""

    def __init__(self, name: str, batch: Batch, seconds: float) -> None:
        self._fields = {"handler": name, "partition": str(batch.partition), "offset": batch.start_offset}
        self._seconds = seconds
        self._reported = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._begun = loop.time()
        self._timer = loop.call_later(self._seconds + OBEY_SECONDS, self._report)

    def _report(self) -> None:
        self._reported = True
        log.error(
            "handler_cancellation_ignored",
            **self._fields,
            timeout=self._seconds,
            reason="the call was cancelled and goes on; its partition stands still until it ends",
        )

    def __exit__(self, *outcome: object) -> None:
        self._timer.cancel()
        if self._reported:
            seconds = round(asyncio.get_running_loop().time() - self._begun, 3)
            log.warning("handler_ended_late", **self._fields, seconds=seconds)


def _halves(first: int, length: int) -> list[tuple[int, int]]:
    """The two halves of a part of a batch, each with its first message and length; the earlier one is the last."""
    middle = length // 2
    return [(first + middle, length - middle), (first, middle)]


async def _answer(call: Awaitable[_T]) -> _T:
    """Await a call of a handler. An exception that would end more than this call becomes a RuntimeError."""
    try:
        return await call
    except BaseException as error:
        _require_own(error)
        raise


def _require_own(error: BaseException) -> None:
    """Raise RuntimeError for an exception of the handler that would end more than its call.

    Errors pass, and so does what our own code or Python raise here: a cancellation of our task, Ctrl-C,
    the end of a coroutine that is not continued.
    """
    if isinstance(error, Exception | KeyboardInterrupt | GeneratorExit):
        return
    if isinstance(error, SystemExit):
        raise RuntimeError(f"it called sys.exit({'' if error.code is None else repr(error.code)})") from error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            # Not we were cancelled, but a task of the handler: that would end our lane silently.
            raise RuntimeError("a task or future that the handler awaited was cancelled") from error
        return
    # A library written in Rust that panics raises one, and frameworks have such errors, too.
    raise RuntimeError(f"it raised {brief(error)}") from error


def _log_fields(error: BaseException) -> dict[str, str]:
    """The fields of a log event that tell an error."""
    return {"reason": brief(error), "traceback": short_traceback(error)}


def _times(failures: _Failures) -> str:
    return "once" if failures.count == 1 else f"{failures.count} times"
