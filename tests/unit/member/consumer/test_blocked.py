"""Claims that wait for another owner: what is known of them, and how often they are logged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.metrics import catalogue
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import NodeStat
from consumerd.member.consumer.blocked import BlockedClaims, Holder, holder_of
from consumerd.net.cluster.reading import ZNode
from consumerd.service.config.model import parse
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.readings import read
from consumerd.service.daemon.status import read_status
from consumerd.service.daemon.status_page import render
from consumerd.testing.clock import FakeClock
from consumerd.wire.registry.paths import owner_path

A, B, C = (TopicPartition("t", 0, number) for number in range(3))
OTHER = Holder("g_other", 0x1F)


def logged(claims: BlockedClaims, seconds: list[float], holders: dict[TopicPartition, Holder]) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        for now in seconds:
            claims.answered([], holders, holders.__getitem__, now)
    return [{key: value for key, value in entry.items() if key not in ("log_level", "group")} for entry in logs]


def test_logs_a_claim_after_ten_seconds_and_then_less_and_less_often() -> None:
    lines = logged(BlockedClaims("g"), [5.0 + 2.0 * number for number in range(60)], {A: OTHER})
    assert [line["seconds"] for line in lines] == [10.0, 20.0, 40.0, 80.0]
    assert lines[0] == {
        "event": "claim_blocked",
        "partition": "t/0-0",
        "more": 0,
        "owner": "g_other",
        "session": "0x1f",
        "seconds": 10.0,
    }


def test_logs_one_line_for_each_owner() -> None:
    """A dead member may hold thousands of partitions."""
    lines = logged(BlockedClaims("g"), [0.0, 10.0], {A: OTHER, B: Holder(None, None), C: OTHER})
    assert [(line["partition"], line["more"], line["owner"], line["session"]) for line in lines] == [
        ("t/0-0", 1, "g_other", "0x1f"),
        ("t/0-1", 0, None, None),
    ]


def test_says_that_zookeeper_does_not_permit_the_claim() -> None:
    denied = Holder(None, None, "ZooKeeper denies access to /consumers/g/owners/t")
    lines = logged(BlockedClaims("g"), [0.0, 10.0], {A: denied, B: denied, C: OTHER})
    assert [(line["partition"], line["more"], line["owner"], line.get("reason")) for line in lines] == [
        ("t/0-0", 1, None, denied.denied),
        (str(C), 0, "g_other", None),
    ]


def test_claim_that_was_granted_or_is_not_made_any_more_is_forgotten() -> None:
    claims = BlockedClaims("g")
    claims.answered([], [A, B, C], lambda _: OTHER, 0.0)
    claims.answered([A], [B, C], lambda _: OTHER, 9.0)
    claims.keep([A, C])
    assert [*claims.by_partition] == [C]
    with capture_logs() as logs:
        claims.answered([], [A, C], lambda _: OTHER, 12.0)
    assert [(each["partition"], each["more"]) for each in logs] == [("t/0-2", 0)]


def test_keeps_the_owner_that_it_knew() -> None:
    """The node was read, and its watch has fired since: the next answer is on its way."""
    claims = BlockedClaims("g")
    claims.answered([], [A], lambda _: OTHER, 0.0)
    claims.answered([], [A], lambda _: holder_of(None), 1.0)
    assert claims.by_partition[A].holder == OTHER


def test_logs_why_a_partition_waits_that_no_owner_blocks() -> None:
    claims = BlockedClaims("g")
    claims.answered([], [A], lambda _: OTHER, 0.0)
    with capture_logs() as logs:
        for second in range(60):
            claims.unclaimed(dict.fromkeys((A, B, C), "it waits" if second < 15 else "it waits still"), float(second))
        claims.unclaimed({}, 60.0)
        claims.unclaimed({B: "it waits again"}, 61.0)
    assert [(each["reason"], each["seconds"]) for each in logs] == [
        ("it waits", 10.0), ("it waits still", 20.0), ("it waits still", 40.0)
    ]  # fmt: skip
    assert logs[0] == {
        "event": "partition_not_claimed",
        "log_level": "warning",
        "group": "g",
        "partition": "t/0-1",
        "more": 1,
        "reason": "it waits",
        "seconds": 10.0,
    }


async def test_status_and_log_say_why_a_partition_is_not_claimed(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumerd.member.consumer.blocked.FIRST_AFTER", 0.0)
    group.topic("t", 2)
    peer = group.zookeeper.session()
    await peer.start()
    group.zookeeper.put(owner_path("g", B), b"g_other-0", session_id=peer.session_id)
    monitor = Monitor(parse({"group": {"id": "g", "topics": {"t": 1}}}, "test", environment=False), FakeClock())
    with capture_logs() as logs:
        member = await group.member()
        monitor.main.watch(member.consumer)
        await asyncio.wait_for(member.consumer.ready.wait(), 5.0)
    (line,) = [each for each in logs if each["event"] == "partition_not_claimed"]
    assert (line["partition"], line["more"], line["reason"]) == ("t/0-0", 1, "its owner node is being created")
    group.zookeeper.disconnect(member.zk)
    await group.until(lambda: member.consumer.blocked is None)
    status = await read_status(monitor)
    rows = {row["partition"]: (row["state"], row["not_consumed_because"]) for row in status["partitions"]}
    assert rows["0-1"] == ("claiming", "there is no connection to ZooKeeper")
    assert rows["0-0"][1] is None
    assert "claiming: there is no connection to ZooKeeper" in render(status, word=None).decode()
    group.zookeeper.reconnect(member.zk)
    await peer.close()


@pytest.mark.parametrize(
    ("data", "owner"), [(b"g_b-1-0", "g_b-1"), (b"kazoo", "kazoo"), (b"\xff", "\ufffd"), (b"", "")]
)
def test_names_owners_in_any_form(data: bytes, owner: str) -> None:
    assert holder_of(ZNode(data, NodeStat(0, 7, 0, 1, 0, 0))) == Holder(owner, 7)


async def test_member_tells_what_it_owns_and_what_waits(group: Any) -> None:
    """`rebalanced` names what is owned, once that is the assignment; the claim that waits is shown meanwhile."""
    group.topic("t", 2)
    peer = group.zookeeper.session()
    await peer.start()
    group.zookeeper.put(owner_path("g", B), b"g_other-0", session_id=peer.session_id)
    monitor = Monitor(parse({"group": {"id": "g", "topics": {"t": 1}}}, "test", environment=False), FakeClock())
    with capture_logs() as logs:
        member = await group.member()
        monitor.main.watch(member.consumer)
        assert catalogue.BLOCKED not in {each.metric for each in read(monitor)}
        await asyncio.wait_for(member.consumer.ready.wait(), 5.0)
        assert member.owned == [A]
        assert {each: claim.holder for each, claim in member.consumer.blocked.items()} == {
            B: Holder("g_other", peer.session_id)
        }
        assert [each.value for each in read(monitor) if each.metric is catalogue.BLOCKED] == [1]
        status = await read_status(monitor)
        (row,) = [each for each in status["partitions"] if each["state"] == "blocked"]
        assert (row["partition"], row["blocked"]["owner"]) == ("0-1", "g_other")
        assert row["blocked"]["session"] == f"{peer.session_id:#x}"
        assert f"by owner <code>g_other</code>, session {peer.session_id:#x}" in render(status, word=None).decode()
        assert [each for each in logs if each["event"] == "rebalanced"] == []
        group.zookeeper.remove(owner_path("g", B))
        await group.until(lambda: member.consumer.settled)
    assert [each["partitions"] for each in logs if each["event"] == "rebalanced"] == [["t/0-0", "t/0-1"]]
    assert member.consumer.blocked == {}
    await peer.close()
