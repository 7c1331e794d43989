"""What is read for `reconcile`: tasks read files and splits with Arrow, and the driver compares their runs.

Strategy: what is compared is `consumerd.spark.reconciliation`'s. A task returns a few numbers as long as its rows
follow each other, so the driver holds little; the tasks run in worker processes, or as tasks of Spark, which is the
caller's choice.

Where a partition's hashes differ, the sums of some thousand ranges of its offsets are compared first, and then only the
rows of the ranges that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.former_logs import FormerLog
from consumerd.spark.lake.coverage import found_stretches, merged_stretches, sweep
from consumerd.spark.lake.parts import TASK_BYTES, Part, ReadTable, Runner, grouped
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
from consumerd.spark.proven import ProvenRange
from consumerd.spark.reconcile_expected import RangeToLand, drops_malformed, source_options
from consumerd.spark.reconcile_result import PARTITION, LogStretches
from consumerd.spark.runs import PLACE, RUN_SCHEMA, joined
from consumerd.spark.source.columns import CORRUPT, ParseMode, arrow_schema
from consumerd.spark.source.options import read_options
from consumerd.spark.source.request import ReadRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.source.offsets import Key
    from consumerd.spark.spec import PipelineSpec

#: Messages that one task reads, where offsets count messages.
TASK_MESSAGES: Final = 500_000
_UNMARKED: Final = Marks()
#: Ranges of a partition whose hashes are compared before its rows are.
_SLOTS: Final = 4096


Found = dict["Key", dict[str, LogStretches]]
REFINED: Final = ("silver", "quarantine")
#: The tables that are compared.
TABLES: Final = ("bronze", *REFINED)


@dataclass(frozen=True, slots=True)
class RangeCount:
    """Sums over the runs of one partition; offsets are those of the log, hashes are modulo 2**64."""

    first: int = 0
    last: int = 0
    rows: int = 0
    seen: int = 0
    due: int = 0
    digest: int = 0
    #: As `digest`, of all rows.
    whole: int = 0
    proven_rows: int = 0
    proven_digest: int = 0

    def holds(self, proven: ProvenRange, *, hashed: bool) -> bool:
        """Whether the rows in the range are still those that proved it complete."""
        return self.proven_rows == proven.rows and (not hashed or self.proven_digest == proven.digest)


class TaskRuns:
    """What tasks read for the reconciliation of one pipeline; see the module's text.

    `spark`: None for checkpoints of this machine. `run`: as `WorkerPool.run`.
    """

    def __init__(
        self, spark: SparkSession | None, pipeline: PipelineSpec, tables: Mapping[str, ReadTable], run: Runner
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._tables = tables
        self._run = run
        self._former: tuple[FormerLog, ...] = ()
        # Queries may run meanwhile. The last batch of refine is read before that of land, and each
        # table is read up to there, so that no row is missing only because it was added in between.
        self._refined_to: int | None = None
        #: The tables that `refine` has written, and the last batch of each to be read.
        self._refined: dict[str, int] = {}
        self._refined_runs: dict[str, pa.Table] = {}
        self._find_refined()
        self._last_batch: int | None = None

    def _find_refined(self) -> None:
        """Find what `refine` has completed. Its checkpoint may count by versions (of Delta) instead of batches."""
        checkpoint = Checkpoint(self._spark, self._pipeline.checkpoint("refine"))
        done = checkpoint.last_committed()
        if self._pipeline.refine is None or done is None:
            return
        for name in REFINED:
            batches = self._table(name).batches()
            if batches:
                # A batch that is on its way does not count yet; one that refine does not have does, since it is wrong.
                last = batches[-1][-1]
                self._refined[name] = done if last > done and checkpoint.end(last) is not None else last
        end: Any = checkpoint.end(done)
        if isinstance(end, dict) and isinstance(end.get("batch"), int):
            self._refined_to = end["batch"]

    def _table(self, name: str) -> LakeTable:
        return self._tables[name].table

    def _first_landed(self) -> dict[Key, int]:
        """The first offset of each partition of bronze."""
        return {key: count.first for key, count in self._counts(self._table_runs("bronze", None)).items()}

    def _bronze_runs(
        self, pieces: list[tuple[Key, RangeToLand]], proven_ranges: Mapping[Key, ProvenRange], *, hashed: bool
    ) -> pa.Table:
        """Runs of bronze: `seen` where the source is read again, `due` where `refine` should have been, `proven` within
        a proven range.
        """
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
        """The layers `due` and `refined`; none where nothing was refined."""
        self._refined_runs = {name: self._table_runs(name, last) for name, last in self._refined.items()}
        if not self._refined_runs:
            return {}
        return {"due": bronze.filter(pc.field("due")), "refined": pa.concat_tables(self._refined_runs.values())}

    def _refined_counts(self, name: str) -> dict[Key, int]:
        """The rows of silver or quarantine, after `_refined_layers`."""
        return {key: count.rows for key, count in self._counts(self._refined_runs[name]).items()}

    def _source_runs(self, spans: Mapping[Key, RangeToLand], *, hashed: bool) -> tuple[pa.Table, pa.Table]:
        """Runs of the messages in the source, and of bytes that are not a message, where such are left out."""
        tasks, reading = self._source(spans, hashed=hashed)
        found = self._joined(find_runs, [(parts, reading, Marks()) for parts in tasks])
        return found.filter(pc.field("seen")), found.filter(~pc.field("seen"))

    def _span_runs(self, spans: Iterable[tuple[Key, RangeToLand]]) -> pa.Table:
        """Each span as one run; empty ones are left out."""
        rows = [(*key, span.start, span.end) for key, span in spans if span.start < span.end]
        columns: list[Any] = [*zip(*rows, strict=True)] or [[]] * 4
        zero, true = [0] * len(rows), [True] * len(rows)
        topic, name, start, end = columns
        return pa.table([topic, name, true, true, true, start, zero, end, zero, zero, zero], schema=RUN_SCHEMA)

    def _counts(self, runs: pa.Table) -> dict[Key, RangeCount]:
        """The sums over runs."""
        found: dict[Key, RangeCount] = {}
        for row in _sums(runs).to_pylist():
            key = row["topic"], row["broker_partition"]
            before = found.get(key, RangeCount(row["first"], row["last"]))
            sums = {
                name: (getattr(before, name) + row[column]) % (1 << 64)
                for name, (column, condition) in _SUMMED.items()
                if condition is None or row[condition]
            }
            first, last = min(before.first, row["first"]), max(before.last, row["last"])
            found[key] = replace(before, first=first, last=last, **sums)
        return found

    def _stretches(self, layers: Mapping[str, pa.Table], **conditions: bool) -> Found:
        """The stretches of the kinds that `consumerd.spark.lake.coverage.kinds` has for these conditions."""
        return found_stretches(sweep(layers), **conditions)

    def _duplicates(self, keys: list[Key]) -> dict[Key, int]:
        """Rows of bronze beyond the first of their identity, in the partitions that have any."""
        found = {}
        for key in keys:
            rows = self._bronze_rows({key: Window(-1 << 62, 1 << 62, 1 << 62)}, hashed=False, summed=False)
            places = rows.group_by(["offset", "index"], use_threads=False).aggregate([])
            found[key] = rows.num_rows - places.num_rows
        return found

    def _altered(self, spans: Mapping[Key, RangeToLand]) -> Found:
        """The stretches `altered`, where bronze has another value than the source; reads all of `spans` again."""
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


#: The sums of RangeCount: of which column, over which kind of runs.
_SUMMED: Final = {
    "rows": ("rows", None),
    "seen": ("rows", "seen"),
    "due": ("rows", "due"),
    "digest": ("hash", "seen"),
    "whole": ("hash", None),
    "proven_rows": ("rows", "proven"),
    "proven_digest": ("hash", "proven"),
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
