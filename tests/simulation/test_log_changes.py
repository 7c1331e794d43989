"""A log becomes another one beneath a group: every message of the logs as they are is delivered, and none twice."""

from __future__ import annotations

import pytest

from tests.simulation.log_changes import STORIES, WAYS, can_be_known, tell

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("story", "way"),
    [
        pytest.param(story, way, id=f"{story}-{way}")
        for story in STORIES
        for way in WAYS
        if can_be_known(story, WAYS[way])
    ],
)
def test_every_message_of_the_present_log_is_delivered(story: str, way: str) -> None:
    assert tell(story, WAYS[way]) == ""
