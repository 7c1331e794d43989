"""The parts of `make torture` that decide: schedule, explained repetitions, figures that are violations."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditRecord, AuditResult
from consumerd.demo.ledger import digest
from consumerd.testing.fault_proxy import Direction, FaultProxy
from consumerd.wire.v07 import encode_message_set
from consumerd.wire.v08.subscription import MemberAssignment
from tests.support.awakenings import Caught
from tests.torture.account import Account, classify, explains, ledger_of
from tests.torture.groups import BrokerGroup, ZooKeeperGroup
from tests.torture.play import Cause, Player, Timed
from tests.torture.report import Report
from tests.torture.run import choose_coordination
from tests.torture.schedule import (
    CLUSTER,
    ENSEMBLE,
    KINDS,
    MEMBER_LINKS,
    SECURED,
    SLOW_DISKS,
    ZOOKEEPER,
    ZOOKEEPER_LINKS,
    Size,
    episodes,
    possible_kinds,
)
from tests.torture.sinks import SinkCount, Sinks
from tests.torture.stage import COMMIT_INTERVAL, SESSION_TIMEOUT, LinkBundle, Log
from tests.torture.stage_v07 import read_segments

HERE = TopicPartition("events", 0, 0)
DISKS = ("member", "broker", "zookeeper")
SIZE = Size(
    3, servers=3, session_timeout=SESSION_TIMEOUT, brokers=3, slow_disks=DISKS, little_memory=True,
    zookeeper_links=True, secured=True,
)  # fmt: skip


def test_seed_repeats_the_schedule() -> None:
    first, again, other = (list(itertools.islice(episodes(seed, SIZE), 50)) for seed in (7, 7, 8))
    assert first == again != other


def test_schedule_has_every_kind_and_the_player_performs_it() -> None:
    kinds = {fault.kind for each in itertools.islice(episodes(1, SIZE), 100) for fault in each.faults}
    assert kinds == set(KINDS)
    assert all(callable(getattr(Player, f"_{kind}")) for kind in kinds)


def test_schedule_of_one_server_and_no_full_disk_leaves_those_kinds_out() -> None:
    kinds = possible_kinds(Size(3, 1, SESSION_TIMEOUT, full_disks=False))
    left_out = {*ENSEMBLE, *CLUSTER, *SLOW_DISKS, *ZOOKEEPER_LINKS, *SECURED, "disk_full", "member_memory"}
    assert set(KINDS) - set(kinds) == left_out


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"servers": 0}, ZOOKEEPER),
        ({"zookeeper_links": False}, ZOOKEEPER_LINKS),
        ({"brokers": 1}, CLUSTER),
        ({"member_links": False}, MEMBER_LINKS),
        ({"secured": False}, SECURED),
        ({"slow_disks": ()}, SLOW_DISKS),
        ({"slow_disks": ("member",)}, SLOW_DISKS - {"member_disk_slow"}),
    ],
)
def test_schedule_leaves_out_what_a_size_cannot_suffer(change: dict[str, Any], kinds: set[str]) -> None:
    assert set(possible_kinds(SIZE)) - set(possible_kinds(replace(SIZE, **change))) == kinds


def test_schedule_changes_the_password_without_another_fault() -> None:
    found = [{fault.kind for fault in each.faults} for each in itertools.islice(episodes(4, SIZE), 300)]
    assert {"broker_password"} in found
    assert all(len(kinds) == 1 for kinds in found if "broker_password" in kinds)


def test_leader_is_down_for_longer_than_its_session() -> None:
    faults = [fault for each in itertools.islice(episodes(3, SIZE), 200) for fault in each.faults]
    downs = [fault.seconds for fault in faults if fault.kind == "broker_leader_kill"]
    assert min(downs) > SESSION_TIMEOUT


def test_schedule_of_impossible_kinds_is_refused() -> None:
    with pytest.raises(ValueError, match="zookeeper_kill"):
        next(episodes(1, replace(SIZE, servers=0, kinds=("zookeeper_kill",))))


@pytest.mark.parametrize(
    ("brokers", "asked", "chosen"),
    [
        (None, None, "zookeeper"),
        ("0.8.2.2", None, "zookeeper"),
        ("2.8.2", None, "zookeeper"),
        ("2.8.2", "kafka", "kafka"),
        ("3.9.1", None, "kafka"),
        ("3.9.1", "zookeeper", "zookeeper"),
        ("4.1.0", None, "kafka"),
    ],
)
def test_coordination_follows_the_release(brokers: str | None, asked: Any, chosen: str) -> None:
    assert choose_coordination(brokers, asked) == chosen


@pytest.mark.parametrize(
    ("brokers", "asked", "words"),
    [
        (None, "kafka", "own broker does not coordinate"),
        ("0.8.2.2", "kafka", "those of 0.9 and later"),
        ("4.1.0", "zookeeper", "no ZooKeeper"),
    ],
)
def test_coordination_that_the_brokers_lack_is_refused(brokers: str | None, asked: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        choose_coordination(brokers, asked)


@pytest.mark.parametrize("seed", range(20))
def test_schedule_leaves_a_member_and_never_exceeds_the_size(seed: int) -> None:
    running = SIZE.members
    found = [*itertools.islice(episodes(seed, SIZE), 200)]
    assert len(found) == 200
    for episode in found:
        for fault in episode.faults:
            running += {"member_join": 1, "member_kill": -1, "member_stop": -1}.get(fault.kind, 0)
            assert 1 <= running <= SIZE.members


def test_faults_last_both_shorter_and_longer_than_the_session() -> None:
    freezes = [
        fault.seconds
        for episode in itertools.islice(episodes(3, SIZE), 300)
        for fault in episode.faults
        if fault.kind == "member_freeze"
    ]
    assert min(freezes) < SESSION_TIMEOUT < max(freezes)


def test_kill_explains_what_its_member_had_since_the_last_commit() -> None:
    kill = Cause("a", 100.0, 100.0, "member_kill")
    assert explains(kill, "a", 100.0 - COMMIT_INTERVAL, 105.0)
    assert not explains(kill, "a", 90.0, 105.0)  # committed long before
    assert not explains(kill, "b", 99.9, 105.0)  # another member
    assert not explains(kill, "a", 99.5, 99.9)  # came again before the fault
    assert explains(kill._replace(member=None), "b", 99.9, 105.0)


def account(**audited: Any) -> Account:
    return Account(10, 10, 10, 0, 0, AuditResult(produced=10, distinct=10, **audited))


def test_repetition_without_a_cause_is_beyond_the_window() -> None:
    message = (0, 0, digest(b"x"))
    records = [
        AuditRecord(at, member, 0, HERE, False, [message]) for at, member in ((1.0, "a"), (2.0, "b"), (50.0, "a"))
    ]
    counted = account()
    classify(records, [Cause("a", 1.5, 1.5, "member_kill")], Caught([]), counted)
    assert (counted.repeated_within, counted.repeated_beyond) == (1, 1)
    assert "b had it at 2.00, a again at 50.00" in counted.findings[0]


def test_ledger_is_that_of_the_log_without_a_torn_end(tmp_path: Path) -> None:
    folder = tmp_path / "events-0"
    folder.mkdir()
    whole = encode_message_set([b"1", b"2"])
    (folder / "00000000000000000000.kafka").write_bytes(whole + encode_message_set([b"3"])[:-1])
    ledger, payloads = ledger_of(read_segments(tmp_path, [HERE]))
    assert payloads == [b"1", b"2"]
    assert ledger.partition(HERE).held == ledger.partition(HERE).sent == 2


def report(counted: Account, timed: tuple[Timed, ...] = (), **changes: Any) -> Report:
    player: Any = SimpleNamespace(kinds=Counter(member_kill=1), skipped=0, findings=[], timed=list(timed))
    figures: dict[str, Any] = {"set_back": [], "shares": [4, 4], "load": "1.0", "brokers": "own", **changes}
    return Report(1, 60.0, 8, 3, counted, player, **figures)


def test_run_without_faults_in_its_figures_has_no_violation() -> None:
    fine = report(account(duplicated=3), (Timed("member_stop", 1.9), Timed("member_kill", SESSION_TIMEOUT + 2.9)))
    assert fine.violations == []
    assert "VIOLATION" not in fine.as_table()
    assert fine.as_json()["ownerless_after_stop"] == 1.9


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (report(account(lost=1)), "1 messages were never delivered"),
        (report(account(overlapping=1)), "after another one had claimed"),
        (report(account(out_of_order=1)), "came out of order"),
        (report(account(), (Timed("member_stop", 2.1),)), "no owner for 2.10 s after member_stop"),
        (report(account(), (Timed("member_kill", SESSION_TIMEOUT + 3.1),)), "after member_kill"),
        (report(account(), set_back=["the offset of 0-1 went from 5 to 3"]), "went from 5 to 3"),
        (report(account(), shares=[2, 6]), "not equal"),
    ],
)
def test_each_broken_promise_is_a_violation(bad: Report, words: str) -> None:
    assert any(words in text for text in bad.violations)
    assert "VIOLATION" in bad.as_table()


def test_sink_that_is_not_exact_is_a_violation() -> None:
    exact = report(account(), sinks={"files": SinkCount(rows=10)})
    assert exact.violations == []
    assert "rows 10, missing 0, twice 0, wrong 0" in exact.as_table()
    for bad in (SinkCount(9, missing=1), SinkCount(11, twice=1), SinkCount(11, wrong=1)):
        [text] = report(account(), sinks={"files": bad}).broken
        assert "the sink files is not exact" in text


def test_files_of_a_sink_are_compared_with_the_log(tmp_path: Path) -> None:
    sinks = Sinks(tmp_path)
    places = [HERE, TopicPartition.numbered("events", 1)]
    log: Log = {places[0]: [(0, [b"a", b"b"]), (50, [b"\xff"])], places[1]: [(0, [b"c"])]}
    lines = [
        b'{"topic":"events","broker":0,"partition":0,"offset":0,"index":0,"payload":"a"}\n',
        b'{"topic":"events","broker":0,"partition":0,"offset":0,"index":1,"payload":"b"}\n',
        b'{"topic":"events","broker":0,"partition":0,"offset":50,"index":0,"payload_base64":"/w=="}\n',
        b'{"topic":"events","broker":null,"partition":1,"offset":0,"index":0,"payload":"c"}\n',
    ]
    (tmp_path / "0-50.ndjson").write_bytes(b"".join(lines[:-1]))
    assert asyncio.run(sinks.count(log)) == {"files": SinkCount(rows=3, missing=1)}
    (tmp_path / "50-99.ndjson").write_bytes(lines[-1])
    assert asyncio.run(sinks.wait_exact(log, 60.0))["files"].exact
    (tmp_path / "99-100.ndjson").write_bytes(lines[0])
    assert asyncio.run(sinks.wait_exact(log, 60.0)) == {"files": SinkCount(rows=5, twice=1)}


def test_repetition_beyond_the_window_is_a_violation_about_seconds() -> None:
    counted = account(duplicated=2)
    counted.repeated_beyond = 2
    assert report(counted).broken == []
    assert report(counted).violations == ["2 messages came again without a fault that explains it"]


def test_message_that_the_log_holds_twice_is_a_violation() -> None:
    counted = account()
    counted.stored_twice = 3
    assert report(counted).violations == ["3 messages are in the broker's log more than once"]


def test_broker_fault_explains_repetitions_only_where_the_broker_coordinates() -> None:
    nothing: Any = None
    in_zookeeper, by_broker = ZooKeeperGroup(nothing, [HERE]), BrokerGroup(nothing, [HERE])
    kinds = [kind for kind in KINDS if kind.startswith("broker")]
    assert not any(map(in_zookeeper.suffers_from, kinds))
    assert all(map(by_broker.suffers_from, kinds))
    assert in_zookeeper.suffers_from("member_kill")
    assert in_zookeeper.suffers_from("zookeeper_leader_freeze")


def _assignment(numbers: list[int]) -> bytes:
    return MemberAssignment((("events", tuple(numbers)),)).encode() if numbers else b""


class Coordinator:
    """A client whose coordinator describes a group of these members: client id and assigned partitions of `events`."""

    def __init__(self, *members: tuple[str, list[int]]) -> None:
        self._members = [{"client_id": name, "member_assignment": _assignment(numbers)} for name, numbers in members]

    async def call_coordinator(self, *_: object) -> dict[str, Any]:
        return {"groups": [{"error_code": 0, "members": self._members}]}


def test_group_of_a_broker_is_seen_as_its_coordinator_describes_it() -> None:
    places = [TopicPartition.numbered("events", number) for number in range(3)]
    client: Any = Coordinator(("member-1", [0, 2]), ("member-0", []), ("member-1", [1]))
    group = BrokerGroup(client, places)
    seen = asyncio.run(group.look())
    assert seen.ids == ("member-0", "member-1", "member-1")  # one joined again before its former self was removed
    assert seen.owned == {"0", "1", "2"}
    assert asyncio.run(group.shares()) == [1, 2]


def test_log_without_a_confirmed_message_is_read_again() -> None:
    counted = account()
    assert counted.complete
    counted.not_stored = 1
    assert not counted.complete


def test_bundled_links_suffer_as_one() -> None:
    links: list[Any] = [FaultProxy("127.0.0.1", 1, port=2), FaultProxy("127.0.0.1", 1, port=3)]
    bundle = LinkBundle(links)
    bundle.delay(0.5)
    bundle.stall(Direction.TO_CLIENT)
    assert [link.latency for link in links] == [0.5, 0.5]
    bundle.heal()
    assert [link.latency for link in links] == [0.0, 0.0]


def test_confirmed_message_that_is_not_in_the_log_is_lost() -> None:
    counted = account()
    counted.not_stored = 1
    assert counted.lost == 1
    assert report(counted).violations == ["1 confirmed messages are not in the broker's log"]
