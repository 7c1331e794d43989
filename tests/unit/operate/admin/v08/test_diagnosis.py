"""Every broken state of a group of Kafka 0.8 or later, made by hand."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group.assignors import roundrobin_owners
from consumerd.net.cluster.groups import GroupView, LiveMember
from consumerd.net.cluster.view_v08 import PartitionView
from consumerd.operate.admin.diagnosis import diagnose_group, diagnose_once
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.doctor import describe_step, steps_for, take_step
from consumerd.operate.admin.editing import in_the_way
from consumerd.operate.admin.errors import ChangedMeanwhileError
from consumerd.operate.admin.findings import GroupFindingKind, NudgeGroup, OffsetReset, Removal
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.v08.snapshot import CoordinatorKind, V08GroupSnapshot
from consumerd.operate.admin.v08.transactions import OpenProducer, OpenTransaction, TransactionOwner
from consumerd.operate.admin.verification import differences
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.subscription import StaticSubscription
from tests.unit.operate.admin.group_tree import DEAD, ID_A, ID_B, MEMBERS, A, B, GroupTree, told

T = [TopicPartition.numbered("t", number) for number in range(4)]
MEMBER = MEMBERS[Dialect.V08]
OWNERS = "/consumers/g/owners/t"


@pytest.fixture
def zookeeper() -> GroupTree:
    """A healthy group, assigned by range."""
    return GroupTree(Dialect.V08)


async def test_reports_nothing_for_a_healthy_group_of_either_strategy(zookeeper: GroupTree) -> None:
    assert await zookeeper.findings() == []
    before = await zookeeper.look()
    members = {ID_A: StaticSubscription({"t": 1}), ID_B: StaticSubscription({"t": 1})}
    dealt = roundrobin_owners({"t": range(4)}, members)
    zookeeper.deal(dealt)
    assert await zookeeper.findings() == []
    # If one owner is missing, the others still show the rule.
    snapshot = before.snapshot
    assert dealt != snapshot.view.owners
    missing = next(one for one in T if dealt[one][0] == ID_A)
    zookeeper.remove(f"{OWNERS}/{missing.name}")
    gave_up, unowned = await zookeeper.findings()
    assert told([gave_up, unowned]) == [(GroupFindingKind.GAVE_UP, ID_A), (GroupFindingKind.UNOWNED, str(missing))]
    assert "owns 1 of the 2 partitions that the rule (roundrobin) assigns to it" in gave_up.says
    assert "the process on host-a that started at 2012-11-21 11:00:00 UTC" in gave_up.remedy
    assert unowned.fix == NudgeGroup()


async def test_reports_owners_that_fit_no_strategy(zookeeper: GroupTree) -> None:
    zookeeper.deal({T[0]: (ID_A, 0)})
    (found,) = await zookeeper.findings()
    assert told([found]) == [(GroupFindingKind.MISPLACED, "t/0")]
    assert "the rule (range) assigns it to g_b-0" in found.says
    assert "differ in partition.assignment.strategy" in found.says
    persistent_findings = diagnose_group(await zookeeper.look(), await zookeeper.look())
    assert [each for each in persistent_findings if not each.is_notice] == [found]


async def test_reports_partitions_without_a_leader(zookeeper: GroupTree) -> None:
    zookeeper.put_topic("t", [0, 0, -1, 0])
    asleep = LookupFailure("it is asleep")
    leaderless, silent = diagnose_once(
        await zookeeper.look(p0=asleep, p1=asleep, p2=LookupFailure("no leader"), p3=asleep)
    )
    assert told([leaderless, silent]) == [
        (GroupFindingKind.NO_LEADER, "t/2"),
        (GroupFindingKind.SILENT_BROKER, "brokers"),
    ]
    assert "on brokers 0" in leaderless.says
    assert "3 partitions could not be checked: it is asleep" in silent.says


async def test_does_not_report_a_finished_election(zookeeper: GroupTree) -> None:
    healthy = await zookeeper.look()
    zookeeper.put_topic("t", [0, 0, -1, 0])
    without = await zookeeper.look()
    assert [each for each in diagnose_group(healthy, without) if not each.is_notice] == []
    assert [each for each in told(diagnose_group(without, without)) if each[0] is GroupFindingKind.NO_LEADER] == [
        (GroupFindingKind.NO_LEADER, "t/2")
    ]


async def test_reports_progress_and_offsets_in_two_stores(zookeeper: GroupTree) -> None:
    zookeeper.put("/consumers/g/offsets/t/3", b"100")
    before = await zookeeper.look(5.0)
    zookeeper.put("/consumers/g/offsets/t/1", b"20")
    grown = LogRange(0, 150)
    after = await zookeeper.look(20.0, p0=grown, p1=grown, p2=grown)
    holes = diagnose_group(before, after)
    assert told(holes) == [(GroupFindingKind.BLACK_HOLE, "t/0"), (GroupFindingKind.BLACK_HOLE, "t/2")]
    assert "stays at 10 while 50 messages were written in 15 s; the lag is 140 messages" in holes[0].says
    assert "a nudge does not help" in holes[0].remedy
    still = await zookeeper.look(20.0)
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


# -- where a broker coordinates


def at_broker(state: str = "Stable", owned: int = 4, offset: int = 10) -> DiagnosisInput:
    view = GroupView("team/g")
    if state != "Empty":
        rebalancing = state != "Stable"
        view.members["c-1"] = LiveMember("t", None if rebalancing else StaticSubscription({"t": 1}))
    view.owners = {} if state != "Stable" else dict.fromkeys(T[:owned], ("c-1", 0))
    view.offsets = dict.fromkeys(T, offset)
    snapshot = V08GroupSnapshot(
        view, {"t": (0, 1, 2, 3)}, CoordinatorKind.BROKER, "range", state=state, clients={"c-1": "billing at 10.0.0.1"}
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


def put_other_clients(zookeeper: GroupTree, client: str) -> list[str]:
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
async def test_deletes_nothing_of_clients_with_another_rule(zookeeper: GroupTree, client: str) -> None:
    names = put_other_clients(zookeeper, client)
    before = await zookeeper.look()
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
async def test_reports_members_of_two_rules_in_one_group(zookeeper: GroupTree, client: str) -> None:
    names = put_other_clients(zookeeper, client)
    zookeeper.put(f"/consumers/g/ids/{ID_A}", MEMBER, session_id=0xC)
    found = diagnose_group(await zookeeper.look())
    mixed = next(each for each in found if each.kind is GroupFindingKind.MIXED_RULES)
    assert not mixed.is_notice
    assert all(name in mixed.says for name in (*names, ID_A))
    assert "Delete nothing" in mixed.remedy
    assert not [each for each in found if isinstance(each.fix, Removal)]


async def test_reports_a_partition_that_no_other_client_owns(zookeeper: GroupTree) -> None:
    put_other_clients(zookeeper, "kazoo-go")
    zookeeper.remove(f"{OWNERS}/3")
    found = diagnose_group(await zookeeper.look())
    (unowned,) = (each for each in found if not each.is_notice)
    assert told([unowned]) == [(GroupFindingKind.UNOWNED, "t/3")]
    assert unowned.fix is None


async def test_still_reports_nodes_of_other_clients_that_died(zookeeper: GroupTree) -> None:
    put_other_clients(zookeeper, "pykafka")
    zookeeper.put(f"{OWNERS}/0-9", b"nobody", session_id=DEAD)
    found = diagnose_group(await zookeeper.look())
    (foreign,) = (each for each in found if each.kind is not GroupFindingKind.OTHER_RULE)
    assert told([foreign]) == [(GroupFindingKind.MIXED_DIALECTS, f"{OWNERS}/0-9")]


async def test_verifies_groups_of_other_clients_as_far_as_they_can_be(zookeeper: GroupTree) -> None:
    put_other_clients(zookeeper, "kazoo-go")
    assert differences((await zookeeper.look()).snapshot) == []
    zookeeper.remove(f"{OWNERS}/3")
    zookeeper.put(f"/consumers/g/ids/{ID_A}", MEMBER, session_id=0xC)  # the first of the three by name
    found = {each.subject: each.says for each in differences((await zookeeper.look()).snapshot)}
    first = OTHER_CLIENTS["kazoo-go"][0][0]
    assert found == {
        "t/0": f"owner {first} follows another assignment rule; expected owner {ID_A}-0",
        "t/1": f"owner {first} follows another assignment rule; expected owner {ID_A}-0",
        "t/3": "has no owner; the clients of the group follow another assignment rule",
    }


async def test_names_other_clients_that_are_in_the_way_of_changes(zookeeper: GroupTree) -> None:
    names = put_other_clients(zookeeper, "pykafka")
    reasons = in_the_way((await zookeeper.look()).snapshot, [T[3]])
    assert f"t/3 is owned by {names[1]}" in reasons


def recreate(zookeeper: GroupTree) -> None:
    zookeeper.remove("/brokers/topics/t")
    zookeeper.put_topic("t", [0, 0, 0, 0])
    zookeeper.put("/consumers/g/offsets/t/3", b"7")  # committed since then


async def test_reports_offsets_that_were_committed_before_the_topic_was_created(zookeeper: GroupTree) -> None:
    recreate(zookeeper)
    zookeeper.put("/consumers/g/offsets/t/3", b"8")
    # Partition 2 begins at its offset, so that nothing changes; partition 1 ends before it.
    inputs = await zookeeper.look(p1=LogRange(3, 5), p2=LogRange(10, 20))
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
    zookeeper: GroupTree,
) -> None:
    recreate(zookeeper)
    zookeeper.remove("/consumers/g/ids")
    zookeeper.remove("/consumers/g/owners")
    inputs = await zookeeper.look(p1=LogRange(3, 50))
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
    again = diagnose_group(await zookeeper.look())
    assert [each for each in again if each.kind is GroupFindingKind.FORMER_LOG] == []


async def test_names_the_open_transaction_at_which_a_group_stands(zookeeper: GroupTree) -> None:
    producer = OpenProducer(4000, 2, 1_700_000_000_000)
    starts = zip(T, (10, 9, 11), strict=False)
    open_since = {each: OpenTransaction(start, 100 - start, producer) for each, start in starts}
    first = replaced(await zookeeper.look(0.0), transactions=open_since)
    second = replaced(await zookeeper.look(20.0), transactions=open_since)
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


async def test_tells_a_transaction_that_waits_for_its_producer_from_one_that_hangs(zookeeper: GroupTree) -> None:
    owner = TransactionOwner("pump", "Ongoing", 60_000, 1_700_000_000_000)
    known = "id 'pump', Ongoing since 2023-11-14 22:13:20 UTC, with a timeout of 60 s."
    for producer, says, remedy in (
        (OpenProducer(1, 2, -1, owner), known, "or wait"),
        (OpenProducer(1, 2, -1, hangs=True), "producer with id 1 and epoch 2.", "it hangs, and nothing ends it"),
    ):
        one = replaced(await zookeeper.look(0.0), transactions={T[0]: OpenTransaction(10, 90, producer)})
        (found,) = diagnose_group(one)
        assert says in found.says
        assert remedy in str(found.remedy)
        assert "kafka-transactions.sh" in str(found.remedy)


async def test_a_transaction_that_another_one_follows_is_not_a_finding(zookeeper: GroupTree) -> None:
    of_nobody = "the broker says nothing"
    first = replaced(await zookeeper.look(0.0), transactions={T[0]: OpenTransaction(5, 95, of_nobody)})
    second = replaced(await zookeeper.look(20.0), transactions={T[0]: OpenTransaction(10, 90, of_nobody)})
    assert GroupFindingKind.OPEN_TRANSACTION not in {found.kind for found in diagnose_group(first, second)}
    (found,) = diagnose_group(second)
    assert "Its producer is not known: the broker says nothing." in found.says
    for one in T:
        zookeeper.remove(f"/consumers/g/offsets/t/{one.name}")
    nothing = await zookeeper.look(p0=LogRange(10, 100))  # nothing was committed yet
    assert told(diagnose_group(replaced(nothing, transactions=second.transactions))) == [
        (GroupFindingKind.OPEN_TRANSACTION, "t/0")
    ]
