"""Every broken state of a group of Kafka 0.8 or later, made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace as replaced

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Operation
from consumerd.group.assignors import roundrobin_owners
from consumerd.net.cluster.groups import GroupView, LiveMember
from consumerd.net.cluster.view_v08 import PartitionView
from consumerd.operate.admin.diagnosis import diagnose_group, diagnose_once
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.editing import in_the_way
from consumerd.operate.admin.errors import ChangedMeanwhileError
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind, NudgeGroup, OffsetReset, Removal
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.mending import describe_step, steps_for, take_step
from consumerd.operate.admin.v08.group_source import ZooKeeperGroups
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot
from consumerd.operate.admin.v08.transactions import OpenProducer, OpenTransaction, TransactionOwner
from consumerd.operate.admin.verification import differences
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.nudge import NUDGE_VALUE_V08
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.registry.v08.subscription import parse_subscription_v08

A, B, DEAD = 0xA, 0xB, 0xD
ID_A, ID_B = "g_host-a-1353495600000-00c0ffee", "g_b"
T = [TopicPartition.numbered("t", number) for number in range(4)]
STATE = '{"controller_epoch":1,"leader":%d,"version":1,"leader_epoch":0,"isr":[0]}'
MEMBER = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
OWNERS = "/consumers/g/owners/t"


def put_topic(zookeeper: MemoryZooKeeper, topic: str, leaders: list[int]) -> None:
    partitions = {str(number): [0] for number in range(len(leaders))}
    zookeeper.put(f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": partitions}).encode())
    for number, leader in enumerate(leaders):
        zookeeper.put(f"/brokers/topics/{topic}/partitions/{number}/state", (STATE % leader).encode())


def replace(zookeeper: MemoryZooKeeper, path: str, data: bytes, session_id: int = 0) -> None:
    zookeeper.remove(path)
    zookeeper.put(path, data, session_id=session_id)


def deal(zookeeper: MemoryZooKeeper, owners: dict[TopicPartition, tuple[str, int]]) -> None:
    for partition, (name, stream) in owners.items():
        path = f"/consumers/g/owners/{partition.topic}/{partition.name}"
        replace(zookeeper, path, f"{name}-{stream}".encode(), A if name == ID_A else B)


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    """A healthy group: four partitions, two members with two each, assigned by range."""
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":1}')
    put_topic(zookeeper, "t", [0, 0, 0, 0])
    zookeeper.put(f"/consumers/g/ids/{ID_A}", MEMBER, session_id=A)
    zookeeper.put(f"/consumers/g/ids/{ID_B}", MEMBER, session_id=B)
    deal(zookeeper, {one: ((ID_B, 0), (ID_A, 0))[one.partition // 2] for one in T})
    for one in T:
        zookeeper.put(f"/consumers/g/offsets/t/{one.name}", b"10")
    return zookeeper


async def look(zookeeper: MemoryZooKeeper, at: float = 0.0, **ranges: LogRange | LookupFailure) -> DiagnosisInput:
    """With logs of 0 to 100; `ranges`: those of others, by the number of the partition (`p0`)."""
    async with zookeeper.session() as zk:
        found = await ZooKeeperGroups(zk, V08BrokerLogs(None, "away")).diagnosis_input("g")
    told = {one: ranges.get(f"p{one.partition}", LogRange(0, 100)) for one in found.ranges}
    return replaced(found, ranges=told, at=at)


async def findings(zookeeper: MemoryZooKeeper) -> list[GroupFinding]:
    return diagnose_group(await look(zookeeper))


def told(found: list[GroupFinding]) -> list[tuple[GroupFindingKind, str]]:
    return [(finding.kind, finding.subject) for finding in found]


async def test_reports_nothing_for_a_healthy_group_of_either_strategy(zookeeper: MemoryZooKeeper) -> None:
    assert await findings(zookeeper) == []
    before = await look(zookeeper)
    members = {ID_A: StaticSubscription({"t": 1}), ID_B: StaticSubscription({"t": 1})}
    dealt = roundrobin_owners({"t": range(4)}, members)
    deal(zookeeper, dealt)
    assert await findings(zookeeper) == []
    # If one owner is missing, the others still show the rule.
    snapshot = before.snapshot
    assert dealt != snapshot.view.owners
    missing = next(one for one in T if dealt[one][0] == ID_A)
    zookeeper.remove(f"{OWNERS}/{missing.name}")
    gave_up, unowned = await findings(zookeeper)
    assert told([gave_up, unowned]) == [(GroupFindingKind.GAVE_UP, ID_A), (GroupFindingKind.UNOWNED, str(missing))]
    assert "owns 1 of the 2 partitions that the rule (roundrobin) assigns to it" in gave_up.says
    assert "the process on host-a that started at 2012-11-21 11:00:00 UTC" in gave_up.remedy
    assert unowned.fix == NudgeGroup()


async def test_reports_owners_that_fit_no_strategy(zookeeper: MemoryZooKeeper) -> None:
    deal(zookeeper, {T[0]: (ID_A, 0)})
    (found,) = await findings(zookeeper)
    assert told([found]) == [(GroupFindingKind.MISPLACED, "t/0")]
    assert "the rule (range) assigns it to g_b-0" in found.says
    assert "differ in partition.assignment.strategy" in found.says
    persistent_findings = diagnose_group(await look(zookeeper), await look(zookeeper))
    assert [each for each in persistent_findings if not each.is_notice] == [found]


async def test_reports_dead_and_unexpected_owners(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, f"{OWNERS}/0", b"g_b-0")
    replace(zookeeper, f"{OWNERS}/1", b"rubbish", B)
    replace(zookeeper, f"{OWNERS}/2", b"g_gone-0", DEAD)
    replace(zookeeper, f"{OWNERS}/3", f"{ID_A}-0".encode(), DEAD)
    found = await findings(zookeeper)
    assert told(found) == [
        (GroupFindingKind.STALE_OWNER, "t/0"),
        (GroupFindingKind.BROKEN_OWNER, "t/1"),
        (GroupFindingKind.ZOMBIE_OWNER, "t/2"),
        (GroupFindingKind.FOREIGN_SESSION, "t/3"),
    ]
    assert [isinstance(each.fix, Removal) and each.fix.safe for each in found] == [True, False, False, False]


@pytest.mark.parametrize(
    ("data", "kind", "word"),
    [
        (b"{", GroupFindingKind.BROKEN_ID, "none of them gets a partition"),
        (b'{"version":1,"subscription":{"t":1}}', GroupFindingKind.BROKEN_ID, "pattern"),
        (b'{ "t": 1 }', GroupFindingKind.MIXED_DIALECTS, "registered in the dialect of Kafka 0.7"),
        (b"*1*t", GroupFindingKind.MIXED_DIALECTS, "members of 0.8 and later cannot read it"),
    ],
)
async def test_reports_ids_that_break_every_peer(
    zookeeper: MemoryZooKeeper, data: bytes, kind: GroupFindingKind, word: str
) -> None:
    zookeeper.put("/consumers/g/ids/g_c", data, session_id=DEAD)
    (found,) = await findings(zookeeper)
    assert told([found]) == [(kind, "g_c")]
    assert word in found.says
    assert isinstance(found.fix, Removal)
    assert not found.fix.safe


async def test_reports_an_id_that_outlives_its_process(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, f"/consumers/g/ids/{ID_A}", MEMBER)
    zookeeper.remove(f"{OWNERS}/2")
    zookeeper.remove(f"{OWNERS}/3")
    (found,) = await findings(zookeeper)
    assert told([found]) == [(GroupFindingKind.STALE_ID, ID_A)]
    assert "assigns 2 partitions to it (t/2, t/3)" in found.says


async def test_reports_offsets_and_leaders(zookeeper: MemoryZooKeeper) -> None:
    put_topic(zookeeper, "t", [0, 0, -1, 0])
    zookeeper.put("/consumers/g/offsets/t/0", b"101")
    zookeeper.put("/consumers/g/offsets/t/1", b"many")
    zookeeper.put("/consumers/g/offsets/t/7", b"5")
    zookeeper.put("/consumers/g/offsets/gone/0", b"5")
    zookeeper.put("/consumers/g/offsets/t/0-3", b"5")
    zookeeper.put("/consumers/g/offsets/t/x", b"5")
    zookeeper.put("/consumers/g/owner/t/0", b"5")
    seen = await look(zookeeper, p2=LookupFailure("the partition has no leader"), p3=LogRange(11, 100))
    found = diagnose_once(seen)
    assert told(found) == [
        (GroupFindingKind.BROKEN_OFFSET, "t/1"),
        (GroupFindingKind.NO_PARTITION, "gone/0"),
        (GroupFindingKind.OUT_OF_RANGE, "t/0"),
        (GroupFindingKind.OUT_OF_RANGE, "t/3"),
        (GroupFindingKind.NO_PARTITION, "t/7"),
        (GroupFindingKind.NO_LEADER, "t/2"),
        (GroupFindingKind.MIXED_DIALECTS, "/consumers/g/offsets/t/0-3"),
        (GroupFindingKind.FOREIGN_NODE, "/consumers/g/offsets/t/x"),
        (GroupFindingKind.FOREIGN_NODE, "/consumers/g/owner"),
    ]
    says = {finding.subject: finding.says for finding in found}
    assert "no such topic" in says["gone/0"]
    assert "only 4 partitions" in says["t/7"]
    assert "1 messages beyond the log end 100" in says["t/0"]
    assert "1 messages before the log start 11" in says["t/3"]
    assert "auto.offset.reset" in says["t/3"]
    assert "on brokers 0" in says["t/2"]
    assert "Kafka 0.7 names" in says["/consumers/g/offsets/t/0-3"]
    silent = replaced(
        seen, ranges=dict.fromkeys(seen.ranges, LookupFailure("it is asleep")), unknown=("a is not known",)
    )
    found = diagnose_once(silent)
    assert (GroupFindingKind.SILENT_BROKER, "brokers") in told(found)
    assert "3 partitions could not be checked: it is asleep" in next(
        each.says for each in found if each.kind is GroupFindingKind.SILENT_BROKER
    )
    assert [each.says for each in found if each.kind is GroupFindingKind.NOT_CHECKED] == ["A is not known."]


async def test_does_not_report_a_finished_election(zookeeper: MemoryZooKeeper) -> None:
    healthy = await look(zookeeper)
    put_topic(zookeeper, "t", [0, 0, -1, 0])
    without = await look(zookeeper)
    assert [each for each in diagnose_group(healthy, without) if not each.is_notice] == []
    assert [each for each in told(diagnose_group(without, without)) if each[0] is GroupFindingKind.NO_LEADER] == [
        (GroupFindingKind.NO_LEADER, "t/2")
    ]


async def test_reports_progress_and_offsets_in_two_stores(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.put("/consumers/g/offsets/t/3", b"100")
    before = await look(zookeeper, 5.0)
    zookeeper.put("/consumers/g/offsets/t/1", b"20")
    grown = LogRange(0, 150)
    after = await look(zookeeper, 20.0, p0=grown, p1=grown, p2=grown)
    holes = diagnose_group(before, after)
    assert told(holes) == [(GroupFindingKind.BLACK_HOLE, "t/0"), (GroupFindingKind.BLACK_HOLE, "t/2")]
    assert "stays at 10 while 50 messages were written in 15 s; the lag is 140 messages" in holes[0].says
    assert "a nudge does not help" in holes[0].remedy
    still = await look(zookeeper, 20.0)
    assert told(diagnose_group(before, still)) == [
        (GroupFindingKind.STANDING_STILL, "t/0"),
        (GroupFindingKind.STANDING_STILL, "t/2"),
    ]

    # An offset that moves in the broker is moving; a difference within one interval is not a finding.
    before, after = replaced(before, kept={T[0]: 12, T[1]: 8}), replaced(after, kept={T[0]: 60, T[1]: 18})
    found = diagnose_group(before, after)
    assert told(found) == [(GroupFindingKind.STORES_DIFFER, "t/0"), (GroupFindingKind.BLACK_HOLE, "t/2")]
    assert "no member commits to ZooKeeper" in found[0].says
    behind = replaced(after, kept={T[1]: 9})
    (differs,) = [each for each in diagnose_group(before, behind) if each.kind is GroupFindingKind.STORES_DIFFER]
    assert (differs.subject, differs.is_notice) == ("t/1", True)
    assert "ZooKeeper has the offset 20, and brokers have 9, 11 messages apart" in differs.says
    assert "no member commits to brokers" in differs.says
    assert told(diagnose_group(behind)) == [(GroupFindingKind.STORES_DIFFER, "t/1")]
    # The offset that is history may fall out of the log.
    cut = dict.fromkeys(T, LogRange(15, 150))
    found = diagnose_once(replaced(still, ranges=cut, kept={T[0]: 20}))
    assert told(found) == [(GroupFindingKind.OUT_OF_RANGE, "t/2")]


async def test_nudges_in_the_dialect_of_the_group(zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(zookeeper, f"{OWNERS}/0", b"g_b-0")
    sent: list[Operation] = []
    async with zookeeper.session() as zk:
        multi = zk.multi

        async def noted(operations: Sequence[Operation]) -> None:
            sent.extend(operations)
            await multi(operations)

        monkeypatch.setattr(zk, "multi", noted)
        found = await ZooKeeperGroups(zk, V08BrokerLogs(None)).diagnosis_input("g")
        assert found.snapshot.dialect is Dialect.V08
        steps = steps_for(found.snapshot, diagnose_once(found), force=False)
        assert [isinstance(step, NudgeGroup) or step.path for step in steps] == [f"{OWNERS}/0", True]
        for step in steps:
            await take_step(zk, "g", step, name="g_doctor", dialect=found.snapshot.dialect)
    assert f"{OWNERS}/0" not in zookeeper.dump()
    assert [getattr(each, "data", None) for each in sent] == [NUDGE_VALUE_V08, None]
    assert parse_subscription_v08(NUDGE_VALUE_V08) == StaticSubscription({})


# -- where a broker coordinates


def at_broker(state: str = "Stable", owned: int = 4, offset: int = 10) -> DiagnosisInput:
    view = GroupView("team/g")
    if state != "Empty":
        rebalancing = state != "Stable"
        view.members["c-1"] = LiveMember("t", None if rebalancing else StaticSubscription({"t": 1}))
    view.owners = {} if state != "Stable" else dict.fromkeys(T[:owned], ("c-1", 0))
    view.offsets = dict.fromkeys(T, offset)
    snapshot = V08GroupSnapshot(
        view, {"t": (0, 1, 2, 3)}, CoordinatorKind.BROKER, state, "range", clients={"c-1": "billing at 10.0.0.1"}
    )
    topics = {"t": {number: PartitionView((0,), 0, (0,)) for number in range(4)}}
    return DiagnosisInput(snapshot, dict.fromkeys(T, LogRange(0, 100)), 0.0, topics)


async def test_diagnoses_a_group_at_a_broker() -> None:
    assert diagnose_once(at_broker()) == []
    (none,) = diagnose_once(at_broker("Empty"))
    assert (none.kind, none.is_notice, "--zookeeper" in none.remedy) == (GroupFindingKind.NO_MEMBERS, True, True)
    for state in ("PreparingRebalance", "CompletingRebalance", "AwaitingSync"):
        found = diagnose_group(at_broker(state), at_broker(state))
        assert told(found) == [(GroupFindingKind.REBALANCING, "team/g")]
        assert "billing at 10.0.0.1" in found[0].says
        assert diagnose_group(at_broker(), at_broker(state)) == []
    (unowned,) = diagnose_once(at_broker(owned=3))
    assert told([unowned]) == [(GroupFindingKind.UNOWNED, "t/3")]
    assert "the group's leader (range) did not assign it" in unowned.says
    assert told(diagnose_once(at_broker(offset=101))) == [(GroupFindingKind.OUT_OF_RANGE, str(one)) for one in T]
    strange = at_broker()
    strange.snapshot.view.problems.append("member c-2 is of protocol type 'connect'")
    assert told(diagnose_once(strange)) == [(GroupFindingKind.NOT_CHECKED, "team/g")]
    assert steps_for(strange.snapshot, diagnose_once(strange), force=True) == []


async def test_reports_owners_at_a_broker_without_progress() -> None:
    before, after = at_broker(), replaced(at_broker(), at=15.0, ranges=dict.fromkeys(T, LogRange(0, 120)))
    after.snapshot.view.offsets |= {T[0]: 50, T[1]: 120}
    found = diagnose_group(before, after)
    assert told(found) == [(GroupFindingKind.BLACK_HOLE, "t/2"), (GroupFindingKind.BLACK_HOLE, "t/3")]
    assert found[0].says.startswith(
        "Owner c-1 does not read it: the committed offset stays at 10 while 20 messages were written"
    )
    assert "transaction" in found[0].says
    assert "Restart the client billing at 10.0.0.1; its partitions go to other members." in found[0].remedy
    assert {each.fix for each in found} == {None}


UUID = "0b7e1f6c-3a52-4d7b-9c1e-5f0a2b3c4d5%d"
#: Client -> two members' ids, the data of their id nodes, and the name of partition `number`'s owner node.
OTHER_CLIENTS = {
    "kazoo-go": ([f"h:{UUID % 1}", f"h:{UUID % 2}"], MEMBER, "{}"),
    "pykafka": ([f"h:{UUID % 1}", f"h:{UUID % 2}"], b"t", "0-{}"),
    "kafka-node": (
        [f"g_{UUID % 1}", f"g_{UUID % 2}"],
        b'{"version":1,"subscription":{"t": 1, "u": 1},"pattern":"white_list","timestamp":"1448000000000"}',
        "{}",
    ),
    "poseidon_cluster": (["g-h-4711-1448000000-1", "g-h-4712-1448000000-1"], b"{}", "{}"),
    "": (["some-id", "other id"], MEMBER, "{}"),  # kafka-node with a configured id
}


def put_other_clients(zookeeper: MemoryZooKeeper, client: str) -> list[str]:
    """In place of the group's members: two of `client`, the first of which owns three partitions of four."""
    zookeeper.remove("/consumers/g/ids")
    zookeeper.remove("/consumers/g/owners")
    names, text, form = OTHER_CLIENTS[client]
    for session, name in zip((A, B), names, strict=True):
        zookeeper.put(f"/consumers/g/ids/{name}", text, session_id=session)
    for number in range(4):
        owner = number // 3
        zookeeper.put(f"{OWNERS}/{form.format(number)}", names[owner].encode(), session_id=(A, B)[owner])
    return names


