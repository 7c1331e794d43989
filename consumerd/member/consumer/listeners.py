"""Calls of rebalance listeners: in order, one at a time, each within a time limit.

Strategy: the task that starts, drains or abandons a partition awaits a hook here; simultaneous hooks are gathered into
one call with all the partitions, made by a single task. So a listener is never entered twice, and is called for every
partition in this order: assigned, then revoked or lost, then perhaps assigned again. A hook returns when the call has
ended, which is what keeps an owner node until `on_revoked` has returned.

A call that takes too long is cancelled, and the rebalance continues without it: JVM peers do not wait for ever.
One that raises stops the member; the error comes out of its streams.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, TypeAlias

import structlog

from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.member.consumer.errors import ListenerFailedError

log = structlog.get_logger(__name__)

#: Seconds in which hooks are gathered: the partitions of one rebalance are claimed and drained within milliseconds.
SETTLE = 0.01

Partitions: TypeAlias = frozenset["TopicPartition"]


class RebalanceListener:
    """Override the methods of interest, with `def` or `async def`. docs/library.md says what each of them may do."""

    def on_assigned(self, partitions: Partitions) -> Awaitable[None] | None:
        """Called with new partitions, before anything of them is fetched: the place to `seek` or `pause`."""

    def on_revoked(self, partitions: Partitions) -> Awaitable[None] | None:
        """Called when no stream holds messages of these; they are ours until this returns: the place to commit."""

    def on_lost(self, partitions: Partitions) -> Awaitable[None] | None:
        """Called with lost partitions, also at the end of a session: others may own them, and nothing is committed."""


#: The method of the listener.
_Kind: TypeAlias = Literal["on_assigned", "on_revoked", "on_lost"]


class _Call(NamedTuple):
    kind: _Kind
    partition: TopicPartition
    #: Cancelled when no task waits any more; the call is then left out, if it has not begun.
    over: asyncio.Future[None]


class Announcer:
    """Hooks that call a listener, each time for `timeout` seconds at most. `run` must be running for them to return.

    Without a listener they return at once. `failed` is called with the error of a listener that raised.
    """

    def __init__(
        self,
        listener: RebalanceListener | None,
        *,
        timeout: float,
        clock: Clock,
        failed: Callable[[ConsumerdError], None],
    ) -> None:
        self._listener = listener
        self._timeout = timeout
        self._clock = clock
        self._failed = failed
        self._waiting: list[_Call] = []
        self._news = asyncio.Event()
        #: Partitions whose assignment was reported, and whose end was not.
        self._reported: set[TopicPartition] = set()

    async def assigned(self, partition: TopicPartition) -> None:
        """Return when `on_assigned` has been called with `partition`."""
        if self._listener is not None:
            await self._report("on_assigned", partition)

    async def revoked(self, partition: TopicPartition) -> None:
        """Return when `on_revoked` has been called with `partition`; at once, if its assignment was never reported."""
        if partition in self._reported:
            await self._report("on_revoked", partition)

    async def lost(self, partition: TopicPartition) -> None:
        """Return when `on_lost` has been called with `partition`; at once, unless it was reported as assigned last."""
        if partition in self._reported:
            await self._report("on_lost", partition)

    async def _report(self, kind: _Kind, partition: TopicPartition) -> None:
        call = _Call(kind, partition, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._news.set()
        await call.over

    async def run(self) -> None:
        """Make the calls until cancelled."""
        while True:
            await self._news.wait()
            await self._clock.sleep(SETTLE)
            self._news.clear()
            while self._waiting:
                kind = self._waiting[0].kind
                calls = []
                while self._waiting and self._waiting[0].kind == kind:
                    calls.append(self._waiting.pop(0))
                await self._make(kind, [call for call in calls if not call.over.done()])

    async def _make(self, kind: _Kind, calls: list[_Call]) -> None:
        partitions = frozenset(call.partition for call in calls)
        if not partitions:
            return
        if kind == "on_assigned":
            self._reported |= partitions
        else:
            self._reported -= partitions
        try:
            await self._call(kind, partitions)
        finally:
            for call in calls:
                if not call.over.done():
                    call.over.set_result(None)

    async def _call(self, kind: _Kind, partitions: Partitions) -> None:
        names = sorted(map(str, partitions))
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                result = getattr(self._listener, kind)(partitions)
                if inspect.isawaitable(result):
                    await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._fail(kind, names, error)  # this task was not cancelled, but one that the listener awaited
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                log.warning("listener_timed_out", listener=kind, seconds=self._timeout, partitions=names)
            else:
                self._fail(kind, names, error)

    def _fail(self, kind: _Kind, names: list[str], error: BaseException) -> None:
        log.error("listener_failed", listener=kind, partitions=names, exc_info=error)
        failure = ListenerFailedError(kind, error)
        failure.__cause__ = error
        self._failed(failure)
