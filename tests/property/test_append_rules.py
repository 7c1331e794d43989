"""Writers that append overlapping ranges of one log to a table: each message is there once, and none is left out."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from consumerd.handlers.api import PartitionTakenError
from consumerd.spark.lake.append_rules import decide
from consumerd.spark.source.offsets import LogOffset


@dataclass
class Range:
    """Messages of a log with an offset for each."""

    start_offset: int
    next_offset: int
    topic_id: str | None = None


@dataclass
class Member:
    """A member that owns the partition, or believes so: it continues where it is, whatever others have done."""

    at: int
    reached: LogOffset | None
    log: str | None


class Table:
    """The rows of each log, and where the last one ends."""

    def __init__(self) -> None:
        self.rows: dict[str | None, list[int]] = {}
        self.stored: LogOffset | None = None

    def append(self, member: Member, size: int) -> None:
        batch = Range(member.at, member.at + size, member.log)
        found = decide(batch, self.stored, member.reached, partition="t/0", table="bronze")
        self.rows.setdefault(member.log, []).extend(range(found.first, batch.next_offset))
        end = batch.next_offset
        if self.stored is not None and not found.new_log:
            end = max(end, self.stored.offset)
        self.stored = LogOffset(end, member.log)
        member.at, member.reached = batch.next_offset, LogOffset(batch.next_offset, member.log)


#: Of each step the member, the size of its batch, and whether it takes the partition over first.
STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), max_size=40)


@given(steps=STEPS)
def test_each_message_is_appended_once_in_order(steps: list[tuple[int, int, bool]]) -> None:
    table, members = Table(), [Member(0, None, None) for _ in range(3)]
    for number, size, takes_over in steps:
        member = members[number]
        if takes_over:
            member.reached = table.stored
            member.at = 0 if table.stored is None else table.stored.offset
        table.append(member, size)
    rows = table.rows.get(None, [])
    assert rows == [*range(0 if table.stored is None else table.stored.offset)]


@given(before=st.integers(1, 20), late=st.integers(1, 9), after=st.integers(1, 9))
def test_a_member_of_a_former_log_appends_nothing_to_the_newer_one(before: int, late: int, after: int) -> None:
    table, former, owner = Table(), Member(0, None, "old"), Member(0, None, "new")
    table.append(former, before)
    owner.reached = table.stored
    table.append(owner, after)
    try:
        table.append(former, late)
    except PartitionTakenError:
        pass
    else:
        raise AssertionError("the former log was continued behind the newer one")
    assert table.rows == {"old": [*range(before)], "new": [*range(after)]}


@given(first=st.integers(0, 20), size=st.integers(1, 9), stored=st.integers(0, 40))
def test_appends_from_the_end_of_the_table_and_never_beyond_the_batch(first: int, size: int, stored: int) -> None:
    found = decide(Range(first, first + size), LogOffset(stored), None, partition="t/0", table="bronze")
    assert found.first == min(max(first, stored), first + size)
