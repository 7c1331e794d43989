"""Directories -> positions, splits and what is lost: batches planned without Spark."""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThanOrEqual,
    Not,
)

from consumerd.base.errors import ConsumerdError, NotFoundError
from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.errors import DataLossError, FileReadError
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner, plan_batch
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import FileRange, V07Split
from consumerd.spark.source.v07.archive_origin import OverlapError
from consumerd.spark.source.v07.reading import read_split
from consumerd.storage.archives.errors import NoSourceError
from consumerd.storage.log.archive_names import MisnamedSegmentError
from consumerd.wire.v07 import Codec, encode_message, encode_message_set


def write(folder: Path, name: str, start: int, *messages: bytes) -> Path:
    path = folder / name / f"{start:020d}.kafka"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(messages))
    return path


def plan(folder: Path, *filters: Filter, **options: Any) -> list[V07Split]:
    pruning = Pruning()
    list(pruning.push(filters))
    given = {"path": folder, "subscribe": "t", **options}
    found = plan_batch(read_options({name: str(value) for name, value in given.items()}), pruning)
    assert all(isinstance(split, V07Split) for split in found)
    return found  # type: ignore[return-value]  # as was asserted


def ranges(splits: list[V07Split]) -> list[tuple[str, int, int]]:
    return [(split.broker_partition, split.start, split.end) for split in splits]


def values(splits: list[V07Split]) -> list[bytes]:
    request = ReadRequest(("value",), ParseMode.FAILFAST)
    return [value for split in splits for batch in read_split(split, request) for value in batch["value"].to_pylist()]


MESSAGES = [encode_message(b"%d" % number * 20) for number in range(10, 20)]  # 50 bytes each


def test_segments_become_splits_cut_at_messages(tmp_path: Path) -> None:
    write(tmp_path, "t-0", 0, *MESSAGES)
    write(tmp_path, "t-0", 500, *MESSAGES[:2])
    write(tmp_path, "other-0", 0, *MESSAGES)
    assert ranges(plan(tmp_path)) == [("0", 0, 500), ("0", 500, 600)]
    assert ranges(plan(tmp_path, broker=4)) == [("4-0", 0, 500), ("4-0", 500, 600)]
    assert ranges(plan(tmp_path, maxSplitBytes=170)) == [
        ("0", 0, 150),
        ("0", 150, 250),
        ("0", 250, 350),
        ("0", 350, 500),
        ("0", 500, 600),
    ]
    assert ranges(plan(tmp_path, maxSplitBytes=1))[:2] == [("0", 0, 50), ("0", 50, 100)]
    assert len(plan(tmp_path, minPartitions=6)) == 6
    assert [split.location for split in plan(tmp_path)] == [
        FileRange(str(tmp_path / "t-0" / f"{start:020d}.kafka"), start) for start in (0, 500)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_reads_everything_once_with_any_cuts(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    wanted, start = [], 0
    for _ in range(3):
        sets = []
        for _ in range(12):
            payloads = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 30))]
            wanted += payloads
            sets.append(encode_message_set(payloads, codec=rng.choice(list(Codec))))
        start += write(tmp_path, "t-0", start, *sets).stat().st_size
    for most in (0, 100, 1000, 4000):
        assert values(plan(tmp_path, maxSplitBytes=most)) == wanted


