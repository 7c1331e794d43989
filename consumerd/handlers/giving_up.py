"""The policy `on_failure`, for messages that failed for the last time.

Strategy: one object for all that may fail, the handler and the decoder. It writes dead letters and returns only when
they are confirmed; the caller marks the messages as handled afterwards, so nothing is committed before.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from consumerd.base.errors import HandlerFailedError, reason_of
from consumerd.base.settings.processing import OnFailure
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.dead_letters import DeadLetters, Letter
from consumerd.handlers.disk_full import DiskSpace
from consumerd.handlers.messages import Batch, payload_size
from consumerd.handlers.retry_order import FollowsError, RetryOrder
from consumerd.handlers.tracebacks import brief, short_traceback

log = structlog.get_logger(__name__)

#: The policies that write messages to a place, which is a retry topic for the last one.
KEEPING: Final = frozenset({"dead_letter", "retry_topic"})

#: Messages, and bytes of their payloads, that are written as dead letters at once.
_LETTERS: Final = 10_000
_LETTER_BYTES: Final = 1 << 20


class GivingUp:
    """Stops, skips or writes dead letters. `name` is the handler's; `dead_letters` go with `dead_letter` alone.

    `space` says what happens when the disk of the dead letters is full; without it, that is a failure to store them.
    `order` learns the keys of messages that are written to a retry topic.
    """

    def __init__(
        self,
        name: str,
        on_failure: OnFailure,
        dead_letters: DeadLetters | None,
        counts: HandlerCounts,
        space: DiskSpace | None = None,
        order: RetryOrder | None = None,
    ) -> None:
        if (on_failure in KEEPING) != (dead_letters is not None):
            raise ValueError('on_failure="dead_letter" or "retry_topic" and a place for the messages go together')
        self._name = name
        self._on_failure = on_failure
        self._dead_letters = dead_letters
        self._counts = counts
        self._space = space
        self._order = order

    async def give_up(self, failed: Batch, error: BaseException, attempts: int, *, what: str) -> None:
        """Return when the messages of `failed` need not be handled any more.

        `what` is the beginning of the sentence: what failed. Raises HandlerFailedError where the policy says to stop,
        or where dead letters cannot be stored.
        """
        # A handler that fails for each message may never suspend: heartbeats and commits have their turn. Between the
        # letter and the caller's mark nothing may be cancelled.
        await asyncio.sleep(0)
        first = next(failed.messages(), None)
        offset = failed.start_offset if first is None else first.offset
        fields = {
            "handler": self._name,
            "partition": str(failed.partition),
            "offset": offset,
            "index": None if first is None else first.index,
            "messages": len(failed),
            "attempts": attempts,
            "reason": brief(error),
            "traceback": (traceback := short_traceback(error)),
        }
        if self._on_failure == "stop":
            log.error("handler_failed", **fields)
            raise HandlerFailedError(
                f"{what} at offset {offset} of {failed.partition} ({brief(error)}); fix it, or set on_failure to skip "
                "or dead_letter."
            ) from error
        if self._dead_letters is not None:
            for piece in in_chunks(failed.messages(), _LETTERS, _LETTER_BYTES, payload_size):
                letters = [Letter(message, error, attempts, log=failed.log, traceback=traceback) for message in piece]
                await self._write(self._dead_letters, letters)
        if self._on_failure == "retry_topic":
            self._counts.deferred[failed.topic] += len(failed)
            if self._order is not None:
                self._order.add(failed.keys or ())
            log.warning("messages_deferred", **fields)
            return
        given_up_as = self._counts.skipped if self._dead_letters is None else self._counts.dead_lettered
        given_up_as[failed.topic] += len(failed)
        log.error("messages_dead_lettered" if self._dead_letters is not None else "messages_skipped", **fields)

    async def follow(self, batch: Batch, order: RetryOrder) -> None:
        """Return when the messages of `batch` are in the retry topic, behind those that they follow.

        Each is due when the one before it is. Raises as `give_up`.
        """
        assert self._dead_letters is not None  # `order` goes with a retry topic
        await asyncio.sleep(0)  # as in `give_up`
        error = FollowsError("an earlier message with the same key waits in a retry topic")
        for piece in in_chunks(batch.messages(), _LETTERS, _LETTER_BYTES, payload_size):
            letters = [
                Letter(message, error, 0, log=batch.log, failed_at=order.failed_at(message.key)) for message in piece
            ]
            await self._write(self._dead_letters, letters)
            for letter in letters:
                order.add([letter.message.key], letter.failed_at)
        self._counts.deferred[batch.topic] += len(batch)
        log.info(
            "messages_deferred",
            handler=self._name,
            partition=str(batch.partition),
            offset=batch.start_offset,
            messages=len(batch),
            reason=reason_of(error),
        )

    async def _write(self, place: DeadLetters, letters: list[Letter]) -> None:
        if self._space is None:
            await place.write(letters)
        else:
            await self._space.needed_by(lambda: place.write(letters))
