"""Rows of bronze -> one file of silver and one of quarantine: what a task of `refine` does, and what the driver asks.

Strategy: a task decodes whole files of bronze, and reports beside its two files the ranges of the identities that it
read. As logs are landed in order, the ranges of a batch neither meet each other nor those of earlier batches, and then
no row can be there twice: that is known without looking at rows. Where ranges do meet, the files are dropped and the
batch is refined by Spark, which compares identities (`consumerd.spark.refine`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import zip_longest
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake.arrays import repeated
from consumerd.spark.lake.casts import zone_of
from consumerd.spark.lake.data_file import DataFile, Identities, has_identities
from consumerd.spark.lake.days import Days, DayWriter
from consumerd.spark.lake.decode import REASON, MessageDecoder, MessageFormat
from consumerd.spark.lake.table import BATCH
from consumerd.spark.lake.tasks import LANDED_AT
from consumerd.spark.rebuild import Rebuild
from consumerd.spark.seen import OffsetStretch, SeenOffsets

REFINED_AT: Final = "refined_at"
#: Columns of bronze that silver has, before the declared fields. Those of an earlier release lack the ones with types.
_KEPT: Final[Mapping[str, pa.DataType | None]] = {
    "topic": None, "broker": None, "partition": None, "topic_id": pa.string(), "leader_epoch": pa.int32(),
    "offset": None, "index": None, "broker_partition": None, "next_offset": None, "landed_at": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RefineTarget:
    """What the tasks of a step write. `bronze`, `silver`, `quarantine`: columns of rows; `folders`: of the last two."""

    messages: MessageFormat
    bronze: pa.Schema
    silver: pa.Schema
    quarantine: pa.Schema
    folders: tuple[str, str]
    #: The zone of times that name none.
    zone: str = "UTC"
    rebuild: Rebuild | None = None
    #: How silver and quarantine are divided.
    days: tuple[Days | None, Days | None] = (None, None)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        messages: MessageFormat,
        bronze: pa.Schema,
        folders: tuple[str, str],
        zone: str,
        rebuild: Rebuild | None = None,
        days: tuple[Days | None, Days | None] = (None, None),
    ) -> RefineTarget:
        """The target for a table of bronze with these columns."""
        for name, kind in _KEPT.items():
            if kind is not None and name not in bronze.names:
                bronze = bronze.append(pa.field(name, kind))
        batch, refined_at = pa.field(BATCH, pa.int64()), pa.field(REFINED_AT, pa.timestamp("us", tz="UTC"))
        kept = [bronze.field(name) for name in _KEPT]
        silver = pa.schema([*kept, *MessageDecoder(messages).schema, batch])
        others = [each for each in bronze if each.name != BATCH]
        quarantine = pa.schema([*others, pa.field(REASON, pa.string()), refined_at, batch])
        return cls(messages, bronze, silver, quarantine, folders, zone, rebuild, days)

    @property
    def stored(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns of the files of silver, and of quarantine."""
        schemas = self.silver, self.quarantine
        silver, quarantine = (
            schema if days is None else days.stored(schema) for schema, days in zip(schemas, self.days, strict=True)
        )
        return silver, quarantine


def can_refine(bronze: pa.Schema) -> bool:
    """Whether tasks can refine a table with these columns: messages of a log, as a source lands them."""
    needed = {"value", *(name for name, kind in _KEPT.items() if kind is None)}
    return has_identities(bronze) and needed <= set(bronze.names) and bronze.field("value").type == pa.binary()


@dataclass(frozen=True, slots=True)
class RefinedFiles:
    """The result of one task. `stretches` and `ascending`: as of DataFile, for all rows that were read.

    Where a table is divided, a task has several: the first one has what is said of all its rows.
    """

    silver: DataFile | None
    quarantine: DataFile | None
    stretches: tuple[OffsetStretch, ...]
    ascending: bool
    #: Rows of quarantine, by reason.
    reasons: Mapping[str, int]


def refine_rows(
    batches: Iterable[pa.RecordBatch], target: RefineTarget, batch: int, at: datetime
) -> list[RefinedFiles]:
    """Write the rows of bronze, which have its columns, as rows of batch `batch` that were refined `at` this time.

    Of a rebuild those alone that it refines, with a number that it may give.

    Raises OSError, ConfigError where only Spark can parse such messages.
    """
    zone = zone_of(target.zone)
    assert zone is not None
    if target.rebuild is not None:
        batch = min(batch, target.rebuild.batch)
        batches = landed_within(batches, target.rebuild)
    decoder = MessageDecoder(target.messages, zone)
    identities = Identities()
    reasons: Counter[str] = Counter()
    with ExitStack() as stack:
        silver, quarantine = (
            stack.enter_context(DayWriter(folder, schema, days, storage_options=target.storage_options))
            for folder, schema, days in zip(
                target.folders, (target.silver, target.quarantine), target.days, strict=True
            )
        )
        for rows in batches:
            identities.add(rows)
            decoded = decoder.decode(rows)
            kept = rows.select(list(_KEPT))
            refused = len(decoded.reasons)
            if refused:
                kept = kept.filter(decoded.good)
                others = rows.filter(pc.invert(decoded.good))
                columns = [others.column(name) for name in target.quarantine.names[:-3]]
                columns += [decoded.reasons, repeated(at, target.quarantine.types[-2], refused)]
                columns.append(repeated(batch, pa.int64(), refused))
                quarantine.write(pa.RecordBatch.from_arrays(columns, schema=target.quarantine))
                reasons.update(decoded.reasons.to_pylist())
            if kept.num_rows:
                columns = [*kept.columns, *decoded.columns.columns, repeated(batch, pa.int64(), kept.num_rows)]
                silver.write(pa.RecordBatch.from_arrays(columns, schema=target.silver))
        both = zip_longest(silver.close(), quarantine.close())
        parts = [RefinedFiles(good, bad, (), ascending=True, reasons={}) for good, bad in both]
    first = parts[0] if parts else RefinedFiles(None, None, (), ascending=True, reasons={})
    stretches, ascending = identities.stretches(), identities.ascending
    return [replace(first, stretches=stretches, ascending=ascending, reasons=dict(reasons)), *parts[1:]]


def landed_within(
    batches: Iterable[pa.RecordBatch], rebuild: Rebuild, *, inside: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows that a rebuild refines; with `inside=False` the other ones."""
    for rows in batches:
        landed = pc.fill_null(rows.column(LANDED_AT).cast(pa.int64()), 0)
        wanted = repeated(True, pa.bool_(), rows.num_rows)
        if rebuild.since is not None:
            wanted = pc.and_(wanted, pc.greater_equal(landed, rebuild.since))
        if rebuild.until is not None:
            wanted = pc.and_(wanted, pc.less(landed, rebuild.until))
        if (found := rows.filter(wanted if inside else pc.invert(wanted))).num_rows:
            yield found


def may_repeat(found: Sequence[RefinedFiles], seen: SeenOffsets) -> bool:
    """Whether an identity may be there twice in these files, or may have been seen earlier."""
    if not all(each.ascending for each in found):
        return True
    for files in found:
        if seen.overlapping(files.stretches):
            return True
        seen = seen.with_stretches(files.stretches)
    return False
