"""Every broken state, made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.net.zk.errors import NotEmpty
from consumerd.operate.admin.diagnosis import diagnose_once, persistent_findings, progress_findings
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.errors import ChangedMeanwhileError
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind, NudgeGroup, Removal
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.mending import steps_for, take_step, withheld
from consumerd.operate.admin.snapshot import V07GroupSnapshot, read_v07_snapshot
from consumerd.operate.admin.verification import GroupDifference, differences
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

A, B, DEAD = 0xA, 0xB, 0xD
ID_A, ID_B = "g_host-a-1353495600000-00c0ffee", "g_b"
T = [TopicPartition("t", 0, number) for number in range(4)]


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    """A healthy group: four partitions, two members with two each."""
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b"x:127.0.0.1:9092")
    zookeeper.put("/brokers/topics/t/0", b"4")
    zookeeper.put(f"/consumers/g/ids/{ID_A}", b'{ "t": 1 }', session_id=A)
    zookeeper.put(f"/consumers/g/ids/{ID_B}", b'{ "t": 1 }', session_id=B)
    for partition in T:
        owner, session = ((ID_B, B), (ID_A, A))[partition.partition // 2]
        zookeeper.put(f"/consumers/g/owners/t/{partition.name}", f"{owner}-0".encode(), session_id=session)
        zookeeper.put(f"/consumers/g/offsets/t/{partition.name}", b"10")
    return zookeeper


RANGES = dict.fromkeys(T, LogRange(0, 100))


async def look(zookeeper: MemoryZooKeeper) -> V07GroupSnapshot:
    async with zookeeper.session() as zk:
        return await read_v07_snapshot(zk, "g")


def diagnose(
    snapshot: V07GroupSnapshot, ranges: Mapping[TopicPartition, LogRange | LookupFailure]
) -> list[GroupFinding]:
    return diagnose_once(DiagnosisInput(snapshot, ranges, 0.0, registered=snapshot.brokers.keys()))


async def findings(zookeeper: MemoryZooKeeper) -> list[GroupFinding]:
    return diagnose(await look(zookeeper), RANGES)


def replace(zookeeper: MemoryZooKeeper, path: str, data: bytes, session_id: int = 0) -> None:
    zookeeper.remove(path)
    zookeeper.put(path, data, session_id=session_id)


async def test_reports_nothing_for_a_healthy_group(zookeeper: MemoryZooKeeper) -> None:
    assert await findings(zookeeper) == []
    assert differences(await look(zookeeper)) == []


async def test_reports_a_member_that_gave_up_its_rebalance(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.remove("/consumers/g/owners/t/0-2")
    zookeeper.remove("/consumers/g/owners/t/0-3")
    gave_up, *unowned = await findings(zookeeper)
    assert (gave_up.kind, gave_up.subject, gave_up.fix) == (GroupFindingKind.GAVE_UP, ID_A, NudgeGroup())
    assert "owns 0 of the 2" in gave_up.says
    assert "t/0-2, t/0-3" in gave_up.says
    assert "the process on host-a that started at 2012-11-21 11:00:00 UTC" in gave_up.remedy
    assert [(finding.kind, finding.subject) for finding in unowned] == [
        (GroupFindingKind.UNOWNED, f"t/0-{n}") for n in (2, 3)
    ]
    assert differences(await look(zookeeper)) == [
        GroupDifference(f"t/0-{number}", f"has no owner; expected owner {ID_A}-0") for number in (2, 3)
    ]


async def test_reports_a_zombie_owner_that_blocks_a_member(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, "/consumers/g/owners/t/0-2", b"g_gone-0", DEAD)
    zookeeper.remove("/consumers/g/owners/t/0-3")
    zombie, unowned = await findings(zookeeper)
    assert (zombie.kind, zombie.subject) == (GroupFindingKind.ZOMBIE_OWNER, "t/0-2")
    assert "g_gone-0 is not a live member" in zombie.says
    assert isinstance(zombie.fix, Removal)
    assert not zombie.fix.safe
    assert (unowned.kind, unowned.subject) == (GroupFindingKind.UNOWNED, "t/0-3")
    assert "which waits for t/0-2." in unowned.says
    assert "partition_not_claimed" in unowned.remedy
    assert differences(await look(zookeeper))[0] == GroupDifference(
        "t/0-2", f"owner g_gone-0 is not a live member; expected owner {ID_A}-0"
    )


async def test_reports_stale_and_broken_owner_nodes(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, "/consumers/g/owners/t/0-0", b"g_b-0")
    replace(zookeeper, "/consumers/g/owners/t/0-1", b"rubbish")
    found = await findings(zookeeper)
    assert [(finding.kind, finding.subject) for finding in found] == [
        (GroupFindingKind.STALE_OWNER, "t/0-0"),
        (GroupFindingKind.BROKEN_OWNER, "t/0-1"),
    ]
    assert all(isinstance(finding.fix, Removal) and finding.fix.safe for finding in found)
    assert [difference.subject for difference in differences(await look(zookeeper))] == ["t/0-0", "t/0-1"]


async def test_reports_an_owner_of_a_former_session(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, "/consumers/g/owners/t/0-0", b"g_b-0", DEAD)
    (found,) = await findings(zookeeper)
    assert (found.kind, found.subject) == (GroupFindingKind.FOREIGN_SESSION, "t/0-0")
    assert "0xd" in found.says
    assert "0xb" in found.says
    assert "belongs to another session" in differences(await look(zookeeper))[0].says


async def test_reports_owners_other_than_assigned(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, "/consumers/g/owners/t/0-0", f"{ID_A}-0".encode(), A)
    zookeeper.put("/consumers/g/owners/old/0-0", b"g_b-0", session_id=B)
    found = await findings(zookeeper)
    assert [(finding.kind, finding.subject, finding.fix) for finding in found] == [
        (GroupFindingKind.MISPLACED, "old/0-0", NudgeGroup()),
        (GroupFindingKind.MISPLACED, "t/0-0", NudgeGroup()),
    ]
    assert "no member subscribes" in found[0].says
    assert "assigns it to g_b-0" in found[1].says
    assert [difference.says for difference in differences(await look(zookeeper))] == [
        "owner is g_b-0; expected no owner",
        f"owner is {ID_A}-0; expected owner g_b-0",
    ]


@pytest.mark.parametrize(
    ("data", "kind", "word"),
    [
        (b'{ "t": 0 }', GroupFindingKind.BROKEN_ID, "asks for"),
        (b"", GroupFindingKind.BROKEN_ID, "neither JSON nor a filter"),
        (b"t", GroupFindingKind.BROKEN_ID, "neither JSON nor a filter"),
        (b'{"version":1,"subscription":{"t":1},"pattern":"static"}', GroupFindingKind.MIXED_DIALECTS, "0.8 or later"),
    ],
)
async def test_reports_ids_that_break_every_peer(
    zookeeper: MemoryZooKeeper, data: bytes, kind: GroupFindingKind, word: str
) -> None:
    zookeeper.put("/consumers/g/ids/g_c", data, session_id=DEAD)
    (found,) = await findings(zookeeper)
    assert (found.kind, found.subject) == (kind, "g_c")
    assert word in found.says
    assert isinstance(found.fix, Removal)
    assert not found.fix.safe
    assert [difference.subject for difference in differences(await look(zookeeper))] == ["g_c"]
    replace(zookeeper, "/consumers/g/ids/g_c", data)
    (found,) = await findings(zookeeper)
    assert isinstance(found.fix, Removal)
    assert found.fix.safe


async def test_reports_a_stale_id_that_is_assigned_partitions(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, f"/consumers/g/ids/{ID_A}", b'{ "t": 1 }')
    zookeeper.remove("/consumers/g/owners/t/0-2")
    zookeeper.remove("/consumers/g/owners/t/0-3")
    (found,) = await findings(zookeeper)
    assert (found.kind, found.subject) == (GroupFindingKind.STALE_ID, ID_A)
    assert "2 partitions to it (t/0-2, t/0-3)" in found.says
    assert differences(await look(zookeeper))[0].subject == ID_A


async def test_reports_offsets_that_are_wrong(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.put("/consumers/g/offsets/t/0-0", b"101")
    zookeeper.put("/consumers/g/offsets/t/0-1", b"many")
    zookeeper.put("/consumers/g/offsets/t/0-4", b"5")
    zookeeper.put("/consumers/g/offsets/t/7-0", b"5")
    zookeeper.put("/consumers/g/offsets/gone/0-0", b"5")
    zookeeper.put("/consumers/g/offsets/t/3", b"5")
    zookeeper.put("/consumers/g/offsets/t/x", b"5")
    zookeeper.put("/consumers/g/owner/t/0-0", b"5")
    snapshot = await look(zookeeper)
    ranges: dict[TopicPartition, LogRange | LookupFailure] = {
        **RANGES,
        T[2]: LogRange(11, 100),
        T[3]: LookupFailure("it is asleep"),
    }
    found = {(finding.kind, finding.subject): finding for finding in diagnose(snapshot, ranges)}
    assert list(found) == [
        (GroupFindingKind.BROKEN_OFFSET, "t/0-1"),
        (GroupFindingKind.NO_PARTITION, "gone/0-0"),
        (GroupFindingKind.OUT_OF_RANGE, "t/0-0"),
        (GroupFindingKind.OUT_OF_RANGE, "t/0-2"),
        (GroupFindingKind.NO_PARTITION, "t/0-4"),
        (GroupFindingKind.NO_PARTITION, "t/7-0"),
        (GroupFindingKind.SILENT_BROKER, "broker 0"),
        (GroupFindingKind.MIXED_DIALECTS, "/consumers/g/offsets/t/3"),
        (GroupFindingKind.FOREIGN_NODE, "/consumers/g/offsets/t/x"),
        (GroupFindingKind.FOREIGN_NODE, "/consumers/g/owner"),
    ]
    says = {subject: finding.says for (_, subject), finding in found.items()}
    assert "1 bytes beyond the log end 100" in says["t/0-0"]
    assert "1 bytes before the log start 11" in says["t/0-2"]
    assert "broker 0 has only 4 partitions" in says["t/0-4"]
    assert "broker 7 is not registered" in says["t/7-0"]
    assert "has not registered the topic" in says["gone/0-0"]
    assert "1 partitions could not be checked: it is asleep" in says["broker 0"]
    assert {kind for (kind, _), finding in found.items() if finding.is_notice} == {
        GroupFindingKind.NO_PARTITION,
        GroupFindingKind.SILENT_BROKER,
        GroupFindingKind.FOREIGN_NODE,
    }


async def test_reports_a_dead_group(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.remove("/consumers/g/ids")
    zookeeper.remove("/consumers/g/owners/t")
    zookeeper.put("/consumers/g/owners/t/0-1", b"g_gone-0", session_id=DEAD)
    found = await findings(zookeeper)
    assert [finding.kind for finding in found] == [GroupFindingKind.NO_MEMBERS, GroupFindingKind.ZOMBIE_OWNER]
    assert steps_for(await look(zookeeper), found, force=False) == []


async def test_does_not_report_transient_findings() -> None:
    passing = GroupFinding(GroupFindingKind.UNOWNED, "t/0-0", "", "")
    other = GroupFinding(GroupFindingKind.UNOWNED, "t/0-1", "", "")
    firm = GroupFinding(GroupFindingKind.BROKEN_ID, "g_a", "", "")
    assert persistent_findings([passing], [other, firm]) == [firm]
    assert persistent_findings([passing], [passing, other]) == [passing]


async def test_reports_missing_progress(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.put("/consumers/g/offsets/t/0-3", b"100")
    zookeeper.remove("/consumers/g/offsets/t/0-2")
    before = DiagnosisInput(await look(zookeeper), RANGES, 5.0)
    zookeeper.put("/consumers/g/offsets/t/0-1", b"20")
    after = DiagnosisInput(await look(zookeeper), {**RANGES, T[0]: LogRange(0, 150), T[1]: LogRange(0, 150)}, 20.0)
    (hole,) = progress_findings(before, after)
    assert (hole.kind, hole.subject) == (GroupFindingKind.BLACK_HOLE, "t/0-0")
    assert "stays at 10 while 50 bytes were written in 15 s; the lag is 140 bytes" in hole.says
    assert hole.fix is None
    still = next(iter(progress_findings(before, DiagnosisInput(before.snapshot, RANGES, 20.0))))
    assert (still.kind, still.is_notice) == (GroupFindingKind.STANDING_STILL, True)
    grown = dict.fromkeys(T, LogRange(0, 101))
    uncommitted = [f.subject for f in progress_findings(before, DiagnosisInput(before.snapshot, grown, 20.0))]
    assert uncommitted == ["t/0-0", "t/0-1", "t/0-2", "t/0-3"]
    silent = dict.fromkeys(T, LookupFailure("no"))
    assert list(progress_findings(before, DiagnosisInput(before.snapshot, silent, 20.0))) == []


async def test_plans_safe_removals_then_one_nudge(zookeeper: MemoryZooKeeper) -> None:
    replace(zookeeper, "/consumers/g/owners/t/0-0", b"g_b-0")
    zookeeper.put("/consumers/g/ids/g_c", b"{}?", session_id=DEAD)
    zookeeper.remove("/consumers/g/owners/t/0-3")
    async with zookeeper.session() as zk:
        snapshot = await read_v07_snapshot(zk, "g")
        found = diagnose(snapshot, RANGES)
        assert [finding.subject for finding in withheld(found, force=False)] == ["g_c"]
        assert withheld(found, force=True) == []
        safe = steps_for(snapshot, found, force=False)
        assert [isinstance(step, NudgeGroup) or step.path for step in safe] == ["/consumers/g/owners/t/0-0", True]
        forced = steps_for(snapshot, found, force=True)
        assert len(forced) == 3
        told: list[None] = []
        zk.watch("/consumers/g/ids", lambda: told.append(None))
        await zk.children("/consumers/g/ids", watch=True)
        for step in safe:
            await take_step(zk, "g", step, name="g_doctor")
        assert told
        assert "/consumers/g/owners/t/0-0" not in zookeeper.dump()
        assert set(zookeeper.dump()) >= {"/consumers/g/ids/g_c", "/consumers/g/owners/t/0-1"}


async def test_deletes_only_the_nodes_of_the_snapshot(zookeeper: MemoryZooKeeper) -> None:
    path = "/consumers/g/owners/t/0-0"
    replace(zookeeper, path, b"g_b-0")
    async with zookeeper.session() as zk:
        snapshot = await read_v07_snapshot(zk, "g")
        step, _ = steps_for(snapshot, diagnose(snapshot, RANGES), force=False)
        replace(zookeeper, path, b"g_b-0", B)
        with pytest.raises(ChangedMeanwhileError, match="created again"):
            await take_step(zk, "g", step, name="g_doctor")
        assert path in zookeeper.dump()
        zookeeper.remove(path)
        await take_step(zk, "g", step, name="g_doctor")
        with pytest.raises(NotEmpty):
            await take_step(zk, "g", Removal("/consumers/g/offsets", None, False), name="g_doctor")
