"""A server in a child process, however it is started: stopped, killed, frozen, started again.

Strategy: a subclass defines how a server starts (`zookeeper`, `processes`); the end is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from consumerd.demo.children import Child


class StartedChild(ABC):
    """The operations on a process that can be started again after each end."""

    #: Seconds that `stop` leaves a process for an orderly end.
    _GRACE: ClassVar[float] = 10.0
    _child: Child | None = None

    @abstractmethod
    async def start(self) -> None:
        """Start it and wait until it serves; nothing happens when it runs."""

    @property
    def running(self) -> bool:
        """The process is there (perhaps paused)."""
        return self._child is not None and self._child.running

    async def stop(self, grace: float | None = None) -> int | None:
        """SIGTERM (an orderly shutdown), then SIGKILL after `grace` seconds; returns when it has ended.

        Returns its exit status (negative: the signal that ended it), None if it was never started.
        """
        return None if self._child is None else await self._child.stop(self._GRACE if grace is None else grace)

    def kill(self) -> None:
        """SIGKILL to it and its workers; returns when it is gone (milliseconds)."""
        if self._child is not None:
            self._child.end_now()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open and nothing answers."""
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """Resume a frozen process."""
        if self._child is not None:
            self._child.resume()

    async def restart(self) -> None:
        """Stop, if it runs, and start again with the same port and files."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
