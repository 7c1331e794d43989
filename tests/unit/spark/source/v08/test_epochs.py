"""Streams over logs whose end is cut off by an unclean leader election while they are stopped, and leader epochs."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from consumerd.base.partition import LogId
from consumerd.net.client.epochs import EpochEnd
from consumerd.spark.source import planning
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.option_values import BootstrapLocation
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner, plan_batch
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import V08Split
from consumerd.spark.source.v08 import origin
from consumerd.spark.source.v08.origin import find_epoch
from consumerd.spark.source.v08.reading import read_v08_split
from consumerd.wire.v08.apis import OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.records import encode_message_set, encode_record_batch
from tests.unit.spark.source.v08.fake_broker import V08Broker

TOPIC_ID = b"0123456789abcdef"
ID = LogId(TOPIC_ID).topic_id_text


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[V08Broker]:
    """A log of 200 messages of leader epochs 2 and 5, of which the second began at 120."""
    monkeypatch.setattr(planning, "_FRESH", -1.0)
    monkeypatch.setattr(planning, "_STILL_GOOD", -1.0)
    monkeypatch.setattr(origin, "_PATIENCE", 0.0)
    with V08Broker((0, 200, b""), last=200, ids=(TOPIC_ID,)) as made:
        made.epochs = [(2, 0), (5, 120)]
        yield made


def cut_off(broker: V08Broker) -> None:
    """A follower that had 150 messages is elected, and gets 150 others."""
    broker.epochs, broker.last = [(2, 0), (5, 120), (6, 150)], 300


def follow(broker: V08Broker, **options: str) -> StreamPlanner:
    given = {"bootstrap": f"127.0.0.1:{broker.port}", "subscribe": "events", "startingOffsets": "earliest", **options}
    return StreamPlanner(read_options(given))


def at(offset: int, epoch: int | None = None, topic_id: str | None = ID) -> dict[str, Any]:
    known = {"offset": offset, "topic_id": topic_id, "leader_epoch": epoch}
    known = {name: value for name, value in known.items() if value is not None}
    return {"events": {"0": known if len(known) > 1 else offset}}


def questions(broker: V08Broker) -> int:
    return sum(name == OFFSET_FOR_LEADER_EPOCH.name for name, _ in broker.asked)


def test_offsets_of_a_stream_name_the_leader_epoch_of_the_message_before(broker: V08Broker) -> None:
    follower = follow(broker)
    assert follower.initial() == at(0), "there is no message before it"
    assert follower.latest(at(0), 100) == at(100, 2)
    end = follower.latest(at(100, 2), None)
    assert end == at(200, 5)
    before = questions(broker)
    assert json.dumps(follower.latest(end, None)) == json.dumps(end), "equal text: there is nothing new"
    broker.last = 230
    assert follower.latest(end, None) == at(230, 5)
    assert questions(broker) == before + 2, "one for each look"
    (split,) = follower.splits(at(150, 5), end)
    assert isinstance(split, V08Split)
    assert (split.start, split.end, split.last_epoch) == (150, 200, 5)
    assert follow(broker, startingOffsets="latest").initial() == at(230, 5)


def test_takes_up_the_epoch_in_a_checkpoint_without_one(broker: V08Broker) -> None:
    assert follow(broker).latest(at(200), None) == at(200, 5)
    assert follow(broker).latest({"events": {"0": 110}}, None) == at(200, 5)
    assert [str(split) for split in follow(broker).splits(at(100), at(200))] == ["events/0 from 100 to 200"]


def test_a_log_that_was_cut_off_while_the_stream_was_stopped_is_data_loss(broker: V08Broker) -> None:
    cut_off(broker)
    sentence = (
        "events/0 was read up to 200 in leader epoch 5, and the log was cut off at offset 150, after leader epoch 5, "
        "as by an unclean leader election: it has offsets 0 to 300 now; to read what was written since, from offset "
        "150 on, set failOnDataLoss=false until that is done, or start a new query"
    )
    with pytest.raises(DataLossError) as caught:
        follow(broker).latest(at(200, 5), None)
    assert str(caught.value) == sentence
    with pytest.raises(DataLossError, match="events/0 was to be read up to 200 in leader epoch 5"):
        follow(broker).splits(at(180, 5), at(200, 5))
    assert follow(broker).latest(at(150, 5), None) == at(300, 6), "nothing is lost of a position before it"


@pytest.mark.parametrize("end", [300, 200, 170])
def test_continues_where_the_logs_part(broker: V08Broker, end: int, caplog: pytest.LogCaptureFixture) -> None:
    cut_off(broker)
    broker.last = end
    follower = follow(broker, failOnDataLoss="false")
    follower.stop_at_present()
    with caplog.at_level(logging.WARNING):
        parted = follower.latest(at(200, 5), None)
        assert parted == at(150, 5), "no batch has rows of two logs"
        assert follower.splits(at(200, 5), parted) == []
        reached = follower.latest(parted, None)
        assert reached == at(end, 6)
        (split,) = follower.splits(parted, reached)
        assert str(split) == f"events/0 from 150 to {end}"
        assert follower.latest(reached, None) == reached
    (message,) = caplog.messages
    assert message.endswith(f"it has offsets 0 to {end} now; continuing at offset 150")


def test_a_planned_batch_ends_where_the_log_was_cut_off(broker: V08Broker) -> None:
    cut_off(broker)
    follower = follow(broker, failOnDataLoss="false")
    (split,) = follower.splits(at(130, 5), at(200, 5))
    assert str(split) == "events/0 from 130 to 150"
    assert follower.splits(at(160, 5), at(200, 5)) == []


def test_an_election_that_loses_nothing_is_none_of_its_business(broker: V08Broker) -> None:
    broker.epochs = [(2, 0), (5, 120), (7, 200)]
    assert follow(broker).latest(at(200, 5), None) == at(200, 5)
    broker.last = 210
    assert follow(broker).latest(at(200, 5), None) == at(210, 7)


def test_end_that_a_new_leader_does_not_know_yet_is_not_data_loss(broker: V08Broker) -> None:
    broker.epochs, broker.last, broker.written = [(2, 0), (5, 120), (6, 200)], 190, 200
    assert follow(broker).latest(at(200, 5), None) == at(200, 5)
    (split,) = follow(broker).splits(at(150, 5), at(200, 5))
    assert str(split) == "events/0 from 150 to 200", "all of it is there"


def test_offsets_of_options_are_compared_too(broker: V08Broker, caplog: pytest.LogCaptureFixture) -> None:
    cut_off(broker)
    given = {"bootstrap": f"127.0.0.1:{broker.port}", "subscribe": "events"}
    given |= {"startingOffsets": json.dumps(at(180, 5)), "endingOffsets": "latest"}
    with pytest.raises(DataLossError, match="events/0 was named by startingOffsets at 180 in leader epoch 5"):
        plan_batch(read_options(given), Pruning())
    with caplog.at_level(logging.WARNING):
        found = plan_batch(read_options(given | {"failOnDataLoss": "false"}), Pruning())
    assert [str(split) for split in found] == ["events/0 from 150 to 300"]


def test_offsets_have_no_epoch_where_messages_have_none(broker: V08Broker) -> None:
    broker.epochs = []  # messages of 0.10 at a later broker
    assert follow(broker).latest(at(100), None) == at(200)
    broker.epochs = None  # a broker before 0.11
    assert follow(broker).latest(at(100), None) == at(200)
    assert follow(broker).latest(at(100, 5), None) == at(200), "after a downgrade nothing is known"


@pytest.mark.parametrize("version", [0, 1])
def test_brokers_whose_metadata_have_no_epochs(broker: V08Broker, version: int) -> None:
    """Version 0 (0.11 to 1.1) does not name the epoch that ends, either."""
    broker.epochs_version = version
    assert follow(broker, startingOffsets="latest").initial() == at(200, 5)
    assert follow(broker).latest(at(200, 5), None) == at(200, 5)
    cut_off(broker)
    with pytest.raises(DataLossError, match="the log was cut off at offset 150"):
        follow(broker).latest(at(200, 5), None)
    assert follow(broker, failOnDataLoss="false").latest(at(200, 5), None) == at(150, 5)


def test_without_ids_a_log_whose_epochs_begin_again_was_replaced() -> None:
    with V08Broker((0, 200, b""), last=250) as broker:
        broker.epochs = [(0, 0)]
        with pytest.raises(DataLossError, match="in leader epoch 5, and the log does not have the message before it"):
            follow(broker).latest(at(200, 5, None), None)
        found = follow(broker, failOnDataLoss="false").latest(at(200, 5, None), None)
        assert found == at(200, 0, None)


class LogOfEpochs:
    """A log of 100 messages, and its leader's answers. `told`: the leader names epochs (since 2.0)."""

    def __init__(self, rng: random.Random, *, told: bool) -> None:
        self.epochs = sorted(rng.sample(range(rng.choice([3, 40, 2000])), rng.randint(1, 3)))
        self.starts = [0, *sorted(rng.randint(1, 99) for _ in self.epochs[1:])]
        self.leader = self.epochs[-1] + rng.randint(0, 3)
        self.told = told

    def epoch_of(self, offset: int) -> int:
        return max(epoch for epoch, start in zip(self.epochs, self.starts, strict=True) if start <= offset)

    def end(self, epoch: int) -> EpochEnd:
        if epoch > self.leader:
            return EpochEnd(0, -1, -1)
        known = [each for each in self.epochs if each <= epoch]
        later = [start for each, start in zip(self.epochs, self.starts, strict=True) if each > epoch]
        return EpochEnd(0, (known[-1] if known else epoch) if self.told else -1, later[0] if later else 100)


