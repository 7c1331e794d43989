"""The ports: interfaces of the rooms to the outside world, so that tests and a simulator can replace it.

Ring 0: protocols and values only. The real ones are `consumerd.base.clock.SystemClock`, `consumerd.net.zk.session` and
`consumerd.net.connect`; files have their port in `consumerd.base.files`; randomness is a `random.Random` argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """Time. `monotonic` for durations, `wall` for names and records, `sleep` to wait."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; keeps running while the process is stopped by a signal."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; 0 or less yields once."""
        ...


class SessionState(Enum):
    """The state of the one ZooKeeper session."""

    CONNECTED = "connected"
    #: The connection is gone; the session may still live on the server until the lease runs out.
    SUSPENDED = "suspended"
    #: The server reported that the session is over, or none was made yet.
    LOST = "lost"
    CLOSED = "closed"


class SessionEvent(Enum):
    """The states of a session, of which its listeners are notified in order."""

    #: A session that did not exist before: nothing of a former one may be relied on.
    NEW = "new"
    SUSPENDED = "suspended"
    RECONNECTED = "reconnected"
    EXPIRED = "expired"


class NodeStat(NamedTuple):
    """The part of ZooKeeper's Stat that we use."""

    version: int
    ephemeral_owner: int  # session id, 0 for a persistent node
    children_count: int
    created_zxid: int
    modified_ms: int
    modified_zxid: int  # of the last write of its data


class Check(NamedTuple):
    """Multi operation: fail all unless the node exists (with `version`, -1 for any)."""

    path: str
    version: int = -1


class SetData(NamedTuple):
    """Multi operation: overwrite a node's data."""

    path: str
    data: bytes
    version: int = -1


class Create(NamedTuple):
    """Multi operation: create a node."""

    path: str
    data: bytes | None
    ephemeral: bool = False


class Delete(NamedTuple):
    """Multi operation: delete a node."""

    path: str
    version: int = -1


Operation = Check | SetData | Create | Delete


class ZooKeeper(Protocol):
    """One supervised ZooKeeper session. Paths are relative to the chroot and start with `/`.

    Every call is one attempt (or, where it says so, retried within a deadline) and raises the errors of
    `consumerd.net.zk.errors`: `NoNode`, `NodeExists`, `BadVersion`, `NotEmpty`, `NotConnected` (never sent),
    `ConnectionLost` (sent, outcome unknown), `SessionChanged`, `MultiFailed`.
    """

    @property
    def state(self) -> SessionState: ...

    @property
    def session_id(self) -> int:
        """The id of the present session; 0 when there is none."""
        ...

    @property
    def session_timeout(self) -> float:
        """The negotiated session timeout in seconds."""
        ...

    @property
    def has_multi(self) -> bool:
        """Whether the server carries out `multi` (3.4 and later); known as soon as there is a session."""
        ...

    def lease_left(self) -> float:
        """Seconds for which the server cannot have expired this session; negative when it may have."""
        ...

    def subscribe(self, listener: Callable[[SessionEvent, int], None]) -> Callable[[], None]:
        """Call `listener(event, session_id)` synchronously on every event; returns the unsubscriber."""
        ...

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed()` when a read of `path` made with `watch=True` may be stale; returns the unwatcher.

        Level-triggered: also called after every reconnect. The reader re-reads, which re-arms the watch.
        """
        ...

    async def get(self, path: str, *, watch: bool = False) -> tuple[bytes | None, NodeStat]: ...

    async def exists(self, path: str, *, watch: bool = False) -> NodeStat | None: ...

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """The names below `path`, sorted. Raises NoNode."""
        ...

    async def create(self, path: str, data: bytes | None, *, ephemeral: bool = False) -> None: ...

    async def ensure(self, path: str) -> None:
        """Create `path` and its parents, persistent with null data, where missing (golden notes, 4)."""
        ...

    async def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat: ...

    async def delete(self, path: str, *, version: int = -1) -> None: ...

    async def create_ephemeral(self, path: str, data: bytes, *, wait: float) -> None:
        """Create for the present session, parents included; returns when this session owns the node.

        A node of another session is waited for up to `wait` seconds, never adopted, then NodeExists is raised. A lost
        reply is resolved by reading the owner. Raises SessionChanged when the session ends meanwhile.
        """
        ...

    async def delete_owned(self, path: str) -> bool:
        """Delete `path` if this session owns it. Return False if it is gone or another session owns it."""
        ...

    async def multi(self, operations: Sequence[Operation], *, session_id: int | None = None) -> None:
        """Execute all or nothing. Raises MultiFailed(index, cause), or SessionChanged if `session_id` is over."""
        ...


class SaslMechanism(Protocol):
    """One SASL authentication in progress, with a broker or with ZooKeeper. A factory of it begins a new one."""

    name: str

    def first(self, host: str) -> bytes:
        """Return the first token for the server at `host`. May block. Raises ConsumerdError; ConnectError for now."""
        ...

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the next token; None at the end. May block. Raises ConsumerdError for an invalid `challenge`."""
        ...

    @property
    def ends_unanswered(self) -> bool:
        """Whether the server has no token for our last one."""
        ...
