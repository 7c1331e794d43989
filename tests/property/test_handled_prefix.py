"""The position is never past a message that is not handled, and is as far as that allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.member.offsets.tracker import HandledPrefix

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 3), st.integers(0, 20)),
        st.tuples(st.just("done"), st.just(0), st.just(0)),
        st.tuples(st.just("upto"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("reset"), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


@given(start=st.integers(0, 1000), steps=STEPS)
def test_position_is_the_contiguous_prefix(start: int, steps: list[tuple[str, int, int]]) -> None:
    """By definition: the position is before the first offset that is neither handled nor skipped."""
    prefix = HandledPrefix(start)
    unhandled: list[int] = []
    end = last = start
    for kind, a, b in steps:
        if kind == "reset":
            unhandled, start, end, last = [], a, a, a
            prefix.reset(a)
        elif kind == "begin" and unhandled:
            with pytest.raises(ValueError, match="is handled up to"):
                prefix.begin(end + a, end + a + b)
        elif kind == "begin":
            prefix.begin(end + a, end + a + b)
            end += a + b
            unhandled = list(range(end - b, end))
        else:
            upto = end if kind == "done" else min(end, end - len(unhandled) + a)
            prefix.done(upto)
            unhandled = [offset for offset in unhandled if offset >= upto]
        assert prefix.position == min(unhandled, default=end)
        assert prefix.position >= last  # between resets it only grows
        last = prefix.position
