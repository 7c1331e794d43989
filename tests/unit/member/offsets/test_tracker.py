"""The handled prefix, example by example. The general statement is in tests/property/test_handled_prefix.py."""

from __future__ import annotations

import pytest

from consumerd.member.offsets.tracker import HandledPrefix


def test_holds_position_while_range_is_in_hand() -> None:
    prefix = HandledPrefix(0)
    prefix.begin(0, 10)
    with pytest.raises(ValueError, match="the range up to 10 is handled up to 0 only"):
        prefix.begin(10, 20)
    assert prefix.position == 0
    prefix.done(10)
    prefix.begin(10, 20)
    assert prefix.position == 10


def test_moves_position_within_partly_handled_range() -> None:
    prefix = HandledPrefix(0)
    prefix.begin(0, 100)
    prefix.done(0)
    assert prefix.position == 0
    prefix.done(40)
    assert prefix.position == 40
    prefix.done(20)  # an older report changes nothing
    assert prefix.position == 40
    with pytest.raises(ValueError, match="handled up to 40 only"):
        prefix.begin(100, 200)
    prefix.done(100)
    prefix.begin(100, 200)
    prefix.done(150)
    assert prefix.position == 150


def test_leaves_of_wrapper_share_its_start() -> None:
    """Golden notes, 2: of a wrapper of three from 0 to 71, only the last leaf moves the position."""
    prefix = HandledPrefix(0)
    for _ in range(2):
        prefix.begin(0, 0)
        prefix.done(0)
        assert prefix.position == 0
    prefix.begin(0, 71)
    assert prefix.position == 0
    prefix.done(71)
    assert prefix.position == 71


def test_reset_forgets_range_in_hand() -> None:
    prefix = HandledPrefix(1000)
    prefix.begin(1000, 1100)
    prefix.reset(0)
    assert prefix.position == 0
    with pytest.raises(ValueError, match="1050 lies behind the range that ends at 0"):
        prefix.done(1050)
    assert prefix.position == 0
    prefix.begin(0, 50)
    prefix.done(50)
    assert prefix.position == 50


@pytest.mark.parametrize(("start", "end"), [(90, 120), (50, 60), (110, 105)])
def test_rejects_ranges_going_backwards(start: int, end: int) -> None:
    prefix = HandledPrefix(0)
    prefix.begin(0, 100)
    prefix.done(100)
    with pytest.raises(ValueError, match="cannot follow offset 100"):
        prefix.begin(start, end)


def test_rejects_upto_behind_range() -> None:
    prefix = HandledPrefix(0)
    prefix.begin(10, 20)
    with pytest.raises(ValueError, match="behind the range"):
        prefix.done(21)
    prefix.done(9)  # before it: an older report
    assert prefix.position == 10
