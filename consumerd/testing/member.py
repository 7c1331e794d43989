"""A member of a group in memory: the real consumer, run as a task of the test's loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from consumerd.base.partition import TopicPartition

if TYPE_CHECKING:
    from consumerd.member.consumer.consumer import GroupConsumer
    from consumerd.testing.memory_zookeeper import MemorySession


class MemoryMember:
    """A member at work. `handler` is the test's own object, `zk` the member's session, `name` the end of its id."""

    def __init__(self, name: str, consumer: GroupConsumer, zk: MemorySession, handler: Any) -> None:
        self.name = name
        self.consumer = consumer
        self.zk = zk
        self.handler = handler
        self.task = asyncio.create_task(consumer.run(), name=f"member {name}")
        self._looked_at = False

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that it consumes now."""
        return sorted(self.consumer.owned)

    async def ended(self, seconds: float = 5.0) -> None:
        """Return when it has left the group. Raises what stopped it, such as HandlerFailedError, and TimeoutError."""
        async with asyncio.timeout(seconds):
            await asyncio.wait([self.task])
        self._looked_at = True
        self.task.result()

    async def stop(self, seconds: float = 5.0) -> None:
        """Leave in order, as at SIGTERM: drain, commit, release. Raises as `ended`."""
        self.consumer.request_stop()
        await self.ended(seconds)

    async def cancel(self) -> None:
        """End its work at once and await the end; its nodes stay until its session ends."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def kill(self) -> None:
        """Die as at SIGKILL, and have ZooKeeper expire the session: nothing of the last moments is committed."""
        await self.cancel()
        await self.zk.close()

    def unseen_failure(self) -> BaseException | None:
        """The error that stopped it, unless `ended` or `stop` has raised it."""
        if self._looked_at or not self.task.done() or self.task.cancelled():
            return None
        return self.task.exception()

    def __repr__(self) -> str:
        if not self.task.done():
            return f"{self.name} (at work on {', '.join(map(str, self.owned)) or 'nothing'})"
        if self.task.cancelled() or (error := self.task.exception()) is None:
            return f"{self.name} (gone)"
        return f"{self.name} (stopped by {type(error).__name__}: {error})"
