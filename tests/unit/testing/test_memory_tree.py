from __future__ import annotations

import pytest

from consumerd.base.ports import Check, Create, Delete, Operation, SetData
from consumerd.net.zk.errors import ServerError
from consumerd.testing.memory_tree import (
    BAD_VERSION,
    INVALID_PATH,
    NO_CHILDREN,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    MemoryTree,
    WatchKind,
)


class Recorded:
    """A tree and the watches that it fired since they were last looked at."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.tree = MemoryTree(now_ms=lambda: 5, changed=lambda kind, path: self.seen.append((kind.value, path)))

    def fired(self) -> list[tuple[str, str]]:
        seen = self.seen[:]
        self.seen.clear()
        return seen


def test_fires_the_watches_of_the_real_server() -> None:
    recorded = Recorded()
    tree = recorded.tree
    tree.create("/a", None)
    assert recorded.fired() == [("data", "/a"), ("children", "/")]
    tree.create("/a/b", b"1", 7)
    assert recorded.fired() == [("data", "/a/b"), ("children", "/a")]
    tree.set("/a/b", b"2")
    assert recorded.fired() == [("data", "/a/b")]
    tree.delete("/a/b")
    assert recorded.fired() == [("data", "/a/b"), ("children", "/a/b"), ("children", "/a")]
    assert WatchKind.DATA.value == "data"


def test_keeps_stat_as_the_real_server() -> None:
    tree = Recorded().tree
    tree.create("/a", b"1", 7)
    tree.set("/a", b"2")
    assert tree.data("/a") == b"2"
    assert tree.stat("/a")._asdict() == {
        "version": 1, "ephemeral_owner": 7, "children_count": 0, "created_zxid": 1, "modified_ms": 5,
        "modified_zxid": 2,
    }  # fmt: skip
    assert tree.owned_by(7) == ["/a"]
    assert tree.owned_by(0) == []


def code_of(error: pytest.ExceptionInfo[ServerError]) -> int:
    return error.value.code


def test_refuses_as_the_real_server() -> None:
    tree = Recorded().tree
    tree.create("/a", None)
    tree.create("/a/b", b"", 7)
    for path, code in {
        "/a": NODE_EXISTS,
        "/": NODE_EXISTS,
        "/x/y": NO_NODE,
        "/a/b/c": NO_CHILDREN,
        "a": INVALID_PATH,
        "/a//b": NO_NODE,
        "/a/..": INVALID_PATH,
        "/a/\0": INVALID_PATH,
    }.items():
        with pytest.raises(ServerError) as error:
            tree.create(path, None)
        assert code_of(error) == code, path
    for call, code in (
        (lambda: tree.delete("/a"), NOT_EMPTY),
        (lambda: tree.delete("/x"), NO_NODE),
        (lambda: tree.delete("/a/b", 3), BAD_VERSION),
        (lambda: tree.set("/x", b""), NO_NODE),
        (lambda: tree.set("/a", b"", 3), BAD_VERSION),
        (lambda: tree.children("/x"), NO_NODE),
    ):
        with pytest.raises(ServerError) as error:
            call()
        assert code_of(error) == code


def test_failed_multi_changes_nothing() -> None:
    recorded = Recorded()
    tree = recorded.tree
    tree.create("/a", b"1")
    tree.create("/a/old", b"")
    recorded.fired()
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
    assert recorded.fired() == []


def test_multi_sees_its_own_changes() -> None:
    recorded = Recorded()
    operations: list[Operation] = [
        Create("/a", b""),
        Create("/a/b", b"", ephemeral=True),
        Check("/a/b", 0),
        SetData("/a/b", b"x"),
    ]
    assert recorded.tree.multi(operations, 7) is None
    assert recorded.tree.stat("/a/b").ephemeral_owner == 7
    assert recorded.fired() == [("data", "/a"), ("children", "/"), ("data", "/a/b"), ("children", "/a")]
