from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.files import SystemFiles
from consumerd.spark.progress import (
    BatchProgress,
    ProgressHistory,
    ProgressLog,
    SourceLag,
    lag,
    source_metrics,
)

STARTED = datetime(2026, 11, 21, 17, tzinfo=UTC)
BATCH = BatchProgress(
    "q", "r", 3, STARTED, 1.5, 90, (SourceLag("clicks", "0-1", 60), SourceLag("clicks", "0-2", 30)), 0, 60, 30.0
)


def lag_of(end: dict[str, int], latest: dict[str, int]) -> list[SourceLag] | None:
    return lag(json.dumps({"clicks": end}), json.dumps({"clicks": latest}))


def test_records_the_progress_of_a_batch() -> None:
    lags = lag_of({"0-1": 40, "0-2": 70, "0-10": 5}, {"0-1": 100, "0-2": 100, "0-10": 5, "0-3": 8})
    batch = BatchProgress.of("q", "r", 3, STARTED, 1.5, lags)
    assert batch == BATCH
    assert batch.ended == STARTED + timedelta(seconds=1.5)
    assert BatchProgress.of("q", "r", 3, STARTED, 1.5, None) == BatchProgress("q", "r", 3, STARTED, 1.5, None)


def test_metrics_are_named_as_in_sparks_connector() -> None:
    source: dict[str, Any] = {
        "startOffset": json.dumps({"clicks": {"0-1": 20, "0-2": 70}}),
        "endOffset": json.dumps({"clicks": {"0-1": 40, "0-2": 70, "0-10": 5}}),
        "latestOffset": json.dumps({"clicks": {"0-1": 100, "0-2": 100, "0-10": 5}}),
        "numInputRows": 4,
    }
    progress = {"sources": [source]}
    behind = {"minOffsetsBehindLatest": 0.0, "maxOffsetsBehindLatest": 60.0, "avgOffsetsBehindLatest": 30.0}
    messages = {"minMessagesBehindLatest": 0, "maxMessagesBehindLatest": 12, "avgMessagesBehindLatest": 6}
    assert source_metrics(progress) == {**behind, "unit": "bytes", **messages}, "four messages took twenty bytes"
    assert source_metrics(progress, counts_messages=True) == {**behind, "unit": "messages"}
    source["latestOffset"] = None
    assert source_metrics(progress) is None


def test_names_only_the_partitions_with_the_most_lag() -> None:
    lags = lag_of({f"0-{n}": 0 for n in range(1000)}, {f"0-{n}": n for n in range(1000)})
    batch = BatchProgress.of("q", "r", 0, STARTED, 1.5, lags)
    assert batch.behind == sum(range(1000))
    assert [one.behind for one in batch.furthest] == [999, 998, 997, 996, 995]


@pytest.mark.parametrize("latest", [None, "null", "7", "[1]", '{"t": 1}', '{"t": {"0-1": "x"}}', '{"t"', "[" * 100_000])
def test_a_source_without_a_latest_offset_has_no_lag(latest: str | None) -> None:
    assert lag('{"t": {"0-1": 1}}', latest) is None


def test_lag_is_never_negative() -> None:
    assert lag('{"t": {"0-1": 5}}', '{"t": {"0-1": 3}}') == [SourceLag("t", "0-1", 0)]


@pytest.fixture
def log(tmp_path: Path) -> ProgressLog:
    return ProgressLog(SystemFiles(), f"{tmp_path}/deep/land.ndjson", max_batches=64)


def test_reads_batches_as_written(log: ProgressLog) -> None:
    assert log.read().batches == ()
    log.add([BATCH])
    again = replace(BATCH, run="s", started=STARTED + timedelta(minutes=1), seconds=2.0)
    log.add([replace(BATCH, batch=4, behind=None, furthest=()), again])
    history = log.read()
    assert [(batch.batch, batch.run, batch.behind) for batch in history.batches] == [(4, "r", None), (3, "s", 90)]
    assert history.batches[1] == again


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"1",
        b"\xff",
        b'{"started": 3}',
        b'{"started": "2026"}',
        b'{"started": "0001-01-01T00:00:00+23:59"}',
        b'{"query"',
        pytest.param(b"[" * 100_000, id="nested"),
    ],
)
def test_counts_unreadable_lines_and_drops_them(log: ProgressLog, tmp_path: Path, line: bytes) -> None:
    log.add([BATCH])
    with (tmp_path / "deep" / "land.ndjson").open("ab") as file:
        file.write(line + b"\n\n")
    history = log.read()
    assert (history.batches, history.unreadable) == ((BATCH,), 1)
    log.add([])
    assert log.read() == ProgressHistory((BATCH,))


def test_file_is_bounded_and_covers_the_whole_history(log: ProgressLog) -> None:
    for number in range(300):
        log.add([replace(BATCH, batch=number, started=STARTED + timedelta(seconds=number), behind=number % 7)])
    batches = log.read().batches
    numbers = [batch.batch for batch in batches]
    assert len(numbers) <= 64
    assert numbers[0] < 30
    assert numbers[-32:] == list(range(268, 300))
    assert numbers == sorted(set(numbers))
    assert 6 in {batch.behind for batch in batches[:8]}  # the worst of the oldest survive


def test_a_failed_write_costs_no_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").write_text("a file")
    ProgressLog(SystemFiles(), f"{tmp_path}/folder/land.ndjson").note(BATCH)
    assert "progress_write_failed" in capsys.readouterr().out


def test_measures_the_lag_within_one_log() -> None:
    end = '{"t": {"0": {"offset": 200, "topic_id": "f"}, "1": {"offset": 5, "topic_id": "f"}, "2": 1}}'
    latest = (
        '{"t": {"0": {"offset": 300, "topic_id": "n"}, "1": {"offset": 7, "topic_id": "f"}, '
        '"2": {"offset": 4, "topic_id": "f"}}}'
    )
    assert lag(end, latest) == [SourceLag("t", "1", 2), SourceLag("t", "2", 3)]
    source = {"startOffset": end, "endOffset": latest, "latestOffset": latest, "numInputRows": 5}
    found = source_metrics({"sources": [source]}, counts_messages=True)
    assert found is not None
    assert found["maxOffsetsBehindLatest"] == 0
