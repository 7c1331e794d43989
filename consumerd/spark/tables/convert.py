"""Turn a table of the earlier Parquet layout into a Delta table, in place: its files stay where they are.

Strategy. Every file of that layout has the column `batch`, so Delta's log can name it as it is. Only folders of which a
part is read are written again: those that a compaction covered in part, and files without the column. One commit names
all files and the last batch, so readers find the whole table or none; a second one names the owner; then the files that
described the earlier layout are removed, the owner's last. Killed anywhere, it is repeated from where it stopped: what
was written for nothing are files that no commit names, which `vacuum` removes, as those of folders that were not read
any more.

Batches keep their numbers and their owner, so the checkpoints of the pipeline continue. They are locked meanwhile: an
older release that lands would add a folder that nobody looks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from consumerd.base.errors import NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.spark.checkpoints import locked
from consumerd.spark.lake.data_file import DataFile, DataFileWriter, describe
from consumerd.spark.lake.delta import DeltaLakeTable, columns_of
from consumerd.spark.lake.folders import LocalFolder, local_path
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.table import BATCH
from consumerd.spark.tables.errors import TableCorruptError, TableError, TablePathError
from consumerd.spark.tables.layout import (
    OWNER_FILE,
    SCHEMA_FILE,
    STAGING,
    Slice,
    has_gap,
    owner_of,
    parse_folders,
    resolve,
)

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

_STEPS: Final = ("land", "refine", "aggregate")


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """The conversion of one table. Sizes in bytes; zeros where it was a Delta table already."""

    table: str
    batches: int
    rows: int
    #: Files that stayed as they were, and files that were written again.
    adopted: int
    written: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PipelineConvertResult:
    """The conversion of each existing table of a pipeline."""

    pipeline: str
    tables: tuple[ConvertResult, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"pipeline": self.pipeline, "tables": [asdict(each) for each in self.tables]}


def convert_pipeline(pipeline: PipelineSpec) -> PipelineConvertResult:
    """Convert the existing ones of bronze, silver, quarantine and aggregate, while no step runs.

    Raises CheckpointLockedError if one does, NotFoundError if there is no table, or as `convert_table`.
    """
    with ExitStack() as stack:
        for checkpoint in map(pipeline.checkpoint, _STEPS):
            if Path(local_path(checkpoint) or "").is_dir():
                stack.enter_context(locked(None, checkpoint))
        paths = [pipeline.bronze, pipeline.silver, pipeline.quarantine, pipeline.aggregate]
        tables = tuple(convert_table(path) for path in paths if Path(local_path(path) or "").is_dir())
    if not tables:
        raise NotFoundError(f"the pipeline {pipeline.name} has no tables in {pipeline.base}, or not on this machine.")
    return PipelineConvertResult(pipeline.name, tables)


def convert_table(path: str, files: SystemFiles | None = None) -> ConvertResult:
    """Convert the table in a folder of this machine; does nothing where that was done.

    Raises NotFoundError where there is no table, TablePathError for a URL of a store, TableCorruptError for a table
    that lacks a batch, TableError where a batch was added meanwhile, TableOwnedError for a Delta table of another
    checkpoint.
    """
    folder = local_path(path)
    if folder is None:
        raise TablePathError(f"{path} is not on this machine: convert the table where its folder is mounted.")
    folder = folder.rstrip("/")
    files = files or SystemFiles()
    table = DeltaLakeTable(folder, files=files)
    described = files.read(f"{folder}/{OWNER_FILE}")
    if described is None:
        if not table.exists:
            raise NotFoundError(f"table {folder} does not exist: run the step that writes it first.")
        return ConvertResult(folder, batches=0, rows=0, adopted=0, written=0, bytes=0)
    writer = owner_of(described, f"{folder}/{OWNER_FILE}")
    slices = _slices(files, folder)
    last = slices[-1].last if slices else None
    found: list[DataFile] = []
    if not table.exists:
        schema = columns_of(files.read(f"{folder}/{SCHEMA_FILE}") or b"", f"{folder}/{SCHEMA_FILE}")
        for each in slices:
            found += _data_files(files, folder, each, schema)
        table.adopt(found, writer=writer, batch=last, schema=schema)
    else:
        table.adopt([], writer=writer, batch=None, schema=pa.schema([]))
    if _slices(files, folder) != slices or table.batches() != (() if last is None else (range(last + 1),)):
        raise TableError(
            f"{folder} got another batch while it was converted: stop what writes it, remove {folder}/_delta_log, and "
            "convert again."
        )
    for name in (STAGING, SCHEMA_FILE, OWNER_FILE):
        files.remove_tree(f"{folder}/{name}")
        files.sync_directory(folder)
    adopted = sum("/" in file.path for file in found)
    return ConvertResult(
        folder,
        batches=0 if last is None else last + 1,
        rows=sum(file.rows for file in found),
        adopted=adopted,
        written=len(found) - adopted,
        bytes=sum(file.size for file in found),
    )


def _slices(files: SystemFiles, folder: str) -> list[Slice]:
    slices = resolve(parse_folders(each.name for each in files.entries(folder) if each.is_directory))
    if slices and (slices[0].first > 0 or has_gap(slices)):
        there = ", ".join(f"{each.first}-{each.last}" for each in slices)
        raise TableCorruptError(f"{folder} has only the batches {there}: restore the others from a backup.")
    return slices


def _data_files(files: SystemFiles, folder: str, part: Slice, schema: pa.Schema) -> Iterator[DataFile]:
    """The files of a part of the table, which are written again where they cannot stay as they are."""
    name = part.folder.name
    for entry in files.entries(f"{folder}/{name}", sized=True):
        if entry.is_directory or entry.name[:1] in "._":
            continue
        path = f"{name}/{entry.name}"
        try:
            metadata = pq.read_metadata(f"{folder}/{path}")
        except pa.ArrowInvalid as error:
            raise TableCorruptError(f"{folder}/{path} is not a Parquet file ({error}): restore it.") from None
        if not metadata.num_rows:
            continue
        if part.is_whole and BATCH in metadata.schema.to_arrow_schema().names:
            files.sync_file(f"{folder}/{path}")
            file = describe(path, metadata, size=entry.size, modified=int(entry.changed * 1000))
            known = file.minimums.get(BATCH, part.first), file.maximums.get(BATCH, part.last)
            yield replace(
                file,
                minimums={**file.minimums, BATCH: known[0]},
                maximums={**file.maximums, BATCH: known[1]},
            )
        else:
            written = _write_again(folder, path, part, schema, metadata)
            if written is not None:
                yield written


def _write_again(folder: str, path: str, part: Slice, schema: pa.Schema, metadata: Any) -> DataFile | None:
    lacking = BATCH not in metadata.schema.to_arrow_schema().names
    if lacking and part.folder.is_merged:
        raise TableCorruptError(f"{folder}/{path} does not say of which batches its rows are: restore it.")
    after, to = (-1, None) if lacking else (part.first - 1, part.last)
    with DataFileWriter(folder, schema) as writer:
        for rows in read_file(LocalFolder(folder), path, schema, after=after, to=to):
            if lacking:
                numbers = pa.repeat(pa.scalar(part.first, pa.int64()), rows.num_rows)
                rows = rows.set_column(schema.get_field_index(BATCH), schema.field(BATCH), numbers)
            writer.write(rows)
        return writer.close()
