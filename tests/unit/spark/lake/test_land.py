"""`land` without Spark: every message once, whatever is killed, and one sentence for what stops it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from consumerd.base.errors import ConsumerdError
from consumerd.base.files import FileEntry, OsSystemCalls, StrPath, SystemFiles
from consumerd.spark.lake import land as land_module
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batches import BatchRunner
from consumerd.spark.lake.checkpoint import WritableCheckpoint
from consumerd.spark.lake.compact import compact
from consumerd.spark.lake.data_file import DataFile, DataFileWriter
from consumerd.spark.lake.delta import DeltaLakeTable
from consumerd.spark.lake.land import divide, land
from consumerd.spark.lake.table import LakeTable
from consumerd.spark.lake.workers import WorkerEndedError, WorkerPool
from consumerd.spark.source.errors import BrokerReadError
from consumerd.spark.source.split import FileRange, V07Split
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.tables.errors import TableError, TableOwnedError
from consumerd.wire.v07 import encode_message_set
from tests.support.lake_tables import list_late

VALUES = [b"%d" % number for number in range(300)]


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineSpec:
    """Two partitions, each of which has half of the messages, in batches of about 1500 bytes."""
    for partition in range(2):
        folder = tmp_path / "logs" / f"t-{partition}"
        folder.mkdir(parents=True)
        sets = b"".join(encode_message_set([value]) for value in VALUES[partition::2])
        (folder / f"{0:020}.kafka").write_bytes(sets)
    source = {"path": str(tmp_path / "logs"), "subscribe": "t", "maxBytesPerTrigger": "1500"}
    return PipelineSpec("p", str(tmp_path / "lake"), source, format="delta")


def landed(pipeline: PipelineSpec) -> list[dict[str, Any]]:
    rows = open_lake_table(pipeline.bronze).dataset().to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_lands_every_message_once(pipeline: PipelineSpec) -> None:
    result = land(pipeline, workers=1)
    assert (result.rows, result.batches, result.last_batch, result.stopped) == (300, 3, 2, False)
    rows = landed(pipeline)
    assert [row["value"] for row in rows] == VALUES[0::2] + VALUES[1::2]
    assert {row["batch"] for row in rows} == {0, 1, 2}
    assert land(pipeline, workers=1).rows == 0
    assert len(landed(pipeline)) == 300


class InlinePool:
    """Does the work of worker processes here."""

    count = 2

    def __init__(self, count: int) -> None: ...

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, function: Any, tasks: list[Any], *, on_progress: Any, tick: Any) -> list[Any]:
        return [self._result(function(*task)) for task in tasks]

    def check(self) -> None: ...

    def _result(self, work: Any) -> Any:
        try:
            while True:
                next(work)
        except StopIteration as end:
            return end.value


#: What changes something in each batch.
STEPS: tuple[tuple[Any, str], ...] = ((DeltaLakeTable, "commit"), (InlinePool, "run"), (BatchRunner, "_do"))


class Killed(BaseException):
    """The process ends here."""


def dying(
    monkeypatch: pytest.MonkeyPatch, at: int, *more: tuple[Any, str], kinds: tuple[tuple[Any, str], ...] = STEPS
) -> None:
    """Die before the call with that number of all that change something: each is also the end of the one before."""
    calls = iter(range(1000))

    def wrap(kind: Any, name: str) -> None:
        original = getattr(kind, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if next(calls) == at:
                raise Killed
            return original(*arguments, **named)

        monkeypatch.setattr(kind, name, call)

    for kind, name in (*kinds, *more):
        wrap(kind, name)


def test_a_kill_at_any_step_neither_loses_nor_doubles_a_message(
    tmp_path: Path, pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", InlinePool)
    died = 0
    while True:
        each = replace(pipeline, root=str(tmp_path / f"lake-{died}"), source={**pipeline.source, **TWO_BATCHES})
        with monkeypatch.context() as patched:
            dying(patched, died, (SystemFiles, "create"), (SystemFiles, "replace"), (DataFileWriter, "close"))
            try:
                land(each)
                break
            except Killed:
                died += 1
        land(each)
        rows = landed(each)
        assert [row["value"] for row in rows] == VALUES[0::2] + VALUES[1::2], f"killed at step {died - 1}"
        assert {row["batch"] for row in rows} == {0, 1}
        assert WritableCheckpoint(each.checkpoint("land")).last_committed() == 1
    assert died > 15


TWO_BATCHES = {"maxBytesPerTrigger": "2500"}


def test_a_killed_worker_is_named_and_its_batch_repeated(
    pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_one(pool: WorkerPool, *arguments: Any, tick: Any, **named: Any) -> list[Any]:
        def killing() -> None:
            tick()
            for process in pool.processes:
                os.kill(process, signal.SIGKILL)

        return run(pool, *arguments, tick=killing, **named)

    run = WorkerPool.run
    with monkeypatch.context() as patched:
        patched.setattr(WorkerPool, "run", kill_one)
        with pytest.raises(WorkerEndedError, match=r"^worker process \d+ was killed by SIGKILL: "):
            land(pipeline, workers=2)
    checkpoint = WritableCheckpoint(pipeline.checkpoint("land"))
    planned = checkpoint.end(0)
    assert land(pipeline, workers=2).rows == 300
    assert checkpoint.end(0) == planned
    assert [row["value"] for row in landed(pipeline)] == VALUES[0::2] + VALUES[1::2]


def test_a_full_disk_is_one_sentence(pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, path: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", InlinePool)
    with monkeypatch.context() as patched:
        patched.setattr(SystemFiles, "sync_file", full)
        with pytest.raises(TableError, match=r"/bronze cannot be written \(No space left on device\): check"):
            land(pipeline)
    assert land(pipeline).rows == 300


def test_a_broker_that_is_unavailable_is_one_sentence(pipeline: PipelineSpec) -> None:
    source = {"brokers": "0=127.0.0.1:1", "subscribe": "t", "partitions": "1"}
    with pytest.raises(BrokerReadError, match=r"127\.0\.0\.1:1"):
        land(replace(pipeline, source=source), workers=1)


def test_a_table_of_another_checkpoint_is_left_alone(pipeline: PipelineSpec) -> None:
    land(pipeline, workers=1)
    shutil.rmtree(pipeline.checkpoint("land"))
    with pytest.raises(TableOwnedError, match=r"^land of the pipeline p: .* was written with another checkpoint"):
        land(pipeline, workers=1)
    assert len(landed(pipeline)) == 300
    assert len(list(Path(pipeline.bronze).glob("*.parquet"))) == len(open_lake_table(pipeline.bronze).files())


def test_a_signal_ends_after_the_batch(pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def signalled(pool: InlinePool, *arguments: Any, **named: Any) -> list[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return run(pool, *arguments, **named)

    run = InlinePool.run
    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", InlinePool)
    monkeypatch.setattr(InlinePool, "run", signalled)
    result = land(pipeline)
    assert (result.stopped, result.batches) == (True, 1)
    assert 0 < result.rows < 300


def test_compaction_keeps_files_of_a_batch_that_is_under_way(
    pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", InlinePool)
    land(pipeline)
    checkpoint = WritableCheckpoint(pipeline.checkpoint("land"))
    written = Path(pipeline.bronze, "part-0.parquet")
    written.write_bytes(b"not committed yet")
    days = 86_400
    os.utime(written, (time.time() - 2 * days,) * 2)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: int((time.time() - 3 * days) * 1e9))
        checkpoint.plan(3, checkpoint.end(2))
    (result,) = compact(pipeline).tables
    assert (result.files_before, result.files_after, result.removed) == (3, 1, 0)
    checkpoint.complete(3)
    (result,) = compact(pipeline).tables
    assert (result.files_before, result.removed) == (1, 1)
    assert not written.exists()
    assert [row["value"] for row in landed(pipeline)] == VALUES[0::2] + VALUES[1::2]


def list_checkpoints_late(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Have listings of the logs of a checkpoint lack up to two of their newest entries, each time others."""
    found = OsSystemCalls.entries

    def late(self: OsSystemCalls, directory: StrPath) -> list[FileEntry]:
        entries = found(self, directory)
        if Path(directory).name not in ("offsets", "commits") or rng.random() < 0.7:
            return entries
        numbers = sorted(int(entry.name) for entry in entries if entry.name.isdigit())
        hidden = {str(number) for number in numbers[-rng.randint(1, 2) :]}
        return [entry for entry in entries if entry.name not in hidden]

    monkeypatch.setattr(OsSystemCalls, "entries", late)