@pytest.mark.parametrize("client", OTHER_CLIENTS)
async def test_deletes_nothing_of_clients_with_another_rule(zookeeper: MemoryZooKeeper, client: str) -> None:
    names = put_other_clients(zookeeper, client)
    before = await look(zookeeper)
    found = diagnose_group(before)
    assert sorted(told(found)) == sorted((GroupFindingKind.OTHER_RULE, name) for name in names)
    first = next(each for each in found if each.subject == names[0])
    assert first.is_notice
    assert "owns 3 partitions (t/0, t/1, t/2)" in first.says
    assert client in first.says
    assert ("JVM members cannot read" in first.says) is (before.snapshot.view.members[names[0]].subscription is None)
    assert steps_for(before.snapshot, found, force=True) == []
    assert before.snapshot.owner_name(T[3]) == names[1]
    assert before.snapshot.owner_stat(T[3]) is not None


@pytest.mark.parametrize("client", OTHER_CLIENTS)
async def test_reports_members_of_two_rules_in_one_group(zookeeper: MemoryZooKeeper, client: str) -> None:
    names = put_other_clients(zookeeper, client)
    zookeeper.put(f"/consumers/g/ids/{ID_A}", MEMBER, session_id=0xC)
    found = diagnose_group(await look(zookeeper))
    mixed = next(each for each in found if each.kind is GroupFindingKind.MIXED_RULES)
    assert not mixed.is_notice
    assert all(name in mixed.says for name in (*names, ID_A))
    assert "Delete nothing" in mixed.remedy
    assert not [each for each in found if isinstance(each.fix, Removal)]


