from __future__ import annotations

from typing import cast

import pytest

from benchmarks import startup
from benchmarks.race import OURS
from benchmarks.startup import Noted, rows_of, settled, taken_over


class Member:
    """Got these messages: (time, partition)."""

    def __init__(self, *messages: tuple[int, int]) -> None:
        self._messages = messages

    def messages(self, since: int = 0) -> list[tuple[int, int]]:
        return [each for each in self._messages if each[0] > since]


def members(*found: Member) -> list[Noted]:
    return cast("list[Noted]", list(found))


async def test_a_partition_is_taken_over_with_its_first_message_elsewhere() -> None:
    one = Member((1_000_000_000, 0), (3_000_000_000, 0), (5_000_000_000, 1))
    two = Member((4_500_000_000, 1), (2_500_000_000, 7))
    assert await taken_over(2_000_000_000, {0, 1}, members(one, two)) == (1.0, 2.5)


async def test_a_group_is_settled_with_one_reader_of_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "SETTLED", 0.0)
    late = 1 << 62
    low, high = (Member(*((late, partition) for partition in part)) for part in (range(4), range(4, 10)))
    shares = await settled(members(low, high))
    assert list(shares.values()) == [set(range(4)), set(range(4, 10))]
    monkeypatch.setattr(startup, "PATIENCE", -1.0)
    both = Member((late, 3))
    both.child = type("Ended", (), {"returncode": None})  # type: ignore[attr-defined]
    low.child = high.child = both.child  # type: ignore[attr-defined]
    with pytest.raises(SystemExit, match=r"a group of 3 does not settle: partitions \[1, 4, 6\]"):
        await settled(members(low, high, both))


async def test_others_stand_by_themselves_where_ours_cannot_take_part() -> None:
    with_ours = rows_of("start", {OURS: [1.0, 1.0], "peer": [2.0, 4.0]})
    assert [(row.subject, row.ratio) for row in with_ours] == [(OURS, None), ("peer", 3.0)]
    alone = rows_of("start", {"one": [1.0, 2.0], "two": [2.0, 4.0]})
    assert [(row.subject, row.value, row.ratio) for row in alone] == [("one", 1.5, None), ("two", 3.0, None)]
