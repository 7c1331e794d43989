"""What a session says of itself, and whom it tells: where it stands, events, watches, its beginning and end.

Strategy: all of it is the lifecycle's and the watch table's; how a session comes to be and ends is said by a subclass,
of which there are two: one with a server, and one with a server in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from consumerd.zk.ownership import OwnershipCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from consumerd.ports import SessionEvent, SessionState


class LiveSession(OwnershipCalls, ABC):
    """A session that can be asked where it stands. `async with` starts and closes it."""

    @abstractmethod
    async def start(self, timeout: float | None = None) -> None:
        """Get a session, within `timeout` seconds."""

    @abstractmethod
    async def close(self) -> None:
        """End the session. Outstanding calls fail. May be called again."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- what is so now

    @property
    def state(self) -> SessionState:
        """Where the session stands."""
        return self._lifecycle.state

    @property
    def session_id(self) -> int:
        """The id of the present session; 0 when there is none. It stays while the session is suspended."""
        return self._lifecycle.session_id

    @property
    def session_timeout(self) -> float:
        """The negotiated session timeout in seconds (before the first session: the one asked for)."""
        return self._lifecycle.timeout

    @property
    def has_multi(self) -> bool:
        """Whether the server carries out multis: servers before 3.4 drop them without an answer."""
        return self._lifecycle.has_multi

    def lease_left(self) -> float:
        """Seconds for which the server cannot have expired this session; negative when it may have, or without one.

        On a healthy connection it moves between half and three quarters of the session timeout.
        """
        return self._lifecycle.lease_left()

    # -- events

    def subscribe(self, listener: Callable[[SessionEvent, int], None]) -> Callable[[], None]:
        """Call `listener(event, session_id)` synchronously on every event; returns the unsubscriber."""
        return self._lifecycle.subscribe(listener)

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed()` when a read of `path` with `watch=True` may be stale, and after each reconnect."""
        return self._watches.add(self._full(path), changed)
