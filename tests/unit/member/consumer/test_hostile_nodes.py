"""Snapshots of nodes that a hostile client wrote: what is left out, with which warning, and how much is kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import NodeStat
from consumerd.group.events import TakeSnapshot
from consumerd.group.rules import V07Rules
from consumerd.member.consumer import snapshot as module
from consumerd.member.consumer.snapshot import V07SnapshotReader, _beyond, _MemberTexts
from consumerd.net.cluster.groups import GroupView, _named
from consumerd.net.cluster.watched import WatchedNodes
from consumerd.net.zk.errors import ConnectionLost, NoAuth, NoNode, NotConnected, SessionChanged
from consumerd.testing.clock import FakeClock


class Tree:
    """A server before 3.5, which checks no names; what is read of it is counted."""

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.reads: list[str] = []
        #: Listed, and deleted before they are read.
        self.vanished: set[str] = set()

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def get(self, path: str, *, watch: bool = False) -> tuple[bytes, NodeStat]:
        self.reads.append(path)
        if path not in self.nodes or path in self.vanished:
            raise NoNode(path)
        return self.nodes[path], NodeStat(0, 1, 0, 0, 0, 0)

    async def exists(self, path: str, *, watch: bool = False) -> NodeStat | None:
        return NodeStat(0, 1, 0, 0, 0, 0) if path in self.nodes and path not in self.vanished else None

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        found = [each.removeprefix(f"{path}/") for each in self.nodes if each.startswith(f"{path}/")]
        if not found:
            raise NoNode(path)
        return sorted({each if each.startswith("..") else each.partition("/")[0] for each in found})


def watched(tree: Any) -> WatchedNodes:
    return WatchedNodes(tree, FakeClock(), lambda path: None)


def reader(tree: Any, nodes: WatchedNodes | None = None) -> V07SnapshotReader:
    return V07SnapshotReader(tree, watched(tree) if nodes is None else nodes, watched(tree), "g", V07Rules())


def take(topics: frozenset[str] | None = frozenset({"t"}), *, list_owners: bool = False) -> TakeSnapshot:
    return TakeSnapshot(1, 1, topics, frozenset(), list_owners)


async def test_leaves_out_names_that_no_path_can_have() -> None:
    tree = Tree(
        {
            "/consumers/g/ids/g_a": b'{ "t": 1 }',
            "/consumers/g/ids/..": b'{ "t": 1 }',
            "/consumers/g/ids/bell\a": b'{ "t": 1 }',
            "/brokers/topics/..": b"",
            "/brokers/topics/t/0": b"2",
        }
    )
    taking = reader(tree)
    with structlog.testing.capture_logs() as logs:
        found = await taking.read("g_m", take(None))
        await taking.read("g_m", take(None))
    assert [*found.members] == ["g_a"]
    assert found.topics == {"t": {0: range(2)}}
    warned = [(each["event"], each["node"]) for each in logs]
    assert sorted(warned) == [
        ("foreign_node", "/brokers/topics/.."),
        ("foreign_node", "/consumers/g/ids/.."),
        ("foreign_node", "/consumers/g/ids/bell\a"),
    ]  # each once
    assert not any("topic" in each for each in logs)  # it is that of a node below a topic
    assert not [path for path in tree.reads if "/.." in path]


async def test_leaves_out_the_largest_members_beyond_the_limit_and_reads_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_MEMBER_BYTES", 10_000)
    small = {f"/consumers/g/ids/g_{number}": b'{ "t": 1 }' for number in range(50)}
    large = {f"/consumers/g/ids/huge-{number}": bytes(3000) for number in range(5)}
    tree = Tree({**large, **small, "/brokers/topics/t/0": b"2"})
    nodes = watched(tree)
    taking = reader(tree, nodes)
    with structlog.testing.capture_logs() as logs:
        for list_owners in (False, False, True):
            found = await taking.read("g_m", take(list_owners=list_owners))
            assert len(found.members) == 50
            assert not [name for name in found.members if name.startswith("huge")]
            assert sorted(each["node"] for each in logs) == sorted(large)
            for path in large:
                kept = nodes.known_node(path)
                assert kept is not None
                assert len(kept.data) < 100
    assert {each["event"] for each in logs} == {"member_node_unreadable"}
    assert sum(path in large for path in tree.reads) == 5


async def test_keeps_members_that_fit_together_to_the_last_byte() -> None:
    def left(most: int, *sizes: int) -> list[int]:
        texts = _MemberTexts(most)
        for number, size in enumerate(sizes):
            texts.add(f"g_{number}", bytes(size))
        return [len(text) for text in texts.texts.values()]

    assert left(8, 8) == [8]
    assert left(8, 5, 3) == [5, 3]
    assert left(8, 9) == []
    assert left(8, 4, 5) == [4]  # one byte too many: half of all is the limit for each
    assert left(8, 5, 4) == [4]
    assert left(8, 4, 4, 1, 2) == [1, 2]  # with a quarter the rest fits


async def test_keeps_members_of_sixteen_mebibytes_together() -> None:
    """The limit of docs/security.md, which all members of a group must have in common."""
    large = {f"/consumers/g/ids/g_{number}": bytes(1 << 20) for number in range(16)}
    assert len((await reader(Tree(large)).read("g_m", take())).members) == 16
    one_more = large | {"/consumers/g/ids/g_a": b"x"}
    assert (await reader(Tree(one_more)).read("g_m", take())).members == {"g_a": "x"}


async def test_leaves_out_nodes_that_vanish_between_the_listing_and_the_read() -> None:
    tree = Tree(
        {
            "/consumers/g/ids/g_a": b"{ }",
            "/consumers/g/ids/g_b": b"{ }",
            "/brokers/topics/t/0": b"2",
            "/brokers/topics/t/1": b"3",
        }
    )
    tree.vanished = {"/consumers/g/ids/g_b", "/brokers/topics/t/1"}
    with structlog.testing.capture_logs() as logs:
        found = await reader(tree).read("g_m", take())
    assert found.members == {"g_a": "{ }"}
    assert found.topics == {"t": {0: range(2)}}
    assert logs == []


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_left_of_the_members_does_not_depend_on_the_order_of_reads(seed: int) -> None:
    rng = random.Random(seed)
    nodes = {f"g_{number}": bytes(int(2 ** rng.uniform(0, 14))) for number in range(rng.randrange(200))}
    kept = []
    for _ in range(2):
        order = [*nodes]
        rng.shuffle(order)
        texts = _MemberTexts(50_000)
        dropped = [each for name in order for each in texts.add(name, nodes[name])]
        assert sum(map(len, texts.texts.values())) <= 50_000
        assert sorted([*dropped, *texts.texts]) == sorted(nodes)
        kept.append(texts.texts)
    assert kept[0] == kept[1]
    if sum(map(len, nodes.values())) <= 50_000:
        assert kept[0] == nodes


async def test_leaves_out_brokers_and_topics_with_the_most_partitions() -> None:
    tree = Tree(
        {
            "/brokers/topics/t/0": b"4",
            "/brokers/topics/t/1": b"100000",
            "/brokers/topics/t/2": b"100000",
            "/brokers/topics/u/0": b"99999",
            "/brokers/topics/v/0": b"2",
        }
    )
    taking = reader(tree)
    with structlog.testing.capture_logs() as logs:
        found = await taking.read("g_m", take(None))
    assert found.topics == {"t": {0: range(4)}, "v": {0: range(2)}}
    reasons = {each["node"]: each["reason"] for each in logs}
    assert reasons.keys() == {"t/1", "t/2", "u"}
    assert reasons["t/1"] == "the topic has more than 100000 partitions, 100000 of them on this broker"
    assert "all topics together have more than 100000 partitions, and this one 99999" in reasons["u"]


async def test_largest_are_beyond_the_limit() -> None:
    assert _beyond({"a": 5, "b": 5, "c": 1}, 11) == []
    assert _beyond({"a": 5, "b": 5, "c": 1}, 10) == ["a"]
    assert _beyond({"a": 5, "b": 5, "c": 1}, 0) == ["a", "b", "c"]


async def test_tools_name_nodes_that_no_path_can_have() -> None:
    view = GroupView("g")
    assert _named(view, "/consumers/g/ids", "consumer id", ["g_a", "..", "x\0"]) == ["g_a"]
    assert view.faults.keys() == {"/consumers/g/ids/..", "/consumers/g/ids/x\0"}
    assert len(view.problems) == 2


async def test_topic_that_cannot_be_read_stays_as_it_was() -> None:
    """Reported once, and again when it was readable in between."""

    class Guarded(Tree):
        forbidden = False

        async def get(self, path: str, *, watch: bool = False) -> tuple[bytes, NodeStat]:
            if self.forbidden and path.startswith("/brokers/topics/t"):
                raise NoAuth(path)
            return await super().get(path, watch=watch)

    tree = Guarded({"/brokers/topics/t/0": b"2", "/brokers/topics/u/0": b"1"})
    taking = reader(tree)
    whole = {"t": {0: range(2)}, "u": {0: range(1)}}
    topics = frozenset({"t", "u"})
    with structlog.testing.capture_logs() as logs:
        for forbidden, times in ((False, 1), (True, 3), (False, 1), (True, 1)):
            tree.forbidden = forbidden
            for _ in range(times):
                assert (await taking.read("g_m", take(topics, list_owners=True))).topics == whole
    assert [(each["event"], each["node"], each["topic"]) for each in logs] == [("topic_not_readable", "t", "t")] * 2
    tree.forbidden = True
    assert (await reader(tree).read("g_m", take(topics))).topics == {"u": {0: range(1)}}  # never read before


@pytest.mark.parametrize("failure", [NotConnected("away"), ConnectionLost("away"), SessionChanged(1, 2)])
async def test_lost_connection_fails_the_snapshot(failure: Exception) -> None:
    """The topics are not taken to be as they were."""

    class Lost(Tree):
        async def get(self, path: str, *, watch: bool = False) -> tuple[bytes, NodeStat]:
            if path.startswith("/brokers"):
                raise failure
            return await super().get(path, watch=watch)

    with pytest.raises(type(failure)):
        await reader(Lost({"/brokers/topics/t/0": b"2"})).read("g_m", take())


@pytest.mark.parametrize("name", ["bell{}\a", "huge-{}"])
async def test_remembers_a_limited_number_of_complaints(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    monkeypatch.setattr(module, "MAX_MEMBER_BYTES", 1000)
    taking = reader(Tree({f"/consumers/g/ids/{name.format(number)}": bytes(1001) for number in range(4)}))
    with structlog.testing.capture_logs() as logs:
        await taking.read("g_m", take())
        assert len(logs) == 4
        await taking.read("g_m", take())
    assert len(logs) > 4  # those that were forgotten are reported again


async def test_reports_topic_nodes_that_are_not_numbers_of_partitions() -> None:
    tree = Tree({"/brokers/topics/t/0": b"2", "/brokers/topics/t/1": b"many", "/brokers/topics/t/x": b"2"})
    with structlog.testing.capture_logs() as logs:
        assert (await reader(tree).read("g_m", take())).topics == {"t": {0: range(2)}}
    assert [(each["event"], each["node"], each["topic"]) for each in logs] == [
        ("topic_node_unreadable", "t/1", "t"),
        ("topic_node_unreadable", "t/x", "t"),
    ]


async def test_reports_owner_nodes_of_other_names() -> None:
    tree = Tree({"/brokers/topics/t/0": b"2", "/consumers/g/owners/t/0-1": b"x", "/consumers/g/owners/t/junk": b"x"})
    with structlog.testing.capture_logs() as logs:
        found = await reader(tree).read("g_m", take(list_owners=True))
    assert found.claimed == frozenset({TopicPartition("t", 0, 1)})
    assert [(each["event"], each["node"], each["topic"]) for each in logs] == [("owner_node_unreadable", "t/junk", "t")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("host:0b7e1f6c-3a52-4d7b-9c1e-5f0a2b3c4d5e", b"t"),
        ("some id", b'{ "t": 1 }'),  # known by its owner node alone
    ],
)
async def test_logs_once_which_members_follow_another_rule(name: str, text: bytes) -> None:
    class LiveTree(Tree):
        async def get(self, path: str, *, watch: bool = False) -> tuple[bytes, NodeStat]:
            data, stat = await super().get(path, watch=watch)
            return data, stat._replace(ephemeral_owner=7)

    tree = LiveTree(
        {
            f"/consumers/g/ids/{name}": text,
            "/consumers/g/ids/g_a": b'{ "t": 1 }',
            "/consumers/g/owners/t/0-0": name.encode(),
            "/consumers/g/owners/t/0-1": b"g_a-0",
            "/brokers/topics/t/0": b"2",
        }
    )
    taking = reader(tree)
    wanted = frozenset({TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)})
    with structlog.testing.capture_logs() as logs:
        await taking.read("g_m", TakeSnapshot(1, 1, frozenset({"t"}), wanted, False))
        await taking.read("g_m", TakeSnapshot(1, 1, frozenset({"t"}), wanted, True))
    (warned,) = (each for each in logs if each["event"] == "other_assignment_rule_found")
    assert (warned["group"], warned["members"], warned["log_level"]) == ("g", [name], "warning")
