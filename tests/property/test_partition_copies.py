"""Copies of a partition: what is said of them agrees with what elections and replication really left on the disks."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from consumerd.storage.segments.copies import (
    CopyDifferenceKind,
    EpochStart,
    PartitionCopy,
    choose_copy,
    divergence,
    parse_epochs,
)

#: A log: the epoch of each record, and a number that no other record has.
Log = list[tuple[int, int]]


def agreed(one: Log, other: Log) -> int:
    """How many records two logs have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@st.composite
def disks(draw: st.DrawFn) -> list[Log]:
    """What replicas have after some elections, clean or not: the new leader appends, and some followers fetch."""
    replicas: list[Log] = [[] for _ in range(draw(st.integers(2, 4)))]
    number = epoch = 0
    for _ in range(draw(st.integers(1, 6))):
        leader = draw(st.integers(0, len(replicas) - 1))
        epoch += draw(st.integers(1, 3))
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            replicas[leader].append((epoch, number))
        for follower in draw(st.sets(st.integers(0, len(replicas) - 1))) - {leader}:
            same = agreed(replicas[follower], replicas[leader])
            end = draw(st.integers(same, len(replicas[leader])))
            replicas[follower] = replicas[leader][:end]
    return replicas


def copy_of(log: Log, name: int, start: int = 0, seen: set[int] | None = None) -> PartitionCopy:
    """The copy as its checkpoint shows it, or as the batches at the offsets `seen` do."""
    points = [EpochStart(epoch, offset) for offset, (epoch, _) in enumerate(log) if offset >= start]
    firsts = {each.epoch: each for each in reversed(points)}
    lineage = tuple(each for each in points if (each in firsts.values() if seen is None else each.start in seen))
    return PartitionCopy(str(name), min(start, len(log)), len(log), lineage, seen is None)


@given(disks(), st.data())
def test_logs_diverge_where_their_records_differ(replicas: list[Log], data: st.DataObject) -> None:
    one, other = replicas[:2]
    start = data.draw(st.integers(0, 3))
    common = agreed(one, other)
    found = divergence(copy_of(one, 0, start), copy_of(other, 1))
    if common == min(len(one), len(other)):
        assert found is None
    elif start < min(len(one), len(other)):
        assert found == max(common, start)


@given(disks(), st.data())
def test_a_few_batches_never_show_logs_apart_that_are_the_same(replicas: list[Log], data: st.DataObject) -> None:
    one, other = replicas[:2]
    seen = [data.draw(st.sets(st.integers(0, max(0, len(log) - 1)))) for log in (one, other)]
    exact = data.draw(st.booleans())
    found = divergence(copy_of(one, 0, 0, None if exact else seen[0]), copy_of(other, 1, 0, seen[1]))
    if found is not None:
        assert agreed(one, other) <= found < max(len(one), len(other))
        assert agreed(one, other) < min(len(one), len(other))


@given(disks())
def test_reads_what_the_latest_leader_had_and_names_all_that_is_left_out(replicas: list[Log]) -> None:
    copies = [copy_of(log, number) for number, log in enumerate(replicas)]
    choice = choose_copy(copies)
    (chosen,) = choice.read
    log = replicas[chosen]
    latest = max(each[-1][0] if each else -1 for each in replicas)
    assert (log[-1][0] if log else -1) == latest
    for index, other in enumerate(replicas):
        found = {each.kind: each for each in choice.differences if each.copy == index}
        common = agreed(other, log)
        if common < len(other):
            assert list(found) == [CopyDifferenceKind.DIVERGED]
            assert found[CopyDifferenceKind.DIVERGED].offset == common
        elif len(other) < len(log):
            assert list(found) == [CopyDifferenceKind.SHORTER]
            assert found[CopyDifferenceKind.SHORTER].offset == len(other)
        else:
            assert found == {}


@given(disks(), st.data())
def test_the_choice_does_not_depend_on_the_order_of_the_disks(replicas: list[Log], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(replicas))))
    logs = [replicas[choose_copy([copy_of(each, 0) for each in replicas]).read[0]]]
    shuffled = [replicas[index] for index in order]
    logs.append(shuffled[choose_copy([copy_of(each, 0) for each in shuffled]).read[0]])
    assert logs[0] == logs[1]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1 << 40)), max_size=5))
def test_reads_the_checkpoints_that_brokers_write(steps: list[tuple[int, int]]) -> None:
    epoch = start = 0
    entries = []
    for epochs, offsets in steps:
        epoch, start = epoch + epochs, start + offsets
        entries.append(EpochStart(epoch, start))
    text = f"0\n{len(entries)}\n" + "".join(f"{entry.epoch} {entry.start}\n" for entry in entries)
    assert parse_epochs(text.encode()) == tuple(entries)
