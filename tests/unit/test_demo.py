from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditResult
from consumerd.demo.corpus import Measure, measure, named_corpus
from consumerd.demo.errors import DemoInputError
from consumerd.demo.feed import LONGEST_LINE, Feed, message_limit
from consumerd.demo.ledger import Ledger
from consumerd.demo.processes import BrokerProcess
from consumerd.demo.result import DemoResult
from consumerd.demo.view import MemberStanding, PlainView, Standing, TerminalView
from consumerd.demo.watch import DemoSnapshot, RecordCounter
from consumerd.storage.log.dump import read_segment
from consumerd.testing.brokers import segments_of
from consumerd.wire.v07 import Codec


async def feed(tmp_path: Path, content: bytes, seconds: float = 0.0) -> tuple[Feed, Ledger, Path]:
    """Feed `content` to one broker with two partitions; returns when the broker has stopped."""
    (tmp_path / "input").write_bytes(content)
    corpus = named_corpus(tmp_path / "input")
    ledger = Ledger()
    size = measure(corpus)
    settings = {"max.message.size": message_limit(size)}
    async with BrokerProcess(tmp_path / "broker", None, partitions=2, settings=settings) as broker:
        made = Feed(
            corpus, size, ledger, "t", {0: broker.port}, 2,
            seconds=seconds, clock=SystemClock(), rng=random.Random(1),
        )  # fmt: skip
        await made.run()
        await made.reached(1.0)
    return made, ledger, broker.log_directory


async def test_feed_spreads_lines_and_codecs(tmp_path: Path) -> None:
    lines = [b"line %d" % number for number in range(5_000)]
    lines[10:14] = [b"", b"\xff\xfe\r", b"long" * 500_000, b""]
    made, ledger, logs = await feed(tmp_path, b"\n".join(lines))
    assert made.sent == 5_000
    assert made.finished
    assert made.partitions == [TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)]
    for partition in made.partitions:
        ledger.read_log(logs, partition)
        one = ledger.partition(partition)
        assert one.held == one.sent > 2_000
        assert one.changed() == 0
        segments = segments_of(logs / f"t-{partition.partition}")
        codecs = {entry.codec for path, start in segments for entry in read_segment(path, start)}
        assert codecs == {Codec.NONE, Codec.GZIP, Codec.SNAPPY}


async def test_feed_keeps_its_pace_with_a_single_line(tmp_path: Path) -> None:
    clock = SystemClock()
    started = clock.monotonic()
    made, ledger, _ = await feed(tmp_path, b"only", seconds=0.3)
    assert clock.monotonic() - started >= 0.3
    assert made.sent == 1
    assert [one.sent for one in ledger.partitions.values()] == [1]


def test_message_limit_fits_the_longest_line() -> None:
    assert message_limit(Measure(1, 10, 10)) == 1_000_000
    assert message_limit(Measure(1, 3_000_000, 3_000_000)) > 3_000_000 * 7 // 6 + 32
    with pytest.raises(DemoInputError, match="the longest line"):
        message_limit(Measure(1, 1, LONGEST_LINE + 1))


def test_counts_record_files_as_they_grow(tmp_path: Path) -> None:
    counter = RecordCounter(tmp_path)
    assert counter.read() == 0
    one = json.dumps({"member": "m", "count": 3, "messages": []}, separators=(",", ":")).encode()
    with (tmp_path / "a.ndjson").open("wb", buffering=0) as file:
        file.write(b'{"claim":true}\n' + one + b"\n" + one[:25])
        assert counter.read() == 3
        assert counter.read() == 3
        file.write(one[25:] + b"\n")
        (tmp_path / "b.ndjson").write_bytes(one + b"\n")
        assert counter.read() == 9


def test_measures_lag_and_ownership() -> None:
    p, q, r = (TopicPartition("t", 0, number) for number in range(3))
    assert DemoSnapshot(ends={p: 10, q: 5, r: 0}, committed={p: 4}).lag == 11
    assert DemoSnapshot(ends={p: 10, q: 5, r: 0}, committed={p: 10, q: 5}).lag == 0
    assert DemoSnapshot(ends={p: 10}, committed={p: 12}).lag == 2  # ahead of the log is wrong, too
    assert DemoSnapshot(ends={p: 10, r: 0}).holding == {p}


def test_views_show_progress() -> None:
    text = io.StringIO()
    with PlainView(Console(file=text)) as plain:
        plain.happened(1.25, "[bold]as it is[/bold]")
        plain.update(Standing(1.0))
    assert text.getvalue() == "   1.2 s  [bold]as it is[/bold]\n"
    text = io.StringIO()
    with TerminalView(Console(file=text, force_terminal=True, width=100)) as live:
        live.happened(1.0, "something")
        live.update(Standing(2.0, 500, 1_000, 400, 12_345, [MemberStanding("daemon-1", "killed", 3)]))
    for part in ("something", "500 of 1,000", "400 of 1,000", "12,345 bytes", "daemon-1", "killed"):
        assert part in text.getvalue()


def test_result_is_one_flat_object() -> None:
    result = DemoResult(AuditResult(produced=5, handled=6, distinct=5, duplicated=1), rebalances=7, seconds=1.26)
    assert result.as_json() == {
        "produced": 5, "handled": 6, "distinct": 5, "duplicated": 1, "lost": 0, "out_of_order": 0, "corrupted": 0,
        "overlapping": 0, "rebalances": 7, "rows_landed": None, "rows_quarantined": None, "gaps": None,
        "duplicates": None, "report": None, "seconds": 1.3,
    }  # fmt: skip
