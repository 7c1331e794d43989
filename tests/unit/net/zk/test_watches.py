from __future__ import annotations

import weakref
from collections.abc import Callable

from consumerd.net.zk.watches import WatchTable


def test_notifies_only_the_watchers_of_the_path() -> None:
    table, told = WatchTable(), list[str]()
    table.add("/a", lambda: told.append("a1"))
    table.add("/a", lambda: told.append("a2"))
    table.add("/b", lambda: told.append("b"))
    table.fire("/a")
    table.fire("/c")
    assert told == ["a1", "a2"]
    table.fire_all()
    assert told == ["a1", "a2", "a1", "a2", "b"]


def test_removing_twice_is_harmless() -> None:
    table, told = WatchTable(), list[str]()
    first, second = (table.add("/a", lambda: told.append("x")) for _ in range(2))
    first()
    first()
    assert len(table) == 1
    table.fire("/a")
    assert told == ["x"]
    second()
    assert len(table) == 0


def test_forgets_a_path_without_watchers() -> None:
    class Path(str):
        """A text to which a weak reference may point."""

    table, path = WatchTable(), Path("/a")
    known = weakref.ref(path)
    first, second = (table.add(path, lambda: None) for _ in range(2))
    del path
    first()
    assert known() is not None
    second()
    del first, second
    assert known() is None


def test_watcher_may_remove_itself_or_others_during_notification() -> None:
    table, told = WatchTable(), list[str]()
    removers: list[Callable[[], None]] = []

    def once() -> None:
        told.append("once")
        for remove in removers:
            remove()

    removers.append(table.add("/a", once))
    removers.append(table.add("/b", lambda: told.append("b")))
    table.fire_all()
    table.fire_all()
    assert told == ["once"]


def test_failing_watcher_does_not_keep_others_from_notification() -> None:
    table, told = WatchTable(), list[str]()

    def broken() -> None:
        raise RuntimeError("defect")

    table.add("/a", broken)
    table.add("/a", lambda: told.append("a"))
    table.fire("/a")
    assert told == ["a"]
