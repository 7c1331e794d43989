"""Every broken state of a group in ZooKeeper, made by hand, in both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced

import pytest

from consumerd.base.ports import Operation
from consumerd.net.zk.errors import NotEmpty
from consumerd.operate.admin.diagnosis import diagnose_group, diagnose_once, persistent_findings, progress_findings
from consumerd.operate.admin.doctor import steps_for, take_step, withheld
from consumerd.operate.admin.errors import ChangedMeanwhileError
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind, NudgeGroup, Removal
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.verification import GroupDifference
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.nudge import NUDGE_VALUE, NUDGE_VALUE_V08
from consumerd.wire.registry.subscription import StaticSubscription, parse_subscription
from consumerd.wire.registry.v08.subscription import parse_subscription_v08
from tests.unit.operate.admin.group_tree import DEAD, ID_A, ID_B, MEMBERS, A, B, GroupTree, told


@pytest.fixture(params=[Dialect.V07, Dialect.V08])
def tree(request: pytest.FixtureRequest) -> GroupTree:
    return GroupTree(request.param)


async def test_reports_nothing_for_a_healthy_group(tree: GroupTree) -> None:
    assert await tree.findings() == []
    assert await tree.differences() == []


async def test_reports_a_member_that_gave_up_its_rebalance(tree: GroupTree) -> None:
    tree.remove(tree.owner(2))
    tree.remove(tree.owner(3))
    gave_up, *unowned = await tree.findings()
    assert (gave_up.kind, gave_up.subject, gave_up.fix) == (GroupFindingKind.GAVE_UP, ID_A, NudgeGroup())
    assert "owns 0 of the 2" in gave_up.says
    assert f"{tree.subject(2)}, {tree.subject(3)}" in gave_up.says
    assert "the process on host-a that started at 2012-11-21 11:00:00 UTC" in gave_up.remedy
    assert told(unowned) == [(GroupFindingKind.UNOWNED, tree.subject(number)) for number in (2, 3)]
    assert await tree.differences() == [
        GroupDifference(tree.subject(number), f"has no owner; expected owner {ID_A}-0") for number in (2, 3)
    ]


async def test_reports_a_zombie_owner_that_blocks_a_member(tree: GroupTree) -> None:
    tree.replace(tree.owner(2), b"g_gone-0", DEAD)
    tree.remove(tree.owner(3))
    zombie, unowned = await tree.findings()
    assert told([zombie, unowned]) == [
        (GroupFindingKind.ZOMBIE_OWNER, tree.subject(2)),
        (GroupFindingKind.UNOWNED, tree.subject(3)),
    ]
    assert "g_gone-0 is not a live member" in zombie.says
    assert isinstance(zombie.fix, Removal)
    assert not zombie.fix.safe
    assert f"which waits for {tree.subject(2)}." in unowned.says
    assert "partition_not_claimed" in unowned.remedy
    assert (await tree.differences())[0] == GroupDifference(
        tree.subject(2), f"owner g_gone-0 is not a live member; expected owner {ID_A}-0"
    )


async def test_reports_dead_and_broken_owner_nodes(tree: GroupTree) -> None:
    tree.replace(tree.owner(0), b"g_b-0")
    tree.replace(tree.owner(1), b"rubbish")
    tree.replace(tree.owner(2), b"rubbish", A)
    tree.replace(tree.owner(3), f"{ID_A}-0".encode(), DEAD)
    found = await tree.findings()
    kinds = ["STALE_OWNER", "BROKEN_OWNER", "BROKEN_OWNER", "FOREIGN_SESSION"]
    assert told(found) == [(GroupFindingKind[kind], tree.subject(number)) for number, kind in enumerate(kinds)]
    assert [isinstance(each.fix, Removal) and each.fix.safe for each in found] == [True, True, False, False]
    assert "0xd" in found[3].says
    assert "0xa" in found[3].says
    differences = await tree.differences()
    assert [difference.subject for difference in differences] == [tree.subject(number) for number in range(4)]
    assert "belongs to another session" in differences[3].says


async def test_reports_owners_other_than_assigned(tree: GroupTree) -> None:
    tree.deal({tree.partitions[0]: (ID_A, 0), tree.partition("old", 0): (ID_B, 0)})
    found = await tree.findings()
    assert [(*each, NudgeGroup()) for each in told(found)] == [
        (GroupFindingKind.MISPLACED, tree.subject(0, "old"), found[0].fix),
        (GroupFindingKind.MISPLACED, tree.subject(0), found[1].fix),
    ]
    assert "no member subscribes" in found[0].says
    assert "assigns it to g_b-0" in found[1].says
    assert [difference.says for difference in await tree.differences()] == [
        "owner is g_b-0; expected no owner",
        f"owner is {ID_A}-0; expected owner g_b-0",
    ]


BROKEN_IDS = [
    (Dialect.V07, b'{ "t": 0 }', GroupFindingKind.BROKEN_ID, "asks for"),
    (Dialect.V07, b"", GroupFindingKind.BROKEN_ID, "neither JSON nor a filter"),
    (Dialect.V07, b"t", GroupFindingKind.BROKEN_ID, "neither JSON nor a filter"),
    (Dialect.V07, MEMBERS[Dialect.V08], GroupFindingKind.MIXED_DIALECTS, "0.8 or later"),
    (Dialect.V08, b"{", GroupFindingKind.BROKEN_ID, "none of them gets a partition"),
    (Dialect.V08, b'{"version":1,"subscription":{"t":1}}', GroupFindingKind.BROKEN_ID, "pattern"),
    (Dialect.V08, MEMBERS[Dialect.V07], GroupFindingKind.MIXED_DIALECTS, "registered in the dialect of Kafka 0.7"),
    (Dialect.V08, b"*1*t", GroupFindingKind.MIXED_DIALECTS, "members of 0.8 and later cannot read it"),
]


@pytest.mark.parametrize(("dialect", "data", "kind", "word"), BROKEN_IDS)
async def test_reports_ids_that_break_every_peer(
    dialect: Dialect, data: bytes, kind: GroupFindingKind, word: str
) -> None:
    tree = GroupTree(dialect)
    tree.put("/consumers/g/ids/g_c", data, session_id=DEAD)
    (found,) = await tree.findings()
    assert told([found]) == [(kind, "g_c")]
    assert word in found.says
    assert isinstance(found.fix, Removal)
    assert not found.fix.safe
    tree.replace("/consumers/g/ids/g_c", data)
    (found,) = await tree.findings()
    assert isinstance(found.fix, Removal)
    assert found.fix.safe


async def test_reports_a_stale_id_that_is_assigned_partitions(tree: GroupTree) -> None:
    tree.replace(f"/consumers/g/ids/{ID_A}", tree.member)
    tree.remove(tree.owner(2))
    tree.remove(tree.owner(3))
    (found,) = await tree.findings()
    assert told([found]) == [(GroupFindingKind.STALE_ID, ID_A)]
    assert f"2 partitions to it ({tree.subject(2)}, {tree.subject(3)})" in found.says
    assert (await tree.differences())[0].subject == ID_A


async def test_reports_offsets_that_are_wrong(tree: GroupTree) -> None:
    old = tree.dialect is Dialect.V07
    foreign, nowhere = ("3", "7-0") if old else ("0-3", "7")
    tree.commit(0, b"101")
    tree.commit(1, b"many")
    tree.commit(4, b"5")
    tree.commit(0, b"5", "gone")
    for name in (nowhere, foreign, "x"):
        tree.put(f"/consumers/g/offsets/t/{name}", b"5")
    tree.put("/consumers/g/owner/t/0", b"5")
    seen = await tree.look(p2=LogRange(11, 100), p3=LookupFailure("it is asleep"))
    found = diagnose_once(replaced(seen, unknown=("a is not known",)))
    silent = "broker 0" if old else "brokers"
    assert told(found) == [
        (GroupFindingKind.BROKEN_OFFSET, tree.subject(1)),
        (GroupFindingKind.NO_PARTITION, tree.subject(0, "gone")),
        (GroupFindingKind.OUT_OF_RANGE, tree.subject(0)),
        (GroupFindingKind.OUT_OF_RANGE, tree.subject(2)),
        (GroupFindingKind.NO_PARTITION, tree.subject(4)),
        (GroupFindingKind.NO_PARTITION, f"t/{nowhere}"),
        (GroupFindingKind.SILENT_BROKER, silent),
        (GroupFindingKind.NOT_CHECKED, "g"),
        (GroupFindingKind.MIXED_DIALECTS, f"/consumers/g/offsets/t/{foreign}"),
        (GroupFindingKind.FOREIGN_NODE, "/consumers/g/offsets/t/x"),
        (GroupFindingKind.FOREIGN_NODE, "/consumers/g/owner"),
    ]
    says = {finding.subject: finding.says for finding in found}
    unit = "bytes" if old else "messages"
    assert f"1 {unit} beyond the log end 100" in says[tree.subject(0)]
    assert f"1 {unit} before the log start 11" in says[tree.subject(2)]
    assert ("its policy: autooffset.reset" if old else "auto.offset.reset") in says[tree.subject(2)]
    assert ("broker 0 has only 4 partitions" if old else "only 4 partitions") in says[tree.subject(4)]
    assert ("broker 7 is not registered" if old else "only 4 partitions") in says[f"t/{nowhere}"]
    assert ("has not registered the topic" if old else "no such topic") in says[tree.subject(0, "gone")]
    assert ("0.8 and later name" if old else "Kafka 0.7 names") in says[f"/consumers/g/offsets/t/{foreign}"]
    assert "1 partitions could not be checked: it is asleep" in says[silent]
    assert says["g"] == "A is not known."
    assert {each.kind for each in found if each.is_notice} == {
        GroupFindingKind.NO_PARTITION,
        GroupFindingKind.SILENT_BROKER,
        GroupFindingKind.NOT_CHECKED,
        GroupFindingKind.FOREIGN_NODE,
    }


async def test_reports_a_dead_group(tree: GroupTree) -> None:
    tree.remove("/consumers/g/ids")
    tree.remove("/consumers/g/owners/t")
    tree.put(tree.owner(1), b"g_gone-0", session_id=DEAD)
    seen = await tree.look()
    found = diagnose_group(seen)
    assert [finding.kind for finding in found] == [GroupFindingKind.NO_MEMBERS, GroupFindingKind.ZOMBIE_OWNER]
    assert steps_for(seen.snapshot, found, force=False) == []


async def test_does_not_report_transient_findings() -> None:
    passing = GroupFinding(GroupFindingKind.UNOWNED, "t/0-0", "", "")
    other = GroupFinding(GroupFindingKind.UNOWNED, "t/0-1", "", "")
    firm = GroupFinding(GroupFindingKind.BROKEN_ID, "g_a", "", "")
    assert persistent_findings([passing], [other, firm]) == [firm]
    assert persistent_findings([passing], [passing, other]) == [passing]


async def test_reports_missing_progress(tree: GroupTree) -> None:
    tree.commit(3, b"100")
    tree.remove(tree.offset(2))
    before = await tree.look(5.0)
    tree.commit(1, b"20")
    after = await tree.look(20.0, p0=LogRange(0, 150), p1=LogRange(0, 150))
    (hole,) = diagnose_group(before, after)
    unit = "bytes" if tree.dialect is Dialect.V07 else "messages"
    assert told([hole]) == [(GroupFindingKind.BLACK_HOLE, tree.subject(0))]
    assert f"stays at 10 while 50 {unit} were written in 15 s; the lag is 140 {unit}" in hole.says
    assert "a nudge does not help" in hole.remedy
    assert hole.fix is None
    still = next(iter(progress_findings(before, replaced(before, at=20.0))))
    assert (still.kind, still.is_notice) == (GroupFindingKind.STANDING_STILL, True)
    for known, subjects in ((LogRange(0, 101), tree.partitions), (LookupFailure("no"), [])):
        now = replaced(before, at=20.0, ranges=dict.fromkeys(tree.partitions, known))
        assert [each.subject for each in progress_findings(before, now)] == [str(each) for each in subjects]


async def test_plans_safe_removals_then_one_nudge(tree: GroupTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.replace(tree.owner(0), b"g_b-0")
    tree.put("/consumers/g/ids/g_c", b"{}?", session_id=DEAD)
    tree.remove(tree.owner(3))
    sent: list[Operation] = []
    async with tree.session() as zk:
        multi = zk.multi

        async def noted(operations: Sequence[Operation]) -> None:
            sent.extend(operations)
            await multi(operations)

        monkeypatch.setattr(zk, "multi", noted)
        seen = await tree.look()
        found = diagnose_once(seen)
        assert seen.snapshot.dialect is tree.dialect
        assert [finding.subject for finding in withheld(found, force=False)] == ["g_c"]
        assert withheld(found, force=True) == []
        safe = steps_for(seen.snapshot, found, force=False)
        assert [isinstance(step, NudgeGroup) or step.path for step in safe] == [tree.owner(0), True]
        forced = steps_for(seen.snapshot, found, force=True)
        assert len(forced) == 3
        changed: list[None] = []
        zk.watch("/consumers/g/ids", lambda: changed.append(None))
        await zk.children("/consumers/g/ids", watch=True)
        for step in safe:
            await take_step(zk, "g", step, name="g_doctor", dialect=tree.dialect)
        assert changed
    assert tree.owner(0) not in tree.dump()
    assert set(tree.dump()) >= {"/consumers/g/ids/g_c", tree.owner(1)}
    nudge = NUDGE_VALUE if tree.dialect is Dialect.V07 else NUDGE_VALUE_V08
    assert [getattr(each, "data", None) for each in sent] == [nudge, None]


def test_a_nudge_subscribes_to_nothing() -> None:
    assert parse_subscription(NUDGE_VALUE) == StaticSubscription({})
    assert parse_subscription_v08(NUDGE_VALUE_V08) == StaticSubscription({})


async def test_deletes_only_the_nodes_of_the_snapshot(tree: GroupTree) -> None:
    path = tree.owner(0)
    tree.replace(path, b"g_b-0")
    seen = await tree.look()
    step, _ = steps_for(seen.snapshot, diagnose_once(seen), force=False)
    async with tree.session() as zk:
        tree.replace(path, b"g_b-0", B)
        with pytest.raises(ChangedMeanwhileError, match="created again"):
            await take_step(zk, "g", step, name="g_doctor")
        assert path in tree.dump()
        tree.remove(path)
        await take_step(zk, "g", step, name="g_doctor")
        with pytest.raises(NotEmpty):
            await take_step(zk, "g", Removal("/consumers/g/offsets", None, False), name="g_doctor")
