"""Sinks that keep positions, beneath which logs become other ones: no row is lost, repeated, or overwritten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.handlers import Handler
from consumerd.handlers.builtin import postgres
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.handlers.builtin.ranges import RangeOverlapError
from consumerd.handlers.forward.errors import OtherLogError
from tests.simulation import sink_log_changes
from tests.simulation.kafka_broker import ERAS, Era
from tests.simulation.log_changes import BEFORE, Telling, Way, recreated_while_frozen, recreated_while_stopped
from tests.simulation.sink_log_changes import (
    ForwardLogWorld,
    SinkLogWorld,
    TableLogWorld,
    failures,
    missing_or_repeated,
)

pytestmark = pytest.mark.timeout(300)


def parquet(directory: Path) -> Handler:
    from consumerd.handlers.builtin.parquet import ParquetHandler

    return ParquetHandler(directory)


SINKS = {"files": (FilesHandler, sink_log_changes.ndjson_rows), "parquet": (parquet, sink_log_changes.parquet_rows)}


def recreated_while_running(story: Telling) -> None:
    """Where the member was, the new logs have other messages."""
    story.make_again(3 * BEFORE)
    story.deliver()


def recreated_as_long_as_before_and_killed(story: Telling) -> None:
    """The member dies; the new logs end where it was. Its commits may be older than what it stored."""
    story.produce(1)
    story.world.run(0.1)
    story.member.kill()
    story.make_again(BEFORE)
    story.join()
    story.deliver()


def recreated_twice(story: Telling) -> None:
    """Once beside a member, and once while there is none; the second one lives on."""
    recreated_while_running(story)
    recreated_while_stopped(story)
    story.produce(5)
    story.stop()
    story.join()
    story.produce(5)
    story.deliver()


STORIES = [
    recreated_while_running,
    recreated_while_stopped,
    recreated_while_frozen,
    recreated_as_long_as_before_and_killed,
    recreated_twice,
]


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_each_log_has_rows_of_its_own(tmp_path: Path, sink: str, story: Callable[[Telling], None]) -> None:
    make, read = SINKS[sink]
    with SinkLogWorld(ERAS[-1], lambda: make(tmp_path)) as world:
        telling = Telling(Way(sink, lambda: world, ERAS[-1]), world)
        story(telling)
        assert failures(telling) == []
        assert missing_or_repeated(world, read(tmp_path)) == ""


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_each_log_has_rows_of_its_own_in_a_table(story: Callable[[Telling], None]) -> None:
    with TableLogWorld(ERAS[-1]) as world:
        telling = Telling(Way("postgres", lambda: world, ERAS[-1]), world)
        story(telling)
        assert failures(telling) == []
        assert missing_or_repeated(world, world.rows) == ""
        assert len({row[-1] for row in world.database.rows}) == 1 + world.recreations


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_each_log_is_forwarded_once(story: Callable[[Telling], None]) -> None:
    with ForwardLogWorld(ERAS[-1]) as world:
        telling = Telling(Way("forward", lambda: world, ERAS[-1]), world)
        story(telling)
        assert failures(telling) == []
        assert missing_or_repeated(world, world.rows) == ""


def truncated_while_running(story: Telling) -> None:
    """The last messages that are stored are gone, and others come in their place."""
    story.truncate(BEFORE // 2, BEFORE)
    story.deliver()


def truncated_and_killed(story: Telling) -> None:
    """The same without a member, whose commits may be older than what it stored."""
    story.produce(1)
    story.world.run(0.1)
    story.member.kill()
    story.truncate(BEFORE // 2, BEFORE)
    story.join()
    story.deliver()


GOING_BACK = pytest.mark.parametrize(
    ("story", "era"),
    [
        pytest.param(story, era, id=f"{story.__name__}-{era.name}")
        for story, eras in {
            recreated_while_running: ERAS[:3],  # without ids
            truncated_while_running: ERAS[1:],
            truncated_and_killed: ERAS[1:],
        }.items()
        for era in eras
    ],
)


@GOING_BACK
def test_log_that_goes_back_behind_a_stored_row_is_an_error(story: Callable[[Telling], None], era: Era) -> None:
    with TableLogWorld(era) as world:
        telling = Telling(Way("postgres", lambda: world, None), world)
        former = set(world.rows)
        assert len(former) == 2 * BEFORE
        story(telling)
        assert {type(each) for each in failures(telling)} == {postgres.RowsOverlapError}
        assert former <= set(world.rows)


@pytest.mark.parametrize(
    ("story", "era"),
    [
        pytest.param(story, era, id=f"{story.__name__}-{era.name}")
        for story, eras in {recreated_while_running: ERAS[1:3], truncated_and_killed: ERAS[1:]}.items()
        for era in eras
    ],
)
def test_log_that_goes_back_behind_the_target_is_an_error(story: Callable[[Telling], None], era: Era) -> None:
    with ForwardLogWorld(era) as world:
        telling = Telling(Way("forward", lambda: world, None), world)
        former = set(world.rows)
        assert len(former) == 2 * BEFORE
        story(telling)
        assert {type(each) for each in failures(telling)} == {OtherLogError}
        assert former <= set(world.rows)


@GOING_BACK
def test_log_that_goes_back_behind_the_stored_position_is_an_error(
    tmp_path: Path, story: Callable[[Telling], None], era: Era
) -> None:
    with SinkLogWorld(era, lambda: FilesHandler(tmp_path)) as world:
        telling = Telling(Way("files", lambda: world, None), world)
        former = set(sink_log_changes.ndjson_rows(tmp_path))
        assert len(former) == 2 * BEFORE
        story(telling)
        assert {type(each) for each in failures(telling)} == {RangeOverlapError}
        assert former <= set(sink_log_changes.ndjson_rows(tmp_path))
