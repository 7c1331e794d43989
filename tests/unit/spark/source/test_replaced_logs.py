"""Plans over logs whose topics are deleted and created again: an offset counts only in the log it was read from."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from consumerd.spark.source import planning
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.logs import WithoutEpochs
from consumerd.spark.source.offsets import (
    Key,
    LogOffset,
    entries,
    format_offsets,
    parse_offsets,
    positions,
    sorted_offsets,
)
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.option_values import BootstrapLocation
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner, plan_batch
from consumerd.spark.source.v08.origin import V08Log

FORMER, NEW = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"


def log(end: int, topic_id: str | None, *, start: int = 0, partition: int = 0) -> V08Log:
    cluster = BootstrapLocation((("127.0.0.1", 9092),))
    return V08Log("t", partition, start, end, cluster, None, lambda *_: start, topic_id)


def at(offset: int, topic_id: str | None = FORMER) -> dict[str, Any]:
    return sorted_offsets({("t", "0"): LogOffset(offset, topic_id)})


class Cluster(WithoutEpochs):
    """What the brokers tell, in the order of the questions; the last answer stays."""

    def __init__(self, *looks: V08Log | list[V08Log]) -> None:
        self.looks = list(looks)

    def snapshot(self) -> Mapping[Key, V08Log]:
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return {each.key: each for each in (found if isinstance(found, list) else [found])}

    def missing(self, found: Mapping[Key, V08Log]) -> str | None:
        return None


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(planning, "open_origin", lambda _: made)
    monkeypatch.setattr(planning, "_SETTLED", 0.0)
    monkeypatch.setattr(planning, "_FRESH", -1.0)
    monkeypatch.setattr(planning, "_STILL_GOOD", -1.0)
    return made


def follow(**options: str) -> StreamPlanner:
    given = {"bootstrap": "127.0.0.1:9092", "subscribe": "t", "startingOffsets": "earliest", **options}
    return StreamPlanner(read_options(given))


def ranges(follower: StreamPlanner, start: Any, end: Any) -> list[tuple[str, str | None]]:
    return [(str(split), split.topic_id) for split in follower.splits(start, end)]


def test_offsets_carry_the_log_they_belong_to(cluster: Cluster) -> None:
    cluster.looks = [log(200, FORMER)]
    follower = follow()
    assert follower.initial() == {"t": {"0": {"offset": 0, "topic_id": FORMER}}}
    end = follower.latest(at(0), None)
    assert end == at(200) == follower.reported()
    assert json.dumps(follower.latest(end, None)) == json.dumps(end), "equal text: there is nothing new"
    assert ranges(follower, at(0), end) == [("t/0 from 0 to 200", FORMER)]
    cluster.looks = [log(200, None)]
    assert follower.latest(end, None) == end, "an old broker of a cluster in an upgrade tells no id"
    assert follow().initial() == {"t": {"0": 0}}


def test_takes_up_the_log_of_a_checkpoint_without_one(cluster: Cluster) -> None:
    cluster.looks = [log(300, FORMER)]
    end = follow().latest({"t": {"0": 200}}, None)
    assert end == at(300)
    assert ranges(follow(), {"t": {"0": 200}}, end) == [("t/0 from 200 to 300", FORMER)]
    assert follow().latest({"t": {"0": 300}}, None) == at(300), "also where there is nothing new to read"
    assert ranges(follow(), {"t": {"0": 100}}, {"t": {"0": 200}}) == [("t/0 from 100 to 200", FORMER)]


@pytest.mark.parametrize("end", [100, 200, 300])
def test_a_replaced_log_is_data_loss_whatever_its_length(cluster: Cluster, end: int) -> None:
    cluster.looks = [log(end, NEW)]
    sentence = (
        rf"t/0 was read up to 200 in the log with topic id {FORMER}, and the topic was deleted and created again: its "
        rf"id is {NEW} now, with offsets 0 to {end}; .* set failOnDataLoss=false"
    )
    with pytest.raises(DataLossError, match=sentence):
        follow().latest(at(200), None)
    with pytest.raises(DataLossError, match=f"t/0 was to be read up to 250 in the log with topic id {FORMER}"):
        follow().splits(at(200), at(250))


def test_lands_all_of_the_new_log_where_that_may_be(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.looks = [log(300, NEW, start=5)]
    follower = follow(failOnDataLoss="false")
    follower.stop_at_present()
    with caplog.at_level(logging.WARNING):
        begun = follower.latest(at(200), 100)
        assert begun == at(5, NEW), "no batch has rows of two logs"
        assert ranges(follower, at(200), begun) == []
        first = follower.latest(begun, 100)
        assert first == at(105, NEW)
        assert ranges(follower, begun, first) == [("t/0 from 5 to 105", NEW)]
        assert follower.latest(first, None) == at(300, NEW)
        assert ranges(follower, at(100), at(200)) == [], "a planned batch of the former log has nothing to read"
    assert [message.partition(" in ")[0] for message in caplog.messages] == [
        "t/0 was read up to 200", "t/0 was to be read up to 200",
    ]  # fmt: skip
    assert all(message.endswith("; reading the new log from its beginning") for message in caplog.messages)


def test_a_log_that_comes_while_available_now_runs_waits_for_the_next_run(cluster: Cluster) -> None:
    cluster.looks = [log(250, FORMER), log(300, NEW)]
    follower = follow(failOnDataLoss="false")
    follower.stop_at_present()
    begun = follower.latest(at(200), None)
    assert begun == at(0, NEW)
    assert follower.latest(begun, None) == begun


def test_metadata_of_a_broker_that_lags_behind_is_not_a_replaced_log(cluster: Cluster) -> None:
    cluster.looks = [log(200, FORMER), log(80, NEW)]
    assert follow().latest(at(50, NEW), None) == at(80, NEW)


def test_partitions_are_replaced_one_by_one(cluster: Cluster) -> None:
    cluster.looks = [[log(10, NEW), log(7, FORMER, partition=1)]]
    start = sorted_offsets({("t", "0"): LogOffset(10, FORMER), ("t", "1"): LogOffset(3, FORMER)})
    assert dict(positions(follow(failOnDataLoss="false").latest(start, None))) == {
        ("t", "0"): LogOffset(0, NEW),
        ("t", "1"): LogOffset(7, FORMER),
    }


def test_without_ids_the_end_tells_and_both_offsets_are_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.looks = [log(100, None)]
    with pytest.raises(DataLossError, match="t/0 was read up to 104 and ends at 100 now, so the log was replaced"):
        follow().latest({"t": {"0": 104}}, None)
    with pytest.raises(DataLossError, match="t/0 was read up to 104 and ends at 100 now, so the log was replaced"):
        follow().splits({"t": {"0": 104}}, {"t": {"0": 110}})
    with caplog.at_level(logging.WARNING):
        assert follow(failOnDataLoss="false").latest({"t": {"0": 104}}, None) == {"t": {"0": 100}}
    assert caplog.messages == [
        "t/0 was read up to 104 and ends at 100 now, so the log was replaced; continuing without them"
    ]


def test_offsets_of_options_may_name_their_log(cluster: Cluster) -> None:
    cluster.looks = [log(300, NEW)]

    def planned(start: Any, end: Any, **options: str) -> list[str]:
        given = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end), "subscribe": "t", **options}
        return [str(split) for split in plan_batch(read_options({"bootstrap": "h:1", **given}), Pruning())]

    assert planned(at(100, NEW), at(250, NEW)) == ["t/0 from 100 to 250"]
    assert planned(at(100, None), at(-1, NEW)) == ["t/0 from 100 to 300"]
    with pytest.raises(DataLossError, match=f"t/0 was named by startingOffsets at 100 in the log with .* {FORMER}"):
        planned(at(100), at(250))
    assert planned(at(100), at(250), failOnDataLoss="false") == [], "none of the new log's messages"


def test_text_of_offsets_with_and_without_a_log() -> None:
    found = {("t", "0"): LogOffset(7, NEW), ("t", "1"): LogOffset(8), ("t", "2"): LogOffset(9, None, 0)}
    text = format_offsets(sorted_offsets(found))
    written = '{"t": {"0": {"offset": 7, "topic_id": "%s"}, "1": 8, "2": {"offset": 9, "leader_epoch": 0}}}'
    assert text == written % NEW
    assert dict(positions(parse_offsets(text))) == found
    assert dict(entries(parse_offsets(text))) == {("t", "0"): 7, ("t", "1"): 8, ("t", "2"): 9}


@pytest.mark.parametrize(
    "value",
    [
        {"offset": 7},
        {"offset": -1, "topic_id": "x"},
        {"offset": 7, "topic_id": None},
        {"offset": 7, "topic_id": "x", "epoch": 1},
        {"offset": 7, "leader_epoch": -1},
        {"offset": 7, "leader_epoch": 1 << 31},
        {"offset": 7, "leader_epoch": None, "topic_id": "x"},
        {"topic_id": "x", "leader_epoch": 1},
    ],
)
def test_rejects_offsets_of_another_form(value: Any) -> None:
    with pytest.raises(ValueError, match="of t/0 is not an offset"):
        parse_offsets(json.dumps({"t": {"0": value}}))
    with pytest.raises(OptionError, match="invalid option startingOffsets"):
        follow(startingOffsets=json.dumps({"t": {"0": value | {"offset": -7}}}))
