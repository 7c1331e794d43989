"""`refine --again`: silver and quarantine rebuilt from bronze, beside the old tables, which they then replace.

Strategy: the rebuild is the step itself with other places (`PipelineSpec.rebuild`): tables and a checkpoint in
`<pipeline>-again`. So it may be killed at any time, and the same command continues; with another declaration it starts
over. It reads bronze up to the batch that the step's own checkpoint has reached, and its rows get numbers that this
checkpoint has used. So the step continues with what is new, and so does a reader that had read both tables to their
end; `aggregate` has to be one of these.

Then the files become those of the old tables, with one commit for each. A note says that this began: whichever run of
the step is next completes it, since a message could be in both tables in between. Readers see a whole table at any
time, and the former one as an older version.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.settings.setting import as_json
from consumerd.spark.checkpoints import Checkpoint, locked
from consumerd.spark.lake import open_lake_table
from consumerd.spark.lake.batch_files import LakeFiles
from consumerd.spark.lake.days import days_of
from consumerd.spark.lake.decode import REASON
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.table import LakeTable
from consumerd.spark.rebuild import Rebuild
from consumerd.spark.results import RefineResult
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

_DECLARED: Final = "declared.json"
_REPLACING: Final = "replacing.json"
_TABLES: Final = ("silver", "quarantine")


class RebuiltTables:
    """The tables of a pipeline and of its rebuild. `store`: options of the object store that has them."""

    def __init__(self, spark: SparkSession | None, pipeline: PipelineSpec, store: dict[str, str] | None = None) -> None:
        self._spark = spark
        self._pipeline = replace(pipeline, rebuild=None)
        self._store = store
        self._beside = replace(self._pipeline, rebuild=Rebuild(-1, -1))
        self._folder, self._files = locate(spark, self._beside.refined)

    def _open(self, path: str) -> LakeTable:
        return open_lake_table(locate(self._spark, path)[0], self._pipeline.format, storage_options=self._store)

    def rebuild(
        self,
        refine: Callable[[PipelineSpec], RefineResult],
        *,
        since: datetime | None,
        until: datetime | None,
        zone: str,
    ) -> RefineResult:
        """Rebuild both tables by `refine`, or continue that. The numbers are those of all rows of the tables.

        Raises CheckpointLockedError while the step runs, NotFoundError where nothing was refined yet, ConfigError where
        `aggregate` has to run first, and what `refine` raises.
        """
        pipeline = self._pipeline
        with locked(self._spark, pipeline.checkpoint("refine")):
            rebuild = replace(self.range(since, until), batch=self._last_batch())
            assert pipeline.refine is not None
            for each, days in zip(_TABLES, days_of(pipeline.refine.day_of, pipeline.format), strict=True):
                self._open(getattr(pipeline, each)).must_have(days)
            refined = as_json(pipeline.refine)
            refined["fields"] = refined.pop("columns")
            declared = [pipeline.format, zone, rebuild.since, rebuild.until, refined]
            text = json.dumps(declared, sort_keys=True).encode()
            is_begun = self._files.read(f"{self._folder}/{_DECLARED}") == text
            completed = self.complete()
            if is_begun and completed is not None:
                return completed
            if not is_begun:
                self._remove()
                self._files.make_directory(self._folder)
                self._files.replace(f"{self._folder}/{_DECLARED}", text)
            rebuilt = replace(pipeline, rebuild=rebuild)
            result = refine(rebuilt)
            if result.stopped:
                return result
            return self._replaced(rebuilt, result)

    def range(self, since: datetime | None, until: datetime | None) -> Rebuild:
        """What a rebuild reads: all that the step has refined, or would refine at first. Raises NotFoundError."""
        checkpoint = Checkpoint(self._spark, self._pipeline.checkpoint("refine"))
        planned = checkpoint.last_planned()
        bronze = LakeFiles(locate(self._spark, self._pipeline.bronze)[0], self._pipeline.format, self._store)
        end = None if planned is None else checkpoint.end(planned)
        first, last = (None if each is None else round(each.timestamp() * 1_000_000) for each in (since, until))
        return Rebuild(bronze.last() if end is None else bronze.reached(end), -1, first, last)

    def _last_batch(self) -> int:
        """The last batch of the step, after which nothing may be waiting for older ones."""
        name = self._pipeline.name
        checkpoint = Checkpoint(self._spark, self._pipeline.checkpoint("refine"))
        checkpoint.must_be_whole()
        last = checkpoint.last_planned()
        if last is None:
            raise NotFoundError(f"refine of the pipeline {name} never ran: run it without --again.")
        aggregate = Checkpoint(self._spark, self._pipeline.checkpoint("aggregate"))
        done = aggregate.last_committed()
        if aggregate.last_planned() is not None:
            end = None if done is None else aggregate.end(done)
            behind = done != aggregate.last_planned() or not isinstance(end, dict) or end.get("batch") != last
            if behind or checkpoint.last_committed() != last:
                raise ConfigError(
                    f"aggregate of the pipeline {name} has not read all of silver, and would read rows twice or never: "
                    "run refine and aggregate, then refine --again."
                )
        return last

    def _replaced(self, rebuilt: PipelineSpec, result: RefineResult) -> RefineResult:
        """Put the rebuilt tables in the place of the old ones."""
        assert rebuilt.rebuild is not None
        writer = Checkpoint(self._spark, self._pipeline.checkpoint("refine")).query_id()
        silver, quarantine = (self._open(getattr(rebuilt, name)) for name in _TABLES)
        for table, name in zip((silver, quarantine), _TABLES, strict=True):
            # Before the note, which every later run of the step would have to follow.
            self._open(getattr(self._pipeline, name)).must_become(table.schema())
        rows = [sum(file.rows for file in table.files()) for table in (silver, quarantine)]
        reasons: Counter[str] = Counter()
        for batch in quarantine.dataset().to_batches(columns=[REASON]):
            reasons.update(batch.column(REASON).to_pylist())
        landed = self._open(self._pipeline.bronze).dataset(to=rebuilt.rebuild.bronze).count_rows()
        result = replace(
            result,
            rows_silver=rows[0],
            rows_quarantined=rows[1],
            duplicates=landed - sum(rows),
            last_batch=rebuilt.rebuild.batch,
            reasons=dict(reasons),
        )
        note = {"writer": writer, "result": result.as_json()}
        self._files.replace(f"{self._folder}/{_REPLACING}", json.dumps(note).encode())
        self.complete()
        return result

    def complete(self) -> RefineResult | None:
        """Complete a replacement that has begun, if there is one. The step's checkpoint is locked."""
        data = self._files.read(f"{self._folder}/{_REPLACING}")
        if data is None:
            return None
        note = json.loads(data)
        result = RefineResult(**note["result"])
        assert result.last_batch is not None
        name = Checkpoint(self._spark, self._beside.checkpoint("refine")).query_id()
        assert self._pipeline.refine is not None
        for each, division in zip(_TABLES, days_of(self._pipeline.refine.day_of, self._pipeline.format), strict=True):
            new, old = (self._open(getattr(pipeline, each)) for pipeline in (self._beside, self._pipeline))
            if old.was_rebuilt(name):
                continue
            files, folder = new.files(), open_folder(old.path, self._store)
            for file in files:
                folder.take(new.path, file.path)
            old.replace(
                files, writer=note["writer"], batch=result.last_batch, schema=new.schema(), rebuild=name, days=division
            )
        # In this order: what is left of the folder is neither completed again nor continued.
        for each in (_DECLARED, _REPLACING):
            self._forget(each)
        self._remove()
        return result

    def _forget(self, name: str) -> None:
        self._files.remove_tree(f"{self._folder}/{name}")
        self._files.sync_directory(self._folder)

    def _remove(self) -> None:
        if self._pipeline.format == "iceberg":
            from consumerd.spark.lake.iceberg import IcebergLakeTable  # noqa: PLC0415 - each format needs its package

            for each in _TABLES:
                table = self._open(getattr(self._beside, each))
                assert isinstance(table, IcebergLakeTable)
                table.drop()
        self._files.remove_tree(self._folder)
