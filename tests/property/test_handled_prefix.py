"""The position is never past an unhandled byte, and is as far as that allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumerd.offsets import HandledPrefix, Range

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 3), st.integers(0, 20)),
        st.tuples(st.just("done"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("upto"), st.integers(0, 30), st.integers(0, 20)),
        st.tuples(st.just("reset"), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


def expected(start: int, ranges: list[tuple[Range, int, bool]]) -> int:
    """By definition: walk from the start and stop at the first range that is not complete."""
    position = start
    for token, handled, complete in ranges:
        position = token.next_offset if complete else handled
        if not complete:
            break
    return position


@given(start=st.integers(0, 1000), steps=STEPS)
def test_position_is_the_contiguous_prefix(start: int, steps: list[tuple[str, int, int]]) -> None:
    prefix = HandledPrefix(start)
    ranges: list[tuple[Range, int, bool]] = []
    forgotten: list[Range] = []
    tail = start
    last = start
    for kind, a, b in steps:
        if kind == "begin":
            token = prefix.begin(tail + a, tail + a + b)
            tail = token.next_offset
            ranges.append((token, token.start, False))
        elif kind == "reset":
            forgotten += [token for token, _, _ in ranges]
            ranges = []
            start = tail = last = a
            prefix.reset(a)
        elif ranges:
            index = a % len(ranges)
            token, handled, complete = ranges[index]
            if kind == "done":
                assert prefix.done(token)
                ranges[index] = (token, token.next_offset, True)
            else:
                upto = min(token.start + b, token.next_offset)
                assert prefix.done(token, upto)
                ranges[index] = (token, max(handled, upto), complete)
        for token in forgotten:
            assert not prefix.done(token)
        assert prefix.position == expected(start, ranges)
        assert prefix.position >= last  # between resets it only grows
        last = prefix.position