def test_resolves_positions(tmp_path: Path) -> None:
    write(tmp_path, "t-0", 0, *MESSAGES)
    write(tmp_path, "t-1", 1000, *MESSAGES)
    both = json.dumps({"t": {"0": 150, "1": -2}})
    assert ranges(plan(tmp_path, startingOffsets=both)) == [("0", 150, 500), ("1", 1000, 1500)]
    assert ranges(plan(tmp_path, startingOffsets=both, endingOffsets='{"t": {"0": 150, "1": 1050}}')) == [
        ("1", 1000, 1050)
    ]
    assert plan(tmp_path, startingOffsets="latest") == []
    one = {"path": str(tmp_path), "assign": '{"t": ["1"]}'}
    assert [str(split) for split in plan_batch(read_options(one), Pruning())] == ["t/1 from 1000 to 1500"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"startingOffsets": '{"t": {"0": 60}}'},
            "names 60 of t/0, where no message begins; the message around it begins at",
        ),
        ({"endingOffsets": '{"t": {"0": 499}}'}, "endingOffsets names 499 of t/0, where no message begins; "),
        (
            {"startingOffsets": '{"t": {"7": 0}}'},
            "option startingOffsets names t/7, which is not among the partitions",
        ),
        ({"startingOffsets": "{}"}, r"option startingOffsets leaves out t/0; name it \(-2: earliest, -1: latest\)"),
        (
            {"startingOffsets": '{"t": {"0": 100}}', "endingOffsets": '{"t": {"0": 50}}'},
            "t/0 starts at 100, after its",
        ),
        (
            {"startingOffsets": '{"t": {"0": 550}}'},
            "startingOffsets names offset 550 of t/0, whose log has offsets 0 to 500; start elsewh",
        ),
        ({"subscribe": "tt"}, r"topic tt does not exist, did you mean 't'\?"),
        ({"assign": '{"t": ["0-0"]}', "subscribe": None}, r"partition t/0-0 does not exist; existing: 0"),
        (
            {"subscribePattern": "u.*", "subscribe": None, "startingOffsets": '{"u": {"0": 1}}'},
            "names u/0, which is not among",
        ),
    ],
)
def test_rejects_invalid_positions(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    write(tmp_path, "t-0", 0, *MESSAGES)
    given = {"path": str(tmp_path), "subscribe": "t", **options}
    with pytest.raises(ConsumerdError, match=sentence):
        plan_batch(read_options({name: value for name, value in given.items() if value is not None}), Pruning())


def test_rejects_an_offset_inside_a_compressed_message_or_after_damage(tmp_path: Path) -> None:
    wrapper = encode_message_set([b"ab", b"cd"], codec=Codec.SNAPPY)
    bad = encode_message(b"x" * 30)[:-1] + b"y"
    write(tmp_path, "t-0", 0, wrapper, bad, *MESSAGES)
    inner = wrapper.index(encode_message(b"ab")[:5])
    with pytest.raises(OptionError, match="the message around it begins at 0"):
        plan(tmp_path, startingOffsets=json.dumps({"t": {"0": inner}}))
    behind = len(wrapper) + len(bad)
    assert plan(tmp_path, startingOffsets=json.dumps({"t": {"0": behind}}))[0].start == behind
    write(tmp_path, "t-0", 0, wrapper, b"\xff" * 40, *MESSAGES)
    with pytest.raises(OptionError, match="what precedes it cannot be read"):
        plan(tmp_path, startingOffsets=json.dumps({"t": {"0": len(wrapper) + 40}}))


def test_start_by_timestamp_is_precise_to_segments(tmp_path: Path) -> None:
    for number, seconds in enumerate((1000, 2000, 3000)):
        path = write(tmp_path, "t-0", number * 500, *MESSAGES)
        os.utime(path, (seconds, seconds))
    starts = {1000: 0, 2_000_000: 500, 2_500_000: 500, 5_000_000: 1000, 4_000_000_000_000: None}
    for time_ms, start in starts.items():
        found = plan(tmp_path, startingTimestamp=time_ms)
        assert (found[0].start if found else None) == start


def test_each_partition_may_have_its_own_start_timestamp(tmp_path: Path) -> None:
    for partition in ("t-0", "t-1"):
        for number, seconds in enumerate((1000, 2000, 3000)):
            path = write(tmp_path, partition, number * 500, *MESSAGES)
            os.utime(path, (seconds, seconds))
    times = json.dumps({"t": {"0": 2_500_000, "1": 5_000_000}})
    found = plan(tmp_path, startingOffsetsByTimestamp=times)
    assert {split.partition: split.start for split in reversed(found)} == {0: 500, 1: 1000}
    with pytest.raises(OptionError, match=r"option startingOffsetsByTimestamp leaves out t/1; name it$"):
        plan(tmp_path, startingOffsetsByTimestamp='{"t": {"0": 1}}')
    with pytest.raises(OptionError, match="names t/2, which is not among the partitions that are read"):
        plan(tmp_path, startingOffsetsByTimestamp='{"t": {"0": 1, "1": 1, "2": 1}}')


def test_missing_segments_follow_fail_on_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "t-0", 100, *MESSAGES)
    write(tmp_path, "t-0", 700, *MESSAGES)
    with pytest.raises(
        DataLossError, match="t/0 has no messages from offset 600 to 700; start elsewhere, or set failOnDataLoss"
    ):
        plan(tmp_path)
    assert ranges(plan(tmp_path, startingOffsets='{"t": {"0": 700}}')) == [("0", 700, 1200)]
    with caplog.at_level(logging.WARNING):
        early = '{"t": {"0": 0}}'
        assert ranges(plan(tmp_path, failOnDataLoss="false", startingOffsets=early)) == [
            ("0", 100, 600),
            ("0", 700, 1200),
        ]
    assert [record.getMessage() for record in caplog.records] == [
        "startingOffsets names offset 0 of t/0, whose log has offsets 100 to 1200; continuing without them",
        "t/0 has no messages from offset 600 to 700; continuing without them",
    ]


def test_leaves_a_torn_tail_for_later_and_reads_malformed_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, "t-0", 0, *MESSAGES, MESSAGES[0][:-3])
    assert ranges(plan(tmp_path)) == [("0", 0, 500)]
    write(tmp_path, "t-0", path.stat().st_size, *MESSAGES)
    assert ranges(plan(tmp_path))[0] == ("0", 0, 547), "a torn end in the midst of a log is damage, which is read"
    write(tmp_path, "t-1", 0, *MESSAGES, b"\xff" * 50)
    assert ranges(plan(tmp_path))[-1] == ("1", 0, 550)