async def test_reports_a_partition_that_no_other_client_owns(zookeeper: MemoryZooKeeper) -> None:
    put_other_clients(zookeeper, "kazoo-go")
    zookeeper.remove(f"{OWNERS}/3")
    found = diagnose_group(await look(zookeeper))
    (unowned,) = (each for each in found if not each.is_notice)
    assert told([unowned]) == [(GroupFindingKind.UNOWNED, "t/3")]
    assert unowned.fix is None


async def test_still_reports_nodes_of_other_clients_that_died(zookeeper: MemoryZooKeeper) -> None:
    put_other_clients(zookeeper, "pykafka")
    zookeeper.put(f"{OWNERS}/0-9", b"nobody", session_id=DEAD)
    found = diagnose_group(await look(zookeeper))
    (foreign,) = (each for each in found if each.kind is not GroupFindingKind.OTHER_RULE)
    assert told([foreign]) == [(GroupFindingKind.MIXED_DIALECTS, f"{OWNERS}/0-9")]


async def test_verifies_groups_of_other_clients_as_far_as_they_can_be(zookeeper: MemoryZooKeeper) -> None:
    put_other_clients(zookeeper, "kazoo-go")
    assert differences((await look(zookeeper)).snapshot) == []
    zookeeper.remove(f"{OWNERS}/3")
    zookeeper.put(f"/consumers/g/ids/{ID_A}", MEMBER, session_id=0xC)  # the first of the three by name
    found = {each.subject: each.says for each in differences((await look(zookeeper)).snapshot)}
    first = OTHER_CLIENTS["kazoo-go"][0][0]
    assert found == {
        "t/0": f"owner {first} follows another assignment rule; expected owner {ID_A}-0",
        "t/1": f"owner {first} follows another assignment rule; expected owner {ID_A}-0",
        "t/3": "has no owner; the clients of the group follow another assignment rule",
    }


