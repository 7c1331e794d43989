"""The run of a member in a task of its own, with a time limit for leaving; its failure is kept.

Strategy: one task owns the member's run and two watchers. One makes a session that ended for good (refused credentials)
a reason to leave, the other cancels the run when leaving, for any reason, takes longer than the stop timeout:
ZooKeeper may be unavailable for hours, and nothing could be released until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from consumerd.base.errors import ConsumerdError

if TYPE_CHECKING:
    from consumerd.member.consumer.consumer import GroupConsumer
    from consumerd.member.consumer.coordinated import CoordinatedConsumer
    from consumerd.net.zk.session import Session

log = structlog.get_logger(__name__)


class MemberRun:
    """Runs `consumer` from now on. Watches `session`, if it is ours; calls `ended` at the end with the failure."""

    def __init__(
        self,
        consumer: GroupConsumer | CoordinatedConsumer,
        session: Session | None,
        *,
        stop_timeout: float,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self.consumer = consumer
        self.failure: BaseException | None = None
        self._session = session
        self._stop_timeout = stop_timeout
        self._ended = ended
        self._run = asyncio.create_task(consumer.run(), name="member")
        self._life = asyncio.create_task(self._live(), name="life of a member")

    async def wait_ready(self) -> None:
        """Return when the first assignment is decided, or the member has ended before."""
        ready = asyncio.create_task(self.consumer.ready.wait())
        try:
            await asyncio.wait([ready, self._life], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()

    async def leave(self) -> None:
        """Leave in order, or at once when this is cancelled. Returns when the member has ended."""
        self.consumer.request_stop()
        try:
            await asyncio.wait([self._life])
        finally:
            self._run.cancel()
            await asyncio.wait([self._life])

    async def _live(self) -> None:
        watchers = [asyncio.create_task(watch()) for watch in (self._guard_session, self._limit_leaving)]
        await asyncio.wait([self._run])
        for watcher in watchers:
            watcher.cancel()
        await asyncio.wait(watchers)
        self.failure = self.consumer.failure if self._run.cancelled() else self._run.exception()
        self._ended(self.failure)

    async def _guard_session(self) -> None:
        if self._session is not None:
            try:
                await self._session.wait_closed()
            except ConsumerdError as error:
                self.consumer.request_stop(error)

    async def _limit_leaving(self) -> None:
        await self.consumer.stopping.wait()
        await asyncio.sleep(self._stop_timeout)
        log.error("stop_forced", reason=f"no end within {self._stop_timeout:g} s")
        self._run.cancel()
