"""A stream's planner on directories that change: ends, shares, splits, and what is lost."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource_internal import _streamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.python_streaming_source_runner import check_support_func
from pyspark.sql.types import StructType

from consumerd.base.errors import ConsumerdError, NotFoundError
from consumerd.spark.source.choice import deselected, renamed
from consumerd.spark.source.datasource import BatchReader, ConsumerdDataSource
from consumerd.spark.source.errors import DataLossError
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import V07Split
from consumerd.spark.source.v07.reading import read_split
from consumerd.wire.v07 import Codec, encode_message, encode_message_set

SIZE = 50
MESSAGES = [encode_message(b"%d" % number * 20) for number in range(10, 20)]


def append(folder: Path, name: str, start: int, *messages: bytes) -> Path:
    path = folder / name / f"{start:020d}.kafka"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(messages))
    return path


def follow(folder: Path, **options: str) -> StreamPlanner:
    given = {"path": str(folder), "subscribePattern": "[tu]", "startingOffsets": "earliest", **options}
    return StreamPlanner(read_options(given))


def ranges(follower: StreamPlanner, start: Any, end: Any) -> list[str]:
    return [str(split) for split in follower.splits(start, end)]


def test_stream_continues_over_growth_rolls_and_new_partitions(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    start = follow(tmp_path).initial()
    assert start == {"t": {"0": 0}}
    assert follow(tmp_path, startingOffsets="latest").initial() == {"t": {"0": 500}}
    follower = follow(tmp_path)
    end = follower.latest(start, None)
    assert end == follower.reported() == {"t": {"0": 500}}
    assert follower.latest(end, None) == end
    assert ranges(follower, start, end) == ["t/0 from 0 to 500"]

    append(tmp_path, "t-0", 0, MESSAGES[0], MESSAGES[1][:7])
    append(tmp_path, "u-3", 100, *MESSAGES[:2])
    grown = follow(tmp_path).latest(end, None)
    assert grown == {"t": {"0": 550}, "u": {"3": 100}}, "where a new one begins is written down first"
    end, grown = grown, follow(tmp_path).latest(grown, None)
    assert grown == {"t": {"0": 550}, "u": {"3": 200}}
    append(tmp_path, "t-0", 0, MESSAGES[1][7:])
    append(tmp_path, "t-0", 600, *MESSAGES[:3])
    rolled = follow(tmp_path).latest(grown, None)
    assert rolled == {"t": {"0": 750}, "u": {"3": 200}}
    assert ranges(follow(tmp_path), {**end, **start}, grown) == ["t/0 from 0 to 550", "u/3 from 100 to 200"], "later"
    assert ranges(follow(tmp_path), grown, rolled) == ["t/0 from 550 to 600", "t/0 from 600 to 750"]
    assert ranges(follow(tmp_path), rolled, rolled) == []


def test_shares_bytes_per_trigger_and_ends_at_messages(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES * 4)
    append(tmp_path, "t-1", 0, *MESSAGES * 4)
    append(tmp_path, "t-2", 0, *MESSAGES[:1])
    follower = follow(tmp_path)
    start = follower.initial()
    first = follower.latest(start, 500)
    assert first == {"t": {"0": 200, "1": 200, "2": 50}}, "225 each of what the smallest leaves"
    end, batches = first, 1
    while (further := follower.latest(end, 500)) != end:
        assert 0 < sum(further["t"].values()) - sum(end["t"].values()) <= 500
        end, batches = further, batches + 1
    assert end == {"t": {"0": 2000, "1": 2000, "2": 50}}
    assert batches == 9
    assert follower.latest(start, 1) == {"t": {"0": 50, "1": 50, "2": 50}}, "a message of each, however little it is"
    assert follower.latest(start, 4051) == follower.latest(start, None) == end


def test_limits_bytes_per_trigger_over_segments_and_large_messages(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES[:2])
    append(tmp_path, "t-0", 100, encode_message(bytes(990)), MESSAGES[0])
    follower = follow(tmp_path)
    ends = [0]
    while (end := follower.latest({"t": {"0": ends[-1]}}, 120)["t"]["0"]) != ends[-1]:
        ends.append(end)
    assert ends == [0, 100, 1100, 1150]
    bad = append(tmp_path, "u-0", 0, MESSAGES[0][:-1] + b"X", MESSAGES[1])
    assert follow(tmp_path).latest({"u": {"0": 0}}, 60)["u"] == {"0": bad.stat().st_size}, (
        "no boundary is sure behind it"
    )


def test_available_now_stops_at_what_was_there(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    follower = follow(tmp_path)
    follower.stop_at_present()
    append(tmp_path, "t-0", 0, *MESSAGES)
    append(tmp_path, "u-0", 0, *MESSAGES)
    later = follow(tmp_path)
    assert later.latest({"t": {"0": 0}, "u": {"0": 0}}, None) == {"t": {"0": 1000}, "u": {"0": 500}}
    assert follower.latest({"t": {"0": 0}}, 200) == {"t": {"0": 200}}
    assert follower.latest({"t": {"0": 200}}, None) == follower.latest({"t": {"0": 500}}, None) == {"t": {"0": 500}}
    assert follower.latest({"t": {"0": 700}}, None) == {"t": {"0": 700}}, "a checkpoint may be further"


def test_deleted_offsets_follow_fail_on_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    append(tmp_path, "t-0", 500, *MESSAGES)
    gone = append(tmp_path, "u-0", 0, *MESSAGES)
    start, end = {"t": {"0": 50}, "u": {"0": 0}}, {"t": {"0": 1000}, "u": {"0": 500}}
    (tmp_path / "t-0" / f"{0:020d}.kafka").unlink()
    with pytest.raises(DataLossError, match="t/0 was read up to 50 and begins at 500 now; start elsewhere, or set"):
        follow(tmp_path).latest(start, None)
    with pytest.raises(DataLossError, match="t/0 was read up to 50 and begins at 500 now"):
        follow(tmp_path).splits(start, end)
    gone.unlink()
    assert follow(tmp_path).latest({"t": {"0": 500}}, None) == {"t": {"0": 1000}}
    with pytest.raises(DataLossError, match="u/0 was read up to 7 and no longer exists"):
        follow(tmp_path).latest({"t": {"0": 500}, "u": {"0": 7}}, None)
    with pytest.raises(DataLossError, match="t/0 was read up to 1100 and ends at 1000 now, so the log was replaced"):
        follow(tmp_path).latest({"t": {"0": 1100}}, None)

    anyway = follow(tmp_path, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert anyway.latest(start, None) == {"t": {"0": 1000}, "u": {"0": 0}}
        assert anyway.latest({"t": {"0": 1100}}, None) == {"t": {"0": 1000}}
        assert ranges(anyway, start, end) == ["t/0 from 500 to 1000"]
        assert ranges(anyway, {"t": {"0": 500}}, {"t": {"0": 1100}}) == ["t/0 from 500 to 1000"]
    assert len(caplog.records) == 5
    assert caplog.records[0].getMessage() == "u/0 was read up to 0 and no longer exists; continuing without them"


def test_changed_options_are_not_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    append(tmp_path, "u-0", 0, *MESSAGES)
    read = {"t": {"0-0": 100}, "u": {"0-0": 100}}
    options = {"path": str(tmp_path), "broker": "0", "subscribePattern": "[tu]"}
    plain = {name: value for name, value in options.items() if name != "subscribePattern"}
    assert set(StreamPlanner(read_options(options)).latest(read, None)) == {"t", "u"}
    for changed, sentence in (
        (
            {**options, "broker": "1"},
            "t/0-0 was read up to 100, and option broker is 1 now, which gives its messages ot",
        ),
        ({**options, "layout": "{broker}/{topic}-{partition}"}, "option broker conflicts"),
        ({**plain, "subscribe": "t"}, "u/0-0 was read up to 100, and option subscribe is t now; select it again, or"),
        ({**plain, "subscribePattern": "u"}, "t/0-0 was read up to 100, and option subscribePattern is u now; select"),
        ({**plain, "assign": '{"t": ["0-0"]}'}, "u/0-0 was read up to 100, and option assign is without u/0-0 now; se"),
    ):
        with pytest.raises(OptionError) as failure:
            StreamPlanner(read_options(changed)).latest(read, None)
        assert str(failure.value).startswith(sentence)
        assert "failOnDataLoss" not in str(failure.value)
    fewer = {**plain, "subscribe": "t", "failOnDataLoss": "false"}
    with caplog.at_level(logging.WARNING):
        assert StreamPlanner(read_options(fewer)).latest(read, None)["u"] == {"0-0": 100}
    assert caplog.messages == ["u/0-0 was read up to 100, and option subscribe is t now; continuing without it"]
    with pytest.raises(OptionError, match="u/0-0 was to be read up to 500, and option subscribe is t now"):
        StreamPlanner(read_options({**plain, "subscribe": "t"})).splits(read, {"u": {"0-0": 500}})
    with pytest.raises(OptionError, match="gives its messages other identities; set it as it was"):
        StreamPlanner(read_options({**options, "broker": "1", "failOnDataLoss": "false"})).latest(read, None)


@pytest.mark.parametrize(
    ("options", "name", "sentence"),
    [
        ({"path": "x"}, "0-0", "option broker is not set now"),
        ({"path": "x", "broker": "0"}, "0", "option broker is 0 now"),
        (
            {"path": "x", "layout": "{broker}/{topic}-{partition}"},
            "0",
            "option layout is {broker}/{topic}-{partition} now",
        ),
        ({"path": "x", "layout": "{broker}/{topic}-{partition}"}, "0-0", None),
        ({"bootstrap": "k:9092"}, "0-0", "option bootstrap is set now"),
        ({"bootstrap": "k:9092"}, "0", None),
        ({"zookeeper": "z:2181"}, "0", "option zookeeper is set now"),
        ({"brokers": "0=k:9092", "partitions": "1"}, "1-0", None),
    ],
)
def test_names_the_option_that_gives_partitions_other_names(
    options: dict[str, str], name: str, sentence: str | None
) -> None:
    assert renamed(read_options({**options, "subscribe": "t"}), ("t", name)) == sentence


def test_names_brokers_that_are_not_listed_any_more() -> None:
    read = read_options({"brokers": "0=k:9092,2=k:9093", "partitions": "1", "subscribe": "t"})
    assert deselected(read, ("t", "1-0")) == "option brokers has 0, 2 now"
    assert deselected(read, ("t", "2-0")) is None


INSIDE = "t/0 was read up to 120, which is inside the message that begins at 100 now, so the log was replaced"


def test_an_offset_inside_a_message_is_another_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    start, end = {"t": {"0": 120}}, {"t": {"0": 500}}
    follower = follow(tmp_path)
    assert follower.latest(start, None) == end
    with pytest.raises(DataLossError, match=INSIDE):
        follower.splits(start, end)
    assert ranges(follower, {"t": {"0": 100}}, end) == ["t/0 from 100 to 500"]
    with caplog.at_level(logging.WARNING):
        (split,) = follow(tmp_path, failOnDataLoss="false").splits(start, end)
    assert caplog.messages == [f"{INSIDE}; continuing without them"]
    assert isinstance(split, V07Split)
    rows = [row for each in read_split(split, ReadRequest(("offset", "_corrupt"))) for row in each.to_pylist()]
    assert [row["offset"] for row in rows] == [120, *range(150, 500, 50)]
    assert [row["_corrupt"] is None for row in rows] == [False, *[True] * 7]


def test_damaged_bytes_at_a_boundary_are_not_another_log(tmp_path: Path) -> None:
    bad = MESSAGES[2][:-1] + b"X"
    append(tmp_path, "t-0", 0, *MESSAGES[:2], bad, *MESSAGES[3:])
    assert ranges(follow(tmp_path), {"t": {"0": 100}}, {"t": {"0": 500}}) == ["t/0 from 100 to 500"]


def test_named_topics_must_exist_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    named = StreamPlanner(read_options({"path": str(tmp_path), "subscribe": "t"}))
    with pytest.raises(NotFoundError, match="topic t does not exist"):
        named.initial()
    follower = follow(tmp_path)
    assert follower.initial() == {}
    append(tmp_path, "t-0", 0, *MESSAGES)
    assert follow(tmp_path).latest({}, None) == {"t": {"0": 0}}


def test_pickled_readers_have_no_planner(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    source = ConsumerdDataSource({"path": str(tmp_path), "subscribe": "t"})
    schema = StructType().add("offset", "long").add("value", "binary")
    batch = source.reader(schema)
    assert type(batch) is BatchReader
    (split,) = batch.partitions()
    stream = ConsumerdDataSource({**source.options, "maxBytesPerTrigger": "77"}).streamReader(schema)
    assert stream.getDefaultReadLimit() == ReadMaxBytes(77)
    assert source.streamReader(schema).getDefaultReadLimit() == ReadAllAvailable()
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    assert start == {"t": {"0": 500}}
    assert stream.latestOffset({"t": {"0": 0}}, ReadMaxBytes(99)) == {"t": {"0": 50}}
    assert stream.latestOffset({"t": {"0": 0}}, ReadAllAvailable()) == {"t": {"0": 500}}
    stream.commit(start)

    program = (
        "import pickle, sys\n"
        "source, batch, stream, split = pickle.loads(sys.stdin.buffer.read())\n"
        "for reader in (batch, stream):\n"
        "    print(sum(len(each) for each in reader.read(split)))\n"
        "print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('consumerd.')}))\n"
        "print([name for name in ('aiozk', 'asyncio', 'pydantic', 'structlog', 'fsspec') if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps((source, batch, stream, split)),
        capture_output=True,
        check=True,
    )
    lines = found.stdout.decode().splitlines()
    assert lines[:2] == ["10", "10"]
    assert lines[2].split() == [f"consumerd.{name}" for name in ("base", "spark", "storage", "wire")]
    assert lines[3] == "[]"


def test_estimates_messages_per_trigger_from_the_next_messages(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    start = follow(tmp_path).initial()
    assert follow(tmp_path, maxOffsetsPerTrigger="3").latest(start, 3) == {"t": {"0": 150}}
    zipped = encode_message_set([b"%d" % number * 20 for number in range(100)], codec=Codec.GZIP)
    append(tmp_path, "u-0", 0, *[zipped] * 10)
    begun = {"t": {"0": 500}, "u": {"0": 0}}
    end = follow(tmp_path, maxOffsetsPerTrigger="350").latest(begun, 350)
    # A compressed message is one place of the log and a hundred messages: three of them, and a half that is left.
    assert end == {"t": {"0": 500}, "u": {"0": 3 * len(zipped)}}


def test_limit_in_messages_is_a_limit_of_rows_for_spark(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    options = {"path": str(tmp_path), "subscribe": "t", "maxOffsetsPerTrigger": "4", "startingOffsets": "earliest"}
    reader = ConsumerdDataSource(options).streamReader(StructType())
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert reader.latestOffset(reader.initialOffset(), ReadMaxRows(4)) == {"t": {"0": 200}}


def test_errors_of_a_streams_options_reach_spark_as_their_sentence(tmp_path: Path) -> None:
    append(tmp_path, "t-0", 0, *MESSAGES)
    given = {"path": str(tmp_path), "subscribe": "t"}
    for options, columns, sentence in (
        ({**given, "endingOffsets": "latest"}, "offset", "OptionError: option endingOffsets is not supported in a str"),
        ({**given, "subscribe": ""}, "offset", "OptionError: option subscribe is empty"),
        (given, "page", "ColumnError: "),
    ):
        # Spark's runner calls a reader that it could not make, and reports only that.
        reader = _streamReader(ConsumerdDataSource(dict(options)), StructType().add(columns, "long"))
        check_support_func(reader, BytesIO())
        calls: list[Callable[[], object]] = [
            reader.initialOffset,
            reader.getDefaultReadLimit,
            reader.prepareForTriggerAvailableNow,  # type: ignore[attr-defined]
            lambda reader=reader: reader.latestOffset({}, ReadAllAvailable()),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(ConsumerdError) as failure:
                call()
            assert f"{type(failure.value).__name__}: {failure.value}".startswith(sentence)
            assert failure.value.__suppress_context__, "Spark shows the sentence and no other error"
        reader.stop()