def searched(search: Generator[int, EpochEnd | None, int | None], answer: Callable[[int], EpochEnd]) -> Any:
    """What a search finds, which asks a few questions only."""
    epoch = next(search)
    try:
        for _ in range(40):
            epoch = search.send(answer(epoch))
    except StopIteration as found:
        return found.value
    pytest.fail("the search does not end")


@pytest.mark.parametrize("told", [True, False])
def test_finds_the_epoch_of_any_message_in_few_questions(told: bool) -> None:
    rng = random.Random(3)
    for _ in range(500):
        log, offset = LogOfEpochs(rng, told=told), rng.randint(1, 100)
        epoch = log.epoch_of(offset - 1)
        for latest in (-1, log.leader):
            for known in (None, *(each for each in log.epochs if each <= epoch)):
                assert searched(find_epoch(offset, latest, known), log.end) == epoch


def test_invalid_answers_end_the_search() -> None:
    rng = random.Random(4)
    for _ in range(500):
        search = find_epoch(50, rng.choice([-1, 9]), rng.choice([None, 4]))
        searched(search, lambda _: EpochEnd(0, rng.randint(-1, 1 << 31), rng.randint(-1, 100)))


def rows(broker: V08Broker, last_epoch: int | None, *, fail: bool = True) -> list[tuple[int, int | None]]:
    split = V08Split("events", 0, 0, 100, BootstrapLocation((broker.address,)), last_epoch=last_epoch)
    request = ReadRequest(("offset", "leader_epoch"), timeout=10, fail_on_data_loss=fail)
    return [(row["offset"], row["leader_epoch"]) for part in read_v08_split(split, request) for row in part.to_pylist()]


