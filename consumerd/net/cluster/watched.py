"""ZooKeeper nodes cached with a watch: read again only when the watch fires.

Strategy: what was read is kept together with the watch that the read armed. As long as that has not fired, the server
has nothing new, and asking costs nothing. A fired watch, a reconnect (which fires them all) or `refresh` makes a node
stale; the next `data`, `node` or `children` reads it again and re-arms the watch. A watch that fires while its node
is being read makes that very read stale as well, as it may have come too early.

Two members that share a topic of a thousand partitions thus learn of each other by a handful of requests, where reading
everything each time costs thousands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, KeysView
from dataclasses import dataclass

from consumerd.base.ports import Clock, ZooKeeper
from consumerd.net.cluster.reading import ZNode, node, watched_children


@dataclass(slots=True)
class _Kept:
    """The cached reading of a path."""

    unwatch: Callable[[], None]
    #: Time of the read, on the clock.
    read_at: float
    value: ZNode | list[str] | None = None
    fresh: bool = False
    #: Another one after each time that the watch fires.
    signal: object = None


class WatchedNodes:
    """Reads through `zk`; `changed(path)` is called when a reading may be stale.

    Each path is read in one way only: as a node, or as a list of children. Reading raises the errors of the session.
    """

    def __init__(self, zk: ZooKeeper, clock: Clock, changed: Callable[[str], None]) -> None:
        self._zk = zk
        self._clock = clock
        self._changed = changed
        self._kept: dict[str, _Kept] = {}

    # -- without a request

    def is_fresh(self, path: str) -> bool:
        """Whether the path can be read without a request."""
        kept = self._kept.get(path)
        return kept is not None and kept.fresh

    def known_node(self, path: str) -> ZNode | None:
        """Return the present node; None if it is missing, or would have to be read."""
        kept = self._kept.get(path)
        return kept.value if kept is not None and kept.fresh and isinstance(kept.value, ZNode) else None

    def age(self, path: str) -> float:
        """Return the seconds since the path was read."""
        return self._clock.monotonic() - self._kept[path].read_at

    # -- reading

    async def node(self, path: str) -> ZNode | None:
        """Return data and stat; None for a missing node, whose creation is then watched for."""

        async def read() -> ZNode | None:
            while True:
                found = await node(self._zk, path, watch=True)
                if found is not None or await self._zk.exists(path, watch=True) is None:
                    return found

        value = await self._read(path, read)
        assert not isinstance(value, list)
        return value

    async def node_if_there(self, path: str) -> ZNode | None:
        """As `node`, but nothing is kept of a missing one, and its creation is not watched for."""
        found = await self._read(path, lambda: node(self._zk, path, watch=True))
        assert not isinstance(found, list)
        if found is None:
            self.forget(path)
        return found

    async def children(self, path: str) -> list[str]:
        """Return the sorted names; none for a missing node, whose creation is then watched for."""
        value = await self._read(path, lambda: watched_children(self._zk, path))
        assert isinstance(value, list)
        return value

    async def _read(
        self, path: str, read: Callable[[], Awaitable[ZNode | list[str] | None]]
    ) -> ZNode | list[str] | None:
        kept = self._kept.get(path)
        if kept is None:
            unwatch = self._zk.watch(path, lambda: self._fire(path))
            kept = self._kept[path] = _Kept(unwatch, self._clock.monotonic())
        elif kept.fresh:
            return kept.value
        signal = kept.signal
        value = await read()
        kept.value, kept.fresh, kept.read_at = value, kept.signal is signal, self._clock.monotonic()
        return value

    def _fire(self, path: str) -> None:
        kept = self._kept[path]
        kept.signal, kept.fresh = object(), False
        self._changed(path)

    # -- keeping

    def refresh(self, path: str) -> None:
        """Read it again at its next use."""
        kept = self._kept.get(path)
        if kept is not None:
            kept.fresh = False

    def shorten(self, path: str, data: bytes) -> None:
        """Keep `data` in place of what was read of the node, which is too large to be kept."""
        kept = self._kept.get(path)
        if kept is not None and isinstance(kept.value, ZNode):
            kept.value = ZNode(data, kept.value.stat)

    def forget(self, path: str) -> None:
        """Forget the path and ignore its watch."""
        kept = self._kept.pop(path, None)
        if kept is not None:
            kept.unwatch()

    def paths(self) -> KeysView[str]:
        """Return all cached paths, fresh or not."""
        return self._kept.keys()

    def close(self) -> None:
        """Forget everything."""
        for path in list(self._kept):
            self.forget(path)