def test_rejects_inconsistent_files(tmp_path: Path) -> None:
    write(tmp_path / "a", "t-0", 0, *MESSAGES)
    write(tmp_path / "b", "t-0", 450, *MESSAGES)
    with pytest.raises(OverlapError, match="both hold offset 450 of t/0; read only one, or name the broker in"):
        plan(tmp_path)
    assert ranges(plan(tmp_path / "a")) == [("0", 0, 500)]
    assert ranges(plan(tmp_path, layout="{topic}-{partition}", path=f"{tmp_path / 'b'}")) == [("0", 450, 950)]
    with pytest.raises(NoSourceError, match="does not exist"):
        plan(tmp_path / "c")
    (tmp_path / "d").mkdir()
    with pytest.raises(NotFoundError, match="topic t does not exist; there is nothing to read"):
        plan(tmp_path / "d")
    (tmp_path / "d" / "1.kafka").write_bytes(b"")
    with pytest.raises(MisnamedSegmentError, match="does not match the layout"):
        plan(tmp_path / "d")
    (tmp_path / "f").mkdir()
    with tarfile.open(tmp_path / "f" / "x.tar", "w") as tar:
        tar.add(tmp_path / "a", "a")
    with pytest.raises(FileReadError, match="kafka cannot be read in its packed form"):
        plan(tmp_path / "f")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_reads_packed_segments_in_one_split(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    for start in (0, 500):
        plain = write(tmp_path, "t-0", start, *MESSAGES)
        plain.with_name(plain.name + suffix).write_bytes(compress(plain.read_bytes()))
        plain.unlink()
    splits = plan(tmp_path, maxSplitBytes=100)
    assert ranges(splits) == [("0", 0, 500), ("0", 500, 1000)]
    follower = StreamPlanner(read_options({"path": str(tmp_path), "subscribe": "t"}))
    assert follower.latest({"t": {"0": 0}}, 700) == {"t": {"0": 500}}
    assert follower.latest({"t": {"0": 0}}, 70) == {"t": {"0": 500}}
    assert values(splits) == [b"%d" % number * 20 for number in range(10, 20)] * 2


def test_brokers_in_the_layout_have_their_own_partitions(tmp_path: Path) -> None:
    for broker in (1, 2):
        write(tmp_path / f"broker-{broker}", "t-0", 0, *MESSAGES[:broker])
    layout = "broker-{broker}/{topic}-{partition}"
    assert ranges(plan(tmp_path, layout=layout)) == [("1-0", 0, 50), ("2-0", 0, 100)]


def test_filters_prune_splits(tmp_path: Path) -> None:
    for broker in (1, 2):
        for partition in (0, 1):
            write(tmp_path / str(broker), f"t-{partition}", 0, *MESSAGES)
            write(tmp_path / str(broker), f"t-{partition}", 500, *MESSAGES)

    def left(*filters: Filter) -> list[tuple[str, int]]:
        return [
            (split.broker_partition, split.start)
            for split in plan(tmp_path, *filters, layout="{broker}/{topic}-{partition}")
        ]

    assert len(left()) == 8
    assert len(left(EqualTo(("topic",), "t"), IsNotNull(("broker",)))) == 8
    assert left(EqualTo(("topic",), "u")) == left(IsNull(("broker",))) == left(EqualTo(("broker",), None)) == []
    one = [("2-0", 0), ("2-0", 500)]
    assert left(EqualTo(("broker_partition",), "2-0")) == one
    assert left(EqualNullSafe(("broker",), 2), In(("partition",), (0, 5))) == one
    assert left(EqualTo(("broker_partition",), "2-0"), GreaterThan(("offset",), 499)) == one[1:]
    assert left(EqualTo(("broker_partition",), "2-0"), LessThanOrEqual(("offset",), 499)) == one[:1]
    assert left(EqualTo(("broker_partition",), "2-0"), In(("offset",), (3, 600))) == one
    exact: list[Filter] = [EqualTo(("topic",), "t"), IsNull(("broker",))]
    checked: list[Filter] = [EqualTo(("offset",), 5), Not(EqualTo(("topic",), "t")), EqualTo(("index",), 1)]
    assert list(Pruning().push([*exact, *checked])) == checked


def test_planning_reads_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "t-0", 0, *(encode_message(os.urandom(4000)) for _ in range(8000)))
    read = 0
    real = os.pread

    def counted(file: int, size: int, position: int) -> bytes:
        nonlocal read
        data = real(file, size, position)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    splits = plan(tmp_path, maxSplitBytes="16m")
    assert [split.start for split in splits[1:]] == [split.end for split in splits[:-1]]
    assert all(left.end % 4010 == 0 for left, _ in pairwise(splits))
    assert len(splits) == 2
    assert read < path.stat().st_size * 0.8