async def test_names_other_clients_that_are_in_the_way_of_changes(zookeeper: MemoryZooKeeper) -> None:
    names = put_other_clients(zookeeper, "pykafka")
    reasons = in_the_way((await look(zookeeper)).snapshot, [T[3]])
    assert f"t/3 is owned by {names[1]}" in reasons


def recreate(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.remove("/brokers/topics/t")
    put_topic(zookeeper, "t", [0, 0, 0, 0])
    zookeeper.put("/consumers/g/offsets/t/3", b"7")  # committed since then


async def test_reports_offsets_that_were_committed_before_the_topic_was_created(zookeeper: MemoryZooKeeper) -> None:
    recreate(zookeeper)
    zookeeper.put("/consumers/g/offsets/t/3", b"8")
    # Partition 2 begins at its offset, so that nothing changes; partition 1 ends before it.
    inputs = await look(zookeeper, p1=LogRange(3, 5), p2=LogRange(10, 20))
    found = diagnose_group(inputs)
    assert told(found) == [(GroupFindingKind.FORMER_LOG, "t/0"), (GroupFindingKind.FORMER_LOG, "t/1")]
    stat = inputs.snapshot.view.stats["/consumers/g/offsets/t/0"]
    assert f"{stat.modified_zxid:#x}" in found[0].says
    assert f"{inputs.created['t']:#x}" in found[0].says
    assert "beginning of the new log, 0" in found[0].says
    assert not found[0].is_notice
    assert found[0].fix is None  # the members have positions of their own


async def test_reports_offsets_that_were_committed_for_another_topic_id() -> None:
    """Where a broker keeps them: its coordinator drops offsets with a topic, unless a member commits once more."""
    snapshot = V08GroupSnapshot(
        GroupView("g", offsets={T[0]: 5, T[1]: 6, T[2]: 7}),
        {"t": (0, 1, 2)},
        CoordinatorKind.BROKER,
        metadata={T[0]: "topic-id=AAECAwQFBgcICQoLDA0ODw", T[1]: "why topic-id=AQEBAQEBAQEBAQEBAQEBAQ", T[2]: "why"},
    )
    inputs = DiagnosisInput(snapshot, dict.fromkeys(T[:3], LogRange(0, 9)), 0.0, topic_ids={"t": b"\x01" * 16})
    (found,) = (each for each in diagnose_group(inputs) if each.kind is GroupFindingKind.FORMER_LOG)
    assert found.subject == "t/0"
    assert "with topic id AAECAwQFBgcICQoLDA0ODw, and the" in found.says
    assert "this name has topic id AQEBAQEBAQEBAQEBAQEBAQ:" in found.says


async def test_sets_offsets_of_a_former_log_to_the_beginning_once_the_group_is_stopped(
    zookeeper: MemoryZooKeeper,
) -> None:
    recreate(zookeeper)
    zookeeper.remove("/consumers/g/ids")
    zookeeper.remove("/consumers/g/owners")
    inputs = await look(zookeeper, p1=LogRange(3, 50))
    found = diagnose_group(inputs)
    steps = steps_for(inputs.snapshot, found, force=False)
    path = "/consumers/g/offsets/t/{}"
    assert steps == [
        OffsetReset(path.format(0), 0, 10, 0),
        OffsetReset(path.format(1), 0, 10, 3),
        OffsetReset(path.format(2), 0, 10, 0),
    ]
    assert describe_step(steps[1]) == "set /consumers/g/offsets/t/1 from 10 to 3"
    zookeeper.put(path.format(2), b"11")
    async with zookeeper.session() as zk:
        for step in steps[:2]:
            await take_step(zk, "g", step, name="g_d", dialect=Dialect.V08)
        with pytest.raises(ChangedMeanwhileError, match="committed or deleted meanwhile"):
            await take_step(zk, "g", steps[2], name="g_d", dialect=Dialect.V08)
        assert [(await zk.get(path.format(number)))[0] for number in range(4)] == [b"0", b"3", b"11", b"7"]
    again = diagnose_group(await look(zookeeper))
    assert [each for each in again if each.kind is GroupFindingKind.FORMER_LOG] == []


async def test_names_the_open_transaction_at_which_a_group_stands(zookeeper: MemoryZooKeeper) -> None:
    producer = OpenProducer(4000, 2, 1_700_000_000_000)
    starts = zip(T, (10, 9, 11), strict=False)
    open_since = {each: OpenTransaction(start, 100 - start, producer) for each, start in starts}
    first = replaced(await look(zookeeper, 0.0), transactions=open_since)
    second = replaced(await look(zookeeper, 20.0), transactions=open_since)
    (found, *still) = diagnose_group(first, second)
    assert told([found]) == [(GroupFindingKind.OPEN_TRANSACTION, "t/0")]
    assert not found.is_notice
    assert "open since offset 10" in found.says
    assert "none of the 90 messages" in found.says
    assert "id 4000 and epoch 2, which wrote last at 2023-11-14 22:13:20 UTC" in found.says
    assert "--topic t --partition 0 --start-offset 10" in found.remedy
    # Its owner is not to be blamed, but those of the others are.
    assert told(still) == [(GroupFindingKind.STANDING_STILL, str(each)) for each in T[1:]]
    assert told(diagnose_group(first)) == [(GroupFindingKind.OPEN_TRANSACTION, "t/0")]


async def test_tells_a_transaction_that_waits_for_its_producer_from_one_that_hangs(zookeeper: MemoryZooKeeper) -> None:
    owner = TransactionOwner("pump", "Ongoing", 60_000, 1_700_000_000_000)
    known = "id 'pump', Ongoing since 2023-11-14 22:13:20 UTC, with a timeout of 60 s."
    for producer, says, remedy in (
        (OpenProducer(1, 2, -1, owner), known, "or wait"),
        (OpenProducer(1, 2, -1, hangs=True), "producer with id 1 and epoch 2.", "it hangs, and nothing ends it"),
    ):
        one = replaced(await look(zookeeper, 0.0), transactions={T[0]: OpenTransaction(10, 90, producer)})
        (found,) = diagnose_group(one)
        assert says in found.says
        assert remedy in str(found.remedy)
        assert "kafka-transactions.sh" in str(found.remedy)


async def test_a_transaction_that_another_one_follows_is_not_a_finding(zookeeper: MemoryZooKeeper) -> None:
    of_nobody = "the broker says nothing"
    first = replaced(await look(zookeeper, 0.0), transactions={T[0]: OpenTransaction(5, 95, of_nobody)})
    second = replaced(await look(zookeeper, 20.0), transactions={T[0]: OpenTransaction(10, 90, of_nobody)})
    assert GroupFindingKind.OPEN_TRANSACTION not in {found.kind for found in diagnose_group(first, second)}
    (found,) = diagnose_group(second)
    assert "Its producer is not known: the broker says nothing." in found.says
    for one in T:
        zookeeper.remove(f"/consumers/g/offsets/t/{one.name}")
    nothing = await look(zookeeper, p0=LogRange(10, 100))  # nothing was committed yet
    assert told(diagnose_group(replaced(nothing, transactions=second.transactions))) == [
        (GroupFindingKind.OPEN_TRANSACTION, "t/0")
    ]
