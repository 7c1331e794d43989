"""The handled prefix, example by example. The general statement is in tests/property/test_handled_prefix.py."""

from __future__ import annotations

import pytest

from consumerd.offsets import HandledPrefix


def test_in_order() -> None:
    prefix = HandledPrefix(100)
    assert prefix.position == 100
    first = prefix.begin(100, 250)
    second = prefix.begin(250, 400)
    assert prefix.position == 100
    assert prefix.done(first)
    assert prefix.position == 250
    assert prefix.done(second)
    assert prefix.position == 400
    prefix.done(prefix.begin(400, 500))
    assert prefix.position == 500  # nothing before it was still open


def test_out_of_order_waits_for_the_first() -> None:
    prefix = HandledPrefix(0)
    ranges = [prefix.begin(n * 10, n * 10 + 10) for n in range(4)]
    prefix.done(ranges[2])
    prefix.done(ranges[1])
    assert prefix.position == 0
    prefix.done(ranges[0])
    assert prefix.position == 30
    prefix.done(ranges[3])  # the only one that was open
    assert prefix.position == 40


def test_partly_handled() -> None:
    prefix = HandledPrefix(0)
    first = prefix.begin(0, 100)
    second = prefix.begin(100, 200)
    prefix.done(second, 150)
    assert prefix.position == 0
    prefix.done(first, 40)
    assert prefix.position == 40
    prefix.done(first, 20)  # an older report changes nothing
    assert prefix.position == 40
    prefix.done(first)
    assert prefix.position == 150
    prefix.done(second)
    assert prefix.position == 200


def test_handled_to_the_end_but_not_finished_stays_open() -> None:
    """`upto` may reach the end of the range before its handler returns: what follows must still wait."""
    prefix = HandledPrefix(0)
    first = prefix.begin(0, 10)
    second = prefix.begin(10, 20)
    prefix.done(second)
    prefix.done(first, 10)
    assert prefix.position == 10
    prefix.done(first)
    assert prefix.position == 20


def test_leaves_of_a_wrapper_share_its_start() -> None:
    """Golden notes, 2: of a wrapper of three from 0 to 71, only the last leaf moves the position."""
    prefix = HandledPrefix(0)
    leaves = [prefix.begin(0, 0), prefix.begin(0, 0), prefix.begin(0, 71)]
    prefix.done(leaves[2])
    prefix.done(leaves[0])
    assert prefix.position == 0
    prefix.done(leaves[1])
    assert prefix.position == 71


def test_a_gap_counts_as_handled_once_all_before_it_is() -> None:
    prefix = HandledPrefix(0)
    before = prefix.begin(0, 10)
    after = prefix.begin(25, 30)  # 10..25 was skipped by a policy
    assert prefix.position == 0
    prefix.done(before)
    assert prefix.position == 25
    prefix.done(after)
    assert prefix.position == 30


def test_reset_forgets_open_ranges() -> None:
    prefix = HandledPrefix(1000)
    old = prefix.begin(1000, 1100)
    prefix.reset(0)
    assert prefix.position == 0
    assert not prefix.done(old)
    assert prefix.position == 0
    new = prefix.begin(0, 50)
    assert prefix.done(new)
    assert prefix.position == 50


@pytest.mark.parametrize(("start", "end"), [(90, 120), (50, 60), (110, 105)])
def test_ranges_never_go_backwards(start: int, end: int) -> None:
    prefix = HandledPrefix(0)
    prefix.begin(0, 100)
    with pytest.raises(ValueError, match="cannot follow offset 100"):
        prefix.begin(start, end)


@pytest.mark.parametrize("upto", [9, 21])
def test_upto_must_lie_inside(upto: int) -> None:
    prefix = HandledPrefix(0)
    token = prefix.begin(10, 20)
    with pytest.raises(ValueError, match="outside"):
        prefix.done(token, upto)


def test_a_range_names_itself() -> None:
    assert repr(HandledPrefix(3).begin(3, 9)) == "Range(3..9, handled to 3)"
