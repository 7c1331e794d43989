"""`reconcile` of tables of the lake: tasks read files and splits with Arrow, and the driver compares their runs.

Strategy: what is compared is `consumerd.spark.reconciliation`'s. A task returns a few numbers as long as its rows
follow each other, so the driver holds little; the tasks run in worker processes, or as tasks of Spark, which is the
caller's choice.

Where a partition's hashes differ, the sums of some thousand ranges of its offsets are compared first, and then only the
rows of the ranges that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batches import BatchDisplay, SilentDisplay
from consumerd.spark.lake.coverage import found_stretches, merged_stretches, sweep
from consumerd.spark.lake.parts import TASK_BYTES, Part, ReadTable, Runner, grouped, size_of
from consumerd.spark.lake.reconcile_tasks import (
    CONTENT,
    LOG,
    ROWS,
    SUMS,
    Marks,
    RowReading,
    Window,
    find_rows,
    find_runs,
)
from consumerd.spark.lake.table import BATCH, LakeTable
from consumerd.spark.lake.worker import WorkFunction
from consumerd.spark.lake.workers import WorkerPool, available_processors
from consumerd.spark.reconcile_expected import RangeToLand, drops_malformed, source_options
from consumerd.spark.reconcile_result import PARTITION, ReconcileResult
from consumerd.spark.reconciliation import TABLES, Found, ProvenRange, RangeCount, Reconciliation
from consumerd.spark.runs import PLACE, RUN_SCHEMA, joined
from consumerd.spark.source.columns import CORRUPT, ParseMode, arrow_schema
from consumerd.spark.source.options import read_options
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.source.offsets import Key
    from consumerd.spark.spec import PipelineSpec

#: Messages that one task reads, where offsets count messages.
TASK_MESSAGES: Final = 500_000
_UNMARKED: Final = Marks()
#: Ranges of a partition whose hashes are compared before its rows are.
_SLOTS: Final = 4096


def reconcile(
    pipeline: PipelineSpec, *, shallow: bool = False, workers: int | None = None, display: BatchDisplay | None = None
) -> ReconcileResult:
    """Compare the messages to be landed with the rows of the pipeline's tables, in worker processes.

    `shallow`: do not read the source again but where bronze has gaps; then nothing is counted there, and altered values
    are not noticed. Raises NotFoundError where nothing was landed yet, and what reading the source raises.
    """
    tables = {
        name: ReadTable(open_lake_table(locate(None, getattr(pipeline, name))[0], pipeline.format), pipeline.format)
        for name in TABLES
    }
    shown = display or SilentDisplay()
    with WorkerPool(workers or available_processors()) as pool:

        def run(function: WorkFunction, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
            shown.batch(None, sum(size_of(part) for parts, *_ in tasks for part in parts))
            return pool.run(function, tasks, on_progress=lambda each: shown.advance(*each), tick=shown.tick)

        return LakeReconciliation(None, pipeline, tables, run).result(shallow=shallow)


class LakeReconciliation(Reconciliation[pa.Table]):
    """Reads files and splits in tasks; see the module's text. `run`: as `WorkerPool.run`."""

    def __init__(
        self, spark: SparkSession | None, pipeline: PipelineSpec, tables: Mapping[str, ReadTable], run: Runner
    ) -> None:
        self._tables = tables
        self._run = run
        self._refined_runs: dict[str, pa.Table] = {}
        super().__init__(spark, pipeline, tables["bronze"].table)

    def _table(self, name: str) -> LakeTable:
        return self._tables[name].table

    def _first_landed(self) -> dict[Key, int]:
        return {key: count.first for key, count in self._counts(self._table_runs("bronze", None)).items()}

    def _bronze_runs(
        self, pieces: list[tuple[Key, RangeToLand]], proven_ranges: Mapping[Key, ProvenRange], *, hashed: bool
    ) -> pa.Table:
        seen: dict[Key, list[tuple[int, int]]] = {}
        for key, span in pieces:
            seen.setdefault(key, []).append((span.start, span.end))
        marks = Marks(
            seen=seen or None,
            proven={key: [(each.start, each.end)] for key, each in proven_ranges.items()} or None,
            due=self._refined_to,
        )
        return self._table_runs("bronze", self._last_batch, marks, hashed=hashed)

    def _refined_layers(self, bronze: pa.Table) -> dict[str, pa.Table]:
        self._refined_runs = {name: self._table_runs(name, last) for name, last in self._refined.items()}
        if not self._refined_runs:
            return {}
        return {"due": bronze.filter(pc.field("due")), "refined": pa.concat_tables(self._refined_runs.values())}

    def _refined_counts(self, name: str) -> dict[Key, int]:
        return {key: count.rows for key, count in self._counts(self._refined_runs[name]).items()}

    def _source_runs(self, spans: Mapping[Key, RangeToLand], *, hashed: bool) -> tuple[pa.Table, pa.Table]:
        tasks, reading = self._source(spans, hashed=hashed)
        found = self._joined(find_runs, [(parts, reading, Marks()) for parts in tasks])
        return found.filter(pc.field("seen")), found.filter(~pc.field("seen"))

    def _span_runs(self, spans: Iterable[tuple[Key, RangeToLand]]) -> pa.Table:
        rows = [(*key, span.start, span.end) for key, span in spans if span.start < span.end]
        columns: list[Any] = [*zip(*rows, strict=True)] or [[]] * 4
        zero, true = [0] * len(rows), [True] * len(rows)
        topic, name, start, end = columns
        return pa.table([topic, name, true, true, true, start, zero, end, zero, zero, zero], schema=RUN_SCHEMA)

    def _counts(self, runs: pa.Table) -> dict[Key, RangeCount]:
        found: dict[Key, dict[str, Any]] = {}
        for row in _sums(runs).to_pylist():
            key = row["topic"], row["broker_partition"]
            sums = found.setdefault(key, {"first": row["first"], "last": row["last"], **dict.fromkeys(_SUMMED, 0)})
            sums["first"], sums["last"] = min(sums["first"], row["first"]), max(sums["last"], row["last"])
            for name, condition in _SUMMED.items():
                if condition is None or row[condition]:
                    sums[name] += row["hash" if name.endswith("hash") else "rows"]
        return {key: RangeCount(sums) for key, sums in found.items()}

    def _stretches(self, layers: Mapping[str, pa.Table], **conditions: bool) -> Found:
        return found_stretches(sweep(layers), **conditions)

    def _duplicates(self, keys: list[Key]) -> dict[Key, int]:
        found = {}
        for key in keys:
            rows = self._bronze_rows({key: Window(-1 << 62, 1 << 62, 1 << 62)}, hashed=False, summed=False)
            places = rows.group_by(["offset", "index"], use_threads=False).aggregate([])
            found[key] = rows.num_rows - places.num_rows
        return found

    def _altered(self, spans: Mapping[Key, RangeToLand]) -> Found:
        found: Found = {}
        for key, span in spans.items():
            window = Window(span.start, span.end, -(-(span.end - span.start) // _SLOTS))
            slots = self._both({key: window}, {key: span}, summed=True)
            ours, theirs = ({row["slot"]: (row["hash"], row["rows"]) for row in each.to_pylist()} for each in slots)
            differing = frozenset(slot for slot in ours.keys() | theirs.keys() if ours.get(slot) != theirs.get(slot))
            rows = self._both({key: window._replace(slots=differing)}, {key: span}, summed=False)
            stretches = merged_stretches(_altered_places(*rows))
            found |= {each: {"altered": one} for each, one in stretches.items()}
        return found

    # -- tasks

    def _both(
        self, windows: Mapping[Key, Window], spans: Mapping[Key, RangeToLand], *, summed: bool
    ) -> tuple[pa.Table, pa.Table]:
        """The rows of bronze and those of the source, or sums of slots."""
        tasks, reading = self._source(spans, hashed=True)
        source = self._gathered([(parts, reading, windows, summed) for parts in tasks], summed=summed)
        return self._bronze_rows(windows, hashed=True, summed=summed), source

    def _bronze_rows(self, windows: Mapping[Key, Window], *, hashed: bool, summed: bool) -> pa.Table:
        tasks, reading = self._files("bronze", self._last_batch, hashed=hashed)
        return self._gathered([(parts, reading, windows, summed) for parts in tasks], summed=summed)

    def _gathered(self, tasks: Sequence[tuple[Any, ...]], *, summed: bool) -> pa.Table:
        found = pa.concat_tables([*self._run(find_rows, tasks), (SUMS if summed else ROWS).empty_table()])
        if not summed:
            return found
        sums = found.group_by([*PARTITION, "slot"], use_threads=False).aggregate([("hash", "sum"), ("rows", "sum")])
        return pa.table({"slot": sums["slot"], "hash": sums["hash_sum"], "rows": sums["rows_sum"]})

    def _table_runs(self, name: str, to: int | None, marks: Marks = _UNMARKED, *, hashed: bool = False) -> pa.Table:
        tasks, reading = self._files(name, to, hashed=hashed, due=marks.due is not None)
        return self._joined(find_runs, [(parts, reading, marks) for parts in tasks])

    def _joined(self, function: WorkFunction, tasks: Sequence[tuple[Any, ...]]) -> pa.Table:
        return joined(pa.concat_tables([RUN_SCHEMA.empty_table(), *self._run(function, tasks)]))

    def _files(
        self, name: str, to: int | None, *, hashed: bool, due: bool = False
    ) -> tuple[list[tuple[Part, ...]], RowReading]:
        """Tasks for the batches of a table up to `to`, in the order of the log, and how they are read."""
        table = self._tables[name].table
        names = (*PLACE, *(CONTENT if hashed else ()), *(LOG if self._former else ()))
        if not table.exists:
            return [], RowReading(arrow_schema(names))
        stored = table.schema()
        columns = [*arrow_schema([each for each in names if each in stored.names or each not in LOG])]
        schema = pa.schema([*columns, *([pa.field(BATCH, pa.int64())] if due else [])])
        return self._tables[name].tasks(to), RowReading(schema, None, self._former, hashed)

    def _source(self, spans: Mapping[Key, RangeToLand], *, hashed: bool) -> tuple[list[tuple[Part, ...]], RowReading]:
        """Tasks for these ranges of the source, and how they are read."""
        from consumerd.spark.source.planning import plan_batch  # noqa: PLC0415 - heavy, and not for workers

        options = read_options(source_options(self._pipeline, spans))
        dropping = drops_malformed(self._pipeline) and options.mode is ParseMode.PERMISSIVE
        columns = (*PLACE, *(CONTENT if hashed else ()), *((CORRUPT.name,) if dropping else ()))
        most = TASK_MESSAGES if options.counts_messages else TASK_BYTES
        return grouped(plan_batch(options), most), RowReading(
            arrow_schema(columns), ReadRequest.of(options, columns), (), hashed
        )


#: The sums of RangeCount, and the kind of runs that each adds.
_SUMMED: Final = {
    "rows": None,
    "seen_rows": "seen",
    "due_rows": "due",
    "hash": "seen",
    "whole_hash": None,
    "proven_rows": "proven",
    "proven_hash": "proven",
}


def _sums(runs: pa.Table) -> pa.Table:
    """One row for each partition and combination of kinds."""
    keys = [*PARTITION, "seen", "due", "proven"]
    unsigned = runs.set_column(runs.schema.get_field_index("hash"), "hash", runs["hash"].cast(pa.uint64(), safe=False))
    wanted = [("rows", "sum"), ("hash", "sum"), ("start_offset", "min"), ("end_offset", "max")]
    found = unsigned.group_by(keys, use_threads=False).aggregate(wanted)
    names = [*keys, "rows_sum", "hash_sum", "start_offset_min", "end_offset_max"]
    return found.select(names).rename_columns([*keys, "rows", "hash", "first", "last"])


def _altered_places(bronze: pa.Table, source: pa.Table) -> pa.Table:
    """The places of rows that are in both with different hashes, in order."""
    theirs = source.rename_columns([*PLACE, "expected"])
    ours = bronze.select(["offset", "index", "hash"])
    both = theirs.join(ours, ["offset", "index"], join_type="inner", use_threads=False)
    both = both.filter(pc.field("expected") != pc.field("hash")).sort_by(
        [(n, "ascending") for n in ("offset", "index")]
    )
    index = both["index"].cast(pa.int64())
    moves = pc.greater(both["next_offset"], both["offset"])
    ends = {
        "end_offset": pc.if_else(moves, both["next_offset"], both["offset"]),
        "end_index": pc.if_else(moves, 0, pc.add(index, 1)),
    }
    starts = {"start_offset": both["offset"], "start_index": index}
    return pa.table({name: both[name] for name in PARTITION} | starts | ends)
