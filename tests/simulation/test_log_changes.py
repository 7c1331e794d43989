"""A log becomes another one beneath a group: every message of the logs as they are is handed over, and none twice."""

from __future__ import annotations

import pytest

from tests.simulation.log_changes import STORIES, WAYS, can_be_known, tell

pytestmark = pytest.mark.timeout(300)

#: Stories that a member cannot survive yet, by ways: the beginnings of their names. They fail, and have to.
OPEN: dict[str, tuple[str, ...]] = {
    "recreated_with_as_many_messages": ("fixed-0", "fixed-1", "fixed-3.0"),
    "recreated_with_more_messages": ("fixed-0", "fixed-1", "fixed-3.0"),
}


def told(story: str, way: str) -> object:
    """The parameters of a test; it has to fail if the story is open."""
    is_open = way.startswith(OPEN.get(story, ()))
    marks = [pytest.mark.xfail(reason="members do not survive this yet", strict=True)] if is_open else []
    return pytest.param(story, way, marks=marks, id=f"{story}-{way}")


@pytest.mark.parametrize(
    ("story", "way"),
    [told(story, way) for story in STORIES for way in WAYS if can_be_known(story, WAYS[way])],
)
def test_every_message_of_the_present_log_is_delivered(story: str, way: str) -> None:
    assert tell(story, WAYS[way]) == ""
