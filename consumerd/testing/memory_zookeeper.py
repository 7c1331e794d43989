"""A ZooKeeper in memory, behind the port `consumerd.ports.ZooKeeper`: for simulations and tests, never for service.

    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b"creator:127.0.0.1:9092")
    async with zookeeper.session() as zk:
        await zk.create_ephemeral("/consumers/g/ids/g_a", b"{ }", wait=0)
        zookeeper.expire(zk)  # its nodes go; it gets a new session, as a connected client does

Strategy: only the wire and the server are replaced. A `MemorySession` runs the calls, the state machine and the watch
table of `consumerd.zk` itself, so its errors, events and their order are those of the real session. A request is
carried out at the moment it is sent, and answered in the next turn of the loop; watches are one-shot, belong to the
connection, and are told in the order in which they were armed, before any answer sent after the change. Nothing else
decides the order of things, so equal programs run equally.

Faults are calls: `disconnect`, `reconnect`, `expire`, `cut_next_call`, and `lose_watches` on a session. Time passes
only in the clock that is handed in; sessions end when told to, not by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.clock import SystemClock
from consumerd.ports import SessionState
from consumerd.testing.memory_session import Link, MemorySession
from consumerd.testing.memory_tree import Kind, MemoryTree
from consumerd.zk.lifecycle import Lifecycle
from consumerd.zk.watches import WatchTable

if TYPE_CHECKING:
    from consumerd.ports import Clock

__all__ = ["MemorySession", "MemoryZooKeeper"]

_FIRST_SESSION = 0x1_0000_0000


class MemoryZooKeeper:
    """The server. Paths given to it are absolute, outside of any chroot."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.tree = MemoryTree(now_ms=lambda: int(self._clock.wall() * 1000), changed=self._changed)
        self._watches: dict[tuple[Kind, str], dict[Link, None]] = {}
        self._last_session = _FIRST_SESSION
        self._alive: set[int] = set()

    def session(
        self, *, chroot: str = "", session_timeout: float = 6.0, wait_connected: float | None = None
    ) -> MemorySession:
        """A client, not started yet. Its calls wait `wait_connected` seconds of the loop for a connection."""
        watches = WatchTable()
        wait = session_timeout if wait_connected is None else wait_connected
        lifecycle = Lifecycle("memory", session_timeout, wait, clock=self._clock, watches=watches)
        return MemorySession(self, lifecycle, watches, chroot=chroot, clock=self._clock)

    # -- faults

    def disconnect(self, session: MemorySession) -> None:
        """Cut the connection. The session lives on; its calls wait for `reconnect`, outstanding ones fail."""
        if session.link is not None:
            session.link.kill("it was cut")

    def reconnect(self, session: MemorySession) -> None:
        """Connect again; a session that ended meanwhile learns of it and gets a new one."""
        if session.link is not None or session.state is SessionState.CLOSED:
            return
        session_id = session.granted_id
        if session_id not in self._alive:
            self._last_session += 1
            session_id = self._last_session
            self._alive.add(session_id)
        session.attach(session_id)

    def expire(self, session: MemorySession) -> None:
        """End the session on the server. A connected client gets a new one at once, a disconnected one learns later."""
        connected = session.link is not None
        self.disconnect(session)
        self.end(session.granted_id)
        if connected:
            self.reconnect(session)

    def cut_next_call(self, session: MemorySession, *, carried_out: bool) -> None:
        """Cut the connection at the session's next call, after or before it is carried out. The call cannot tell."""
        assert session.link is not None, "the session is not connected"
        session.link.cut = carried_out

    # -- nodes, as if by somebody else; no loop is needed when nobody watches

    def put(self, path: str, data: bytes | None, *, session_id: int = 0) -> None:
        """Create or overwrite, parents included; `session_id` makes a new node that session's ephemeral."""
        if self.tree.has(path):
            self.tree.set(path, data)
        else:
            self.make(path.rpartition("/")[0])
            self.tree.create(path, data, session_id)

    def make(self, path: str) -> None:
        """Create `path` and its parents with null data, where missing."""
        names = path.split("/")[1:]
        for end in range(1, len(names) + 1):
            above = "/" + "/".join(names[:end])
            if not self.tree.has(above):
                self.tree.create(above, None)

    def remove(self, path: str) -> None:
        """Delete a node and everything below it. A missing one is nothing to complain about."""
        for below in reversed(self.tree.paths()):
            if below == path or below.startswith(f"{path}/"):
                self.tree.delete(below)

    def dump(self) -> dict[str, bytes | None]:
        """All nodes but the root, with their data."""
        return {path: self.tree.data(path) for path in self.tree.paths() if path != "/"}

    # -- for sessions

    def end(self, session_id: int) -> None:
        """Forget a session and delete its ephemerals."""
        self._alive.discard(session_id)
        for path in self.tree.owned_by(session_id):
            self.tree.delete(path)

    def arm(self, kind: Kind, path: str, link: Link) -> None:
        """Note a one-shot watch."""
        self._watches.setdefault((kind, path), {})[link] = None

    def forget_watches(self, link: Link) -> None:
        """The server's watches die with their connection."""
        for links in self._watches.values():
            links.pop(link, None)

    def _changed(self, kind: Kind, path: str) -> None:
        for link in self._watches.pop((kind, path), {}):
            link.watched(path)