def records(first: int, count: int, epoch: int) -> bytes:
    return encode_record_batch([b"x"] * count, base_offset=first, leader_epoch=epoch)


def test_rows_have_the_leader_epoch_of_their_message() -> None:
    old = encode_message_set([b"x"] * 10, magic=1)
    with V08Broker((0, 100, old), (0, 100, records(10, 20, 3) + records(30, 90, 4))) as broker:
        broker._fetches.append((0, 100, records(30, 90, 4)))
        found = rows(broker, 4)
    assert found == [
        *((n, None) for n in range(10)),
        *((n, 3) for n in range(10, 30)),
        *((n, 4) for n in range(30, 100)),
    ]


def test_reads_nothing_that_a_later_leader_wrote_in_the_planned_range(caplog: pytest.LogCaptureFixture) -> None:
    answers = (0, 100, records(0, 40, 3)), (0, 200, records(40, 160, 6))
    sentence = (
        "the offsets 40 to 100 of events/0 no longer exist: the messages at offset 40 are of leader epoch 6, and the "
        "planned ones of 5 at most, so the log was cut off after the read was planned"
    )
    with V08Broker(*answers) as broker, pytest.raises(DataLossError, match=sentence):
        rows(broker, 5)
    with V08Broker(*answers) as broker, caplog.at_level(logging.WARNING):
        assert rows(broker, 5, fail=False) == [(n, 3) for n in range(40)]
    assert sentence in caplog.text
    with V08Broker(*answers) as broker:
        assert len(rows(broker, None)) == 100, "of a checkpoint without epochs nothing is known"
    with V08Broker((0, 200, records(0, 100, 5)), (0, 200, records(100, 10, 6))) as broker:
        assert len(rows(broker, 5)) == 100


def test_a_later_leader_may_write_behind_the_planned_range() -> None:
    gap = encode_record_batch([b"x"] * 5, base_offset=100, leader_epoch=6)  # offsets 90 to 99 were compacted away
    with V08Broker((0, 200, records(0, 90, 5)), (0, 200, gap)) as broker:
        assert len(rows(broker, 5)) == 90
