"""What a multi that fails leaves. All else is in tests/integration/test_zookeeper_port.py, as a real server does it."""

from __future__ import annotations

from consumerd.base.ports import Check, Create, Delete, Operation, SetData
from consumerd.testing.memory_tree import NO_NODE, MemoryTree


def test_failed_multi_changes_nothing() -> None:
    fired: list[str] = []
    tree = MemoryTree(now_ms=lambda: 5, changed=lambda _, path: fired.append(path))
    tree.create("/a", b"1")
    tree.create("/a/old", b"")
    fired.clear()
    before = {path: (tree.data(path), tree.stat(path)) for path in tree.paths()}
    operations: list[Operation] = [
        Create("/a/new", b""),
        Delete("/a/old"),
        SetData("/a", b"2"),
        Delete("/a/new"),
        Check("/gone"),
    ]
    assert tree.multi(operations, 7) == (4, NO_NODE)
    assert {path: (tree.data(path), tree.stat(path)) for path in tree.paths()} == before
    assert tree.children("/a") == ["old"]
    assert fired == []