@pytest.mark.parametrize("seed", range(3))
def test_two_runs_that_see_listings_late_land_each_message_once(
    pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two machines with one pipeline, on a mount without locks whose listings lag."""
    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", InlinePool)
    pipeline = replace(pipeline, source={**pipeline.source, "maxBytesPerTrigger": "600"})
    rng = random.Random(seed)
    refused: list[str] = []

    def run() -> None:
        for _ in range(200):
            try:
                land(pipeline)
            except ConsumerdError as error:  # what was read is no longer the newest
                refused.append(type(error).__name__)
            else:
                return
        raise AssertionError(refused[-10:])

    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as pool:
        patched.setattr(land_module, "locked", lambda *_: contextlib.nullcontext())
        lacking = list_late(patched, rng)
        list_checkpoints_late(patched, rng)
        for each in [pool.submit(run) for _ in range(2)]:
            each.result()
    assert sum(lacking)
    land(pipeline)
    files = [uri.removeprefix("file://") for uri in DeltaTable(pipeline.bronze).file_uris()]
    query = f'SELECT partition, "offset", value FROM read_parquet({files!r}) ORDER BY partition, "offset"'
    rows = duckdb.execute(query).fetchall()
    assert [value for _, _, value in rows] == VALUES[0::2] + VALUES[1::2]
    assert len({row[:2] for row in rows}) == len(rows)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_no_clock_loses_a_file_that_is_not_committed_yet(
    pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The clock is set back by an hour after a batch was planned, and ahead by a day before it is committed."""
    if form == "iceberg":
        pytest.importorskip("pyiceberg")
    pipeline = replace(pipeline, format=form)
    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", InlinePool)
    day, hour = 86_400, 3_600
    checkpoint = WritableCheckpoint(pipeline.checkpoint("land"))

    def commit(table: LakeTable, files: list[DataFile], *, batch: int, **rest: Any) -> bool:
        if batch == 1:  # what was written before looks older, as the clock of a vacuum sees it
            for file in files:
                os.utime(Path(table.path, file.path), (time.time() - day - hour,) * 2)
            with monkeypatch.context() as patched:
                at = time.time_ns() - day * 10**9
                patched.setattr(time, "time_ns", lambda: at)
                checkpoint.record(1, checkpoint.end(1))
            compact(pipeline)
            assert not any(Path(table.path, file.path).exists() for file in files)
        return bool(committed(table, files, batch=batch, **rest))

    kind = type(open_lake_table(pipeline.bronze, form))
    committed = kind.commit
    with monkeypatch.context() as patched:
        patched.setattr(kind, "commit", commit)
        with pytest.raises(TableError, match=r"removed before it was committed: check that the clock is right"):
            land(pipeline)
    assert open_lake_table(pipeline.bronze, form).batches() == (range(1),)
    land(pipeline)
    rows = open_lake_table(pipeline.bronze, form).dataset().to_table().to_pylist()
    assert sorted(row["value"] for row in rows) == sorted(VALUES)


@pytest.mark.parametrize(
    ("sizes", "workers", "counts_messages", "expected"),
    [
        ([], 4, False, []),
        ([10, 20, 30], 4, False, [3]),  # not worth a second worker
        ([64 << 20] * 4, 2, False, [2, 2]),
        ([64 << 20] * 8, 1, False, [2, 2, 2, 2]),  # no file of more than 128 MiB
        ([30_000] * 4, 2, True, [2, 2]),
    ],
)
def test_divides_a_batch_into_files(sizes: list[int], workers: int, counts_messages: bool, expected: list[int]) -> None:
    splits = [V07Split("t", 0, number, 0, size, FileRange("/", 0)) for number, size in enumerate(sizes)]
    parts = divide(splits, workers, counts_messages=counts_messages)
    assert [len(part) for part in parts] == expected
    assert [each for part in parts for each in part] == splits


def test_a_continuous_landing_ends_when_its_tasks_can_no_longer_run(
    pipeline: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndingPool(InlinePool):
        def check(self) -> None:
            raise ConsumerdError("the processes have ended")

    monkeypatch.setattr("consumerd.spark.lake.land.WorkerPool", EndingPool)
    with pytest.raises(ConsumerdError, match="the processes have ended"):
        land(replace(pipeline, trigger="1 hour"), available_now=False)
    assert len(landed(pipeline)) == 300
