"""Several members in one process, run as one: they start in order, and stop together.

Strategy: the service waits for one object that runs, stops and fails, for any number of members. A member starts when
the handler of the one before it has started. As soon as one stops, by a signal, by its end or by its failure, all are
requested to leave; they drain at the same time, so one deadline holds for all. `run` raises the first failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

import structlog

from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition


class ServedMember(Protocol):
    """As much of a member as the service looks at (`consumerd.member.consumer.running_member.RunningMember`)."""

    #: Set when the first assignment is decided, when the handler has started, and when it has begun to leave.
    ready: asyncio.Event
    running: asyncio.Event
    stopping: asyncio.Event

    @property
    def failure(self) -> ConsumerdError | None:
        """The error that `run` will raise."""
        ...

    @property
    def owned(self) -> Iterable[TopicPartition]:
        """The partitions that are the member's now."""
        ...

    async def run(self) -> None:
        """Work until `request_stop` was called, or a failure, which is raised."""
        ...

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        """Leave in order."""
        ...


class Members:
    """The members of one process, by the names of their subscriptions, in the order of their start."""

    def __init__(self, members: Mapping[str, ServedMember]) -> None:
        self._members = dict(members)
        #: Set when all members are in their groups and their first assignments are decided.
        self.ready = asyncio.Event()
        #: Set when one member has begun to leave: so do all.
        self.stopping = asyncio.Event()
        self._failure: ConsumerdError | None = None

    @property
    def failure(self) -> ConsumerdError | None:
        """The error that `run` will raise: the first failure of a member."""
        if self._failure is None:
            failures = [member.failure for member in self._members.values() if member.failure is not None]
            self._failure = failures[0] if failures else None
        return self._failure

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that any of them owns now."""
        return sorted(partition for member in self._members.values() for partition in member.owned)

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        """Have all of them leave in order. The first `failure` given comes out of `run`."""
        self._failure = self.failure or failure
        self.stopping.set()
        for member in self._members.values():
            if failure is not None or not member.stopping.is_set():
                member.request_stop(failure)

    async def run(self) -> None:
        """Start the members one after the other, and run them until all have left.

        Raises the first failure of one, and as `RunningMember.run`. Cancelling it cancels all of them.
        """
        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(self._note_ready())]
            watchers += [group.create_task(self._stop_with(member)) for member in self._members.values()]
            work = []
            before: ServedMember | None = None
            for name, member in self._members.items():
                work.append(group.create_task(self._run(name, member, before), name=f"subscription {name}"))
                before = member
            await asyncio.wait(work)
            for watcher in watchers:
                watcher.cancel()
        if self.failure is not None:
            raise self.failure

    async def _run(self, name: str, member: ServedMember, before: ServedMember | None) -> None:
        structlog.contextvars.bind_contextvars(subscription=name)  # of this task, and of those that it starts
        if before is not None:
            await self._started(before)
        if self.stopping.is_set():
            return
        try:
            await member.run()
        except ConsumerdError as error:
            self._failure = self._failure or error
        finally:
            self._stop_others()

    async def _started(self, member: ServedMember) -> None:
        """Wait until the handler of `member` has started, or all are to stop."""
        events = [asyncio.create_task(event.wait()) for event in (member.running, self.stopping)]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for event in events:
                event.cancel()

    async def _stop_with(self, member: ServedMember) -> None:
        await member.stopping.wait()
        self._stop_others()

    def _stop_others(self) -> None:
        """One leaves, so all do."""
        if not self.stopping.is_set():
            self.request_stop()

    async def _note_ready(self) -> None:
        for member in self._members.values():
            await member.ready.wait()
        self.ready.set()
