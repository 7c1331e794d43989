"""The records of a handler's work in the harness, and the layer that takes them.

Strategy: the layer sits between the retry policy and the handler, where every single attempt passes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, DeadLetters, Handler, Letter
from consumerd.handlers.api import HandlerStage


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of the handler. `error` is what it raised; a cancellation counts, too."""

    partition: TopicPartition
    #: The start of the batch, as the handler saw it.
    start_offset: int
    payloads: tuple[bytes, ...]
    #: The number of `payloads` that count as handled: all after a return, else those that the handler marked.
    handled: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class DeliveredBatch:
    """A batch that was delivered until it was handled, or failed by the policy."""

    partition: TopicPartition
    start_offset: int
    #: The position to commit.
    next_offset: int
    payloads: tuple[bytes, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Revocation:
    """The result of the revocation of a partition."""

    partition: TopicPartition
    #: Whether it was still at work when its time was over, and had to be cancelled.
    cancelled: bool
    #: Everything before this offset counts as handled.
    position: int | None
    #: Tasks that began during the delivery and outlived it: they would work beside the partition's next owner.
    left_running: tuple[asyncio.Task[Any], ...]


class MemoryDeadLetters(DeadLetters):
    """Keeps letters in a list."""

    def __init__(self, letters: list[Letter]) -> None:
        self._letters = letters

    async def start(self) -> None:
        return

    async def write(self, letters: Sequence[Letter]) -> None:
        self._letters += letters

    async def stop(self) -> None:
        return


class ObservedHandler(HandlerStage):
    """Passes everything on to `inner`, notes each attempt in `attempts`, and raises the errors of `failures` first."""

    def __init__(self, inner: Handler, attempts: list[Attempt], failures: deque[Exception]) -> None:
        super().__init__(inner)
        self.attempts = attempts
        #: Called at the beginning of every attempt.
        self.entered: Callable[[TopicPartition], None] = lambda _: None
        self._failures = failures

    async def handle(self, batch: Batch) -> None:
        self.entered(batch.partition)
        try:
            if self._failures:
                raise self._failures.popleft()
            await self._inner.handle(batch)
        except BaseException as error:
            self._note(batch, batch.handled, error)
            raise
        self._note(batch, len(batch), None)

    def _note(self, batch: Batch, handled: int, error: BaseException | None) -> None:
        self.attempts.append(Attempt(batch.partition, batch.start_offset, tuple(batch), handled, error))
