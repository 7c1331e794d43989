"""A log becomes another one beneath a group: every message of the logs as they are is handed over, and none twice."""

from __future__ import annotations

import pytest

from tests.simulation.log_changes import STORIES, WAYS, can_be_known, tell

pytestmark = pytest.mark.timeout(300)

#: Stories that a member cannot survive yet, by ways: the beginnings of their names. They fail, and have to.
OPEN: dict[str, tuple[str, ...]] = {
    "recreated_with_as_many_messages": ("zookeeper", "fixed"),
    "recreated_with_more_messages": ("zookeeper", "fixed"),
    "recreated_behind_a_busy_handler": ("",),
    "recreated_while_frozen": ("",),
    "recreated_while_stopped": ("zookeeper",),
    "recreated_with_more_partitions": ("zookeeper",),
    "recreated_with_fewer_partitions": ("zookeeper",),
    "truncated_running": ("",),
    "truncated_to_a_shorter_log": ("zookeeper-1", "zookeeper-3", "coordinated", "fixed"),
    "truncated_while_stopped": ("",),
    "grown_while_running": ("",),
    "grown_while_stopped": ("",),
    "zookeeper_stands_still": ("",),
}


def told(story: str, way: str) -> object:
    """The parameters of a test; it has to fail if the story is open."""
    is_open = way.startswith(OPEN.get(story, ()))
    marks = [pytest.mark.xfail(reason="members do not know yet which log it is", strict=True)] if is_open else []
    return pytest.param(story, way, marks=marks, id=f"{story}-{way}")


@pytest.mark.parametrize(
    ("story", "way"),
    [told(story, way) for story in STORIES for way in WAYS if can_be_known(story, WAYS[way])],
)
def test_every_message_of_the_present_log_is_delivered(story: str, way: str) -> None:
    assert tell(story, WAYS[way]) == ""
