"""The events of a group under test, in order, and waiting for them.

Strategy: one list of short entries that all parts write to, and one event that is set with each; a task that waits for
a condition checks it again after every entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumerd.testing.memory_tree import WatchKind
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

#: Time between checks of conditions that the journal does not record, in seconds.
_TICK = 0.01


class Journal:
    """Entries of (what, about): `created`, `set` and `deleted` nodes by path, and other notes."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def note(self, what: str, about: str) -> None:
        """Add an entry."""
        self.entries.append((what, about))
        self.tell()

    def tell(self) -> None:
        """Wake all waiters: something has changed."""
        self._news.set()

    def of(self, *about: str) -> list[tuple[str, str]]:
        """The entries about one of these."""
        return [entry for entry in self.entries if entry[1] in about]

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return when `condition()` holds; raises TimeoutError. It is checked after every entry, and every tick."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                try:
                    async with asyncio.timeout(_TICK):
                        await self._news.wait()
                except TimeoutError:
                    continue


class JournalingZooKeeper(MemoryZooKeeper):
    """A ZooKeeper in memory that notes every change of a node."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._there: set[str] = set()
        super().__init__()

    def _changed(self, kind: WatchKind, path: str) -> None:
        if kind is WatchKind.DATA:
            there = self.tree.has(path)
            self._journal.note("deleted" if not there else "set" if path in self._there else "created", path)
            (self._there.add if there else self._there.discard)(path)
        super()._changed(kind, path)
