"""An Iceberg table through pyiceberg: no JVM and no jar, but a catalog.

Strategy. The catalog names the newest metadata of each table, and a commit exchanges that name. Where none is
configured it is a SQLite file beside the table (`_iceberg.db`); `uri` and `type` in the storage options, or pyiceberg's
own environment and configuration for the catalog `consumerd`, name another one, such as a REST catalog. The table is
called as its folder is, in a namespace called as the folder above.

Iceberg has no application transactions. So the number of the last batch is a property of the table, set by the commit
that adds the batch's files, and is in the summary of its snapshot as well. The property outlives the snapshot. It is
compared on the metadata that commits; and pyiceberg's own retries, which would add a batch a second time, are switched
off, so that a commit fails if there is another snapshot meanwhile. A batch without files has a snapshot, too. Where a
batch ends in its source is a further property.

pyiceberg does not sync what it writes on this machine, and the catalog does. So files of metadata are synced when they
are closed, before the catalog names them.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_files_to_data_files
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestampType, TimestamptzType
from pyiceberg.utils.config import Config
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.spark.lake.data_file import DataFile, as_written
from consumerd.spark.lake.days import Days
from consumerd.spark.lake.iceberg_files import SyncedFileIO
from consumerd.spark.lake.merging import merge_small_files
from consumerd.spark.lake.offsets import TableOffsets
from consumerd.spark.lake.table import (
    BATCH,
    OWNER,
    SnapshotTable,
    TableChange,
    TableVersion,
    must_be_there,
    of_batches,
    other_division,
)
from consumerd.spark.tables.errors import (
    TableCorruptError,
    TableError,
    TablePathError,
    TableSchemaError,
)
from consumerd.spark.tables.table import CompactResult

# For each file, pyiceberg warns of each column that has no bounds; ours have them where they can be exact.
logging.getLogger("pyiceberg.io.pyarrow").addFilter(lambda record: "statistics missing" not in record.getMessage())

#: The catalog's name in pyiceberg's configuration.
CATALOG: Final = "consumerd"
#: The property, and the entry of a snapshot's summary, with the number of the last batch.
LAST_BATCH: Final = "consumerd.batch"
#: The property with `TableOffsets`.
OFFSETS: Final = "consumerd.offsets"
#: The property that tells a commit from others: of one whose result is unknown.
COMMIT: Final = "consumerd.commit"
#: The property with the name of the last rebuild.
_REBUILT: Final = "consumerd.rebuild"
#: The file of the embedded catalog.
CATALOG_FILE: Final = "_iceberg.db"
_CREATED_WITH: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
#: What another writer was faster with, or may have been.
_OVERTAKEN: Final = (
    CommitFailedException,
    CommitStateUnknownException,
    TableAlreadyExistsError,
    NamespaceAlreadyExistsError,
    IntegrityError,
)
_ATTEMPTS: Final = 30
_PAUSE: Final = 0.5
#: Options of deltalake's stores, by which data files are written, in pyiceberg's words.
_STORE: Final = {
    "aws_endpoint_url": "s3.endpoint",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_region": "s3.region",
}


class IcebergLakeTable(SnapshotTable[Table]):
    """See the module's text and LakeTable. `version()` is Iceberg's sequence number."""

    def __init__(
        self, path: str, *, storage_options: Mapping[str, str] | None = None, sequence_number: int | None = None
    ) -> None:
        super().__init__(path, storage_options, sequence_number)
        bad = sorted(set(self.path) & set("?#%"))
        if bad:
            raise TablePathError(f"{path} is not a valid path of an Iceberg table: {' '.join(bad)} would be decoded.")
        parent, _, name = self.path.rpartition("/")
        self._identifier = (parent.rpartition("/")[2] or "lake", name)
        self._opened: Catalog | None = None

    # -- reading

    def _owner(self, table: Table) -> str | None:
        return table.properties.get(OWNER)

    def _last_batch(self, table: Table, writer: str | None) -> int | None:
        found = table.properties.get(LAST_BATCH)
        if found is None:  # someone removed the property
            summaries = [each.summary.additional_properties for each in table.snapshots() if each.summary is not None]
            found = max((each[LAST_BATCH] for each in summaries if LAST_BATCH in each), key=int, default=None)
        return None if found is None else int(found)

    def _arrow(self, table: Table) -> pa.Schema:
        return _nullable(table.schema().as_arrow())

    def offsets(self) -> TableOffsets | None:
        table = self._open()
        text = None if table is None else table.properties.get(OFFSETS)
        if table is None or text is None:
            return None
        try:
            found = TableOffsets.decode(text)
        except ValueError as error:
            raise TableCorruptError(f"the property {OFFSETS} of {self.path} is damaged: {error}.") from None
        return found if found.batch == self._last_batch(table, None) else None

    def files(self, after: int = -1, to: int | None = None) -> list[DataFile]:
        table = self._existing()
        with _declared_errors(self.path):
            return self._files(table, after, to)

    def dataset(self, after: int = -1, to: int | None = None) -> Any:
        table = self._existing()
        with _declared_errors(self.path):
            found = self._files(table, after, to)
            system, folder = _place(table, self._url)
            batch = pc.field(BATCH)
            known = [
                (batch >= file.minimums[BATCH]) & (batch <= file.maximums[BATCH])
                if BATCH in file.minimums and BATCH in file.maximums
                else pc.scalar(True)
                for file in found
            ]
            dataset = pyarrow.dataset.FileSystemDataset.from_paths(
                [f"{folder}/{file.path}" for file in found],
                schema=self._arrow(table),
                format=pyarrow.dataset.ParquetFileFormat(),
                filesystem=system,
                partitions=known,
            )
        if after >= 0:
            dataset = dataset.filter(batch > after)
        return dataset if to is None else dataset.filter(batch <= to)

    def version(self) -> int:
        return next((each.version for each in self.history(1)), 0)

    def history(self, limit: int | None = None) -> list[TableVersion]:
        found = [
            TableVersion(
                each.sequence_number or 0,
                datetime.fromtimestamp(each.timestamp_ms / 1000, UTC),
                each.summary.operation.value if each.summary is not None else "",
            )
            for each in reversed(self._existing().snapshots())
        ]
        return found if limit is None else found[:limit]

    def as_of(self, version: int | datetime) -> IcebergLakeTable:
        if isinstance(version, datetime):
            found = next((each.version for each in self.history() if each.at <= version), None)
        else:
            found = next((each.version for each in self.history() if each.version == version), None)
        if found is None:
            wanted = version.isoformat() if isinstance(version, datetime) else version
            raise NotFoundError(f"the table {self.path} has no version {wanted}, or it has expired.")
        return IcebergLakeTable(self.path, storage_options=self._options, sequence_number=found)

    @property
    def _url(self) -> str:
        return f"file://{self.path}" if self._is_local else self.path

    def _open(self) -> Table | None:
        if self._opened is None and self._is_local and self._embedded and not Path(self._catalog_file).exists():
            return None
        with _declared_errors(self.path):
            try:
                return self._catalog().load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    @property
    def _embedded(self) -> bool:
        return not {"uri", "type"} & (self._options.keys() | _configured().keys())

    @property
    def _catalog_file(self) -> str:
        return f"{self.path.rpartition('/')[0]}/{CATALOG_FILE}"

    def _catalog(self) -> Catalog:
        if self._opened is None:
            properties = _configured() | {
                _STORE.get(name.lower(), name): value for name, value in self._options.items()
            }
            if self._is_local:
                properties["py-io-impl"] = f"{SyncedFileIO.__module__}.{SyncedFileIO.__name__}"
            if self._embedded:
                if not self._is_local:
                    raise ConfigError(
                        f"{self.path} is in an object store: an Iceberg table needs a catalog there, such as a REST "
                        "catalog, by the storage option uri, or PYICEBERG_CATALOG__CONSUMERD__URI in the environment."
                    )
                SystemFiles().make_directory(self.path.rpartition("/")[0])
                properties |= {"type": "sql", "uri": f"sqlite:///{self._catalog_file}"}
            self._opened = _opened_catalog(properties)
            if isinstance(self._opened, SqlCatalog):
                # A pool would keep a connection open for as long as the process has the table.
                self._opened.engine.dispose()
                self._opened.engine = create_engine(self._opened.engine.url, poolclass=NullPool)
        return self._opened

    def _files(self, table: Table, after: int, to: int | None) -> list[DataFile]:
        snapshot = None
        if self._pinned is not None:
            snapshot = next(
                (each.snapshot_id for each in table.snapshots() if each.sequence_number == self._pinned), None
            )
            if snapshot is None:
                raise NotFoundError(f"version {self._pinned} of the table {self.path} has expired.")
        found = []
        for task in table.scan(snapshot_id=snapshot).plan_files():
            if task.delete_files:
                raise TableError(
                    f"the table {self.path} has deletions that are not applied to its files: rewrite them with the "
                    "program that deleted rows."
                )
            found.append(self._described(task.file, table))
        return of_batches(found, after, to)

    def _described(self, file: IcebergFile, table: Table) -> DataFile:
        fields = {field.field_id: field for field in table.schema().fields}
        nulls = file.null_value_counts or {}
        return DataFile(
            path=file.file_path.removeprefix(f"{self._url}/"),
            size=file.file_size_in_bytes,
            rows=file.record_count,
            modified=0,
            minimums=_bounds(file.lower_bounds, fields, up=False),
            maximums=_bounds(file.upper_bounds, fields, up=True),
            nulls={fields[number].name: count for number, count in nulls.items() if number in fields},
            partition=_partition(file, table),
        )

    # -- writing

    def _must_have(self, days: Days | None, table: Table) -> None:
        found = [
            f"{field.transform}({table.schema().find_column_name(field.source_id)})" for field in table.spec().fields
        ]
        wanted = [] if days is None else [f"day({days.source})"]
        if found != wanted and (found or table.current_snapshot() is not None):
            raise other_division(self.path, ", ".join(found), ", ".join(wanted))

    def _append(self, change: TableChange) -> bool:
        paths = [f"{self._url}/{file.path}" for file in change.files]
        identity = secrets.token_hex(16)

        def attempt() -> bool:
            table = self._claimed(change)
            last = self._last_batch(table, change.writer)
            if last is not None and change.batch <= last:
                return change.batch == last and table.properties.get(COMMIT) == identity
            marks = {LAST_BATCH: str(change.batch)}
            properties = marks | {COMMIT: identity}
            if change.offsets is not None:
                properties[OFFSETS] = change.offsets.encode()
            with self._fitted(table, change) as transaction:
                with _without_far_bounds(transaction, change.files):
                    transaction.add_files(paths, snapshot_properties=marks, check_duplicate_files=False)
                transaction.set_properties(properties)
            return True

        return self._committed(attempt)

    def _overwrite(self, change: TableChange, rebuild: str) -> bool:
        """Columns may be added and widened; one that comes with another type raises TableSchemaError."""
        paths = [f"{self._url}/{file.path}" for file in change.files]

        def attempt() -> bool:
            table = self._claimed(change)
            if self._has_rebuilt(table, rebuild):
                return False
            present = [task.file for task in table.scan().plan_files()]
            marks = {LAST_BATCH: str(change.batch)}
            with self._fitted(table, change) as transaction:
                with (
                    _without_far_bounds(transaction, change.files),
                    transaction.update_snapshot(snapshot_properties=marks).overwrite() as overwrite,
                ):
                    for each in present:
                        overwrite.delete_data_file(each)
                    for file in parquet_files_to_data_files(table.io, transaction.table_metadata, iter(paths)):
                        overwrite.append_data_file(file)
                transaction.set_properties({**marks, _REBUILT: rebuild})
            return True

        return self._committed(attempt)

    def _claimed(self, change: TableChange) -> Table:
        """The table, which belongs to the writer and may have these columns."""
        table = self._open() or self._created(change.writer, change.schema)
        self._must_accept(change.writer, table)
        self._must_have(change.days, table)
        self._must_fit(table, change.schema)
        return table

    @contextmanager
    def _fitted(self, table: Table, change: TableChange) -> Iterator[Transaction]:
        """A transaction that adds the columns and the division, and may add the files."""
        with self._transaction(table, change.files) as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(_nullable(change.schema))
            if change.days is not None and not table.spec().fields:  # a table that has no files yet
                with transaction.update_spec() as division:
                    division.add_field(change.days.source, DayTransform(), f"{change.days.source}_day")
            yield transaction

    def must_become(self, schema: pa.Schema) -> None:
        table = self._open()
        if table is not None:
            self._must_fit(table, schema)

    def _has_rebuilt(self, table: Table, rebuild: str) -> bool:
        return table.properties.get(_REBUILT) == rebuild

    def drop(self) -> None:
        """Take the table out of its catalog; its files stay."""
        if self._open() is not None:
            self._catalog().drop_table(self._identifier)

    def _created(self, writer: str, schema: pa.Schema) -> Table:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._identifier[:1])
        return catalog.create_table(
            self._identifier, _nullable(schema), location=self._url, properties={**_CREATED_WITH, OWNER: writer}
        )

    def _must_accept(self, writer: str, table: Table) -> None:
        super()._must_accept(writer, table)
        if table.location().rstrip("/") != self._url:
            raise TablePathError(
                f"the catalog has a table {'.'.join(self._identifier)} at {table.location()}, not at {self._url}: call "
                "the folders otherwise, or use another catalog."
            )

    def _must_fit(self, table: Table, schema: pa.Schema) -> None:
        stored = {field.name.lower(): field.name for field in table.schema().fields}
        for name in schema.names:
            if stored.get(name.lower(), name) != name:
                raise TableSchemaError(
                    f"column {stored[name.lower()]!r} of {self.path} comes as {name!r}: give the new column another "
                    "name, or move the table and its checkpoint away to write everything again."
                )
        try:
            table.update_schema().union_by_name(_nullable(schema))
        except ValidationError as error:
            raise TableSchemaError(
                f"the new rows do not fit the columns of {self.path} ({error}): give the new column another name, or "
                "move the table and its checkpoint away to write everything again."
            ) from None

    def optimize(self, target_bytes: int) -> CompactResult:
        with _declared_errors(self.path):
            return merge_small_files(self, target_bytes, self._swap)

    def _swap(self, sources: Sequence[DataFile], merged: DataFile | None) -> bool:
        """Put a file in the place of these, if all of them are there."""
        wanted = {each.path for each in sources}

        def attempt() -> bool:
            table = self._existing()
            present = {
                task.file.file_path.removeprefix(f"{self._url}/"): task.file for task in table.scan().plan_files()
            }
            if not wanted <= present.keys():
                return False
            added = [] if merged is None else [merged]
            with (
                self._transaction(table, added) as transaction,
                _without_far_bounds(transaction, added),
                transaction.update_snapshot().overwrite() as update,
            ):
                for path in sorted(wanted):
                    update.delete_data_file(present[path])
                if merged is not None:
                    paths = iter([f"{self._url}/{merged.path}"])
                    for file in parquet_files_to_data_files(table.io, transaction.table_metadata, paths):
                        update.append_data_file(file)
            return True

        return self._committed(attempt)

    def vacuum(self, keep_seconds: float, *, dry_run: bool = False) -> list[str]:
        """See LakeTable. Snapshots that were replaced before the retention expire, and their metadata is removed."""
        table = self._existing()
        limit = datetime.now(UTC) - timedelta(seconds=keep_seconds)
        with _declared_errors(self.path):
            snapshots = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
            # The last one before the limit was the table's state at the limit.
            old = [each for each in snapshots if each.timestamp_ms <= limit.timestamp() * 1000][:-1]
            kept = {each.snapshot_id for each in snapshots} - {each.snapshot_id for each in old}
            needed: set[str] = set()
            for snapshot in snapshots:
                if snapshot.snapshot_id in kept:
                    needed.add(snapshot.manifest_list)
                    for manifest in snapshot.manifests(table.io):
                        if manifest.manifest_path not in needed:
                            needed.add(manifest.manifest_path)
                            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                            needed |= {entry.data_file.file_path for entry in entries}
            system, folder = _place(table, self._url)
            names = {path.removeprefix(f"{self._url}/") for path in needed}
            found = [
                name
                for info in system.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
                if info.type == FileType.File
                and (name := info.path.removeprefix(f"{folder}/")) not in names
                and name.endswith((".parquet", ".avro"))
                and info.mtime <= limit
            ]
            if not dry_run:
                if old:
                    self._committed(lambda: self._expire([each.snapshot_id for each in old]))
                for name in found:
                    system.delete_file(f"{folder}/{name}")
        return sorted(name for name in found if name.endswith(".parquet"))

    def _expire(self, snapshots: list[int]) -> bool:
        table = self._existing()
        there = {each.snapshot_id for each in table.snapshots()}
        expiring = [each for each in snapshots if each in there]
        if expiring:
            table.maintenance.expire_snapshots().by_ids(expiring).commit()
        return bool(expiring)

    @property
    def data_options(self) -> dict[str, str]:
        """See LakeTable: those that are not the catalog's."""
        return {name: value for name, value in self._options.items() if name.lower().startswith("aws_")}

    def _transaction(self, table: Table, files: Sequence[DataFile]) -> Transaction:
        """A transaction on this metadata, which adds the files. Raises TableError if one of them is missing."""
        must_be_there(self.path, files, self.data_options)
        return table.transaction()

    def _attempted(self, attempt: Callable[[], bool]) -> bool | None:
        with _declared_errors(self.path):
            try:
                return attempt()
            except _OVERTAKEN:
                return None


def _opened_catalog(properties: Mapping[str, Any]) -> Catalog:
    for _ in range(_ATTEMPTS):
        try:
            return load_catalog(CATALOG, **properties)
        except OperationalError as error:
            if "already exists" not in str(error):
                raise
            time.sleep(random.uniform(0, _PAUSE))  # another process makes the tables of an embedded catalog as well
    raise TableError(f"the catalog {properties.get('uri')} was not opened: other processes are creating it.")


def _configured() -> dict[str, Any]:
    """The catalog's properties in pyiceberg's environment and configuration, as they are now."""
    return dict(Config().get_catalog_config(CATALOG) or {})


def _place(table: Table, url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    io: Any = table.io
    scheme, netloc, path = PyArrowFileIO.parse_location(url)
    return io.fs_by_scheme(scheme, netloc), path


#: Types whose values Iceberg and Parquet store as the same integers.
_INTEGERS: Final[Mapping[type, pa.DataType]] = {
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
}


def _bounds(found: Mapping[int, bytes] | None, fields: Mapping[int, NestedField], *, up: bool) -> dict[str, Any]:
    """The bounds of columns, as Delta's log would have them. `found`: bytes by the number of a column."""
    bounds: dict[str, Any] = {}
    for number, raw in (found or {}).items():
        if (field := fields.get(number)) is None:
            continue
        if isinstance(field.field_type, StringType):
            bounds[field.name] = raw.decode(errors="replace")
        elif (kind := _INTEGERS.get(type(field.field_type))) is not None:
            # Of an integer four bytes in files from before its column was widened.
            bounds[field.name] = as_written(int.from_bytes(raw, "little", signed=True), kind, up=up)
    return {name: value for name, value in bounds.items() if value is not None}


def _partition(file: IcebergFile, table: Table) -> dict[str, str | None]:
    """The values of a file's partition: days as ISO writes them."""
    found: dict[str, str | None] = {}
    for at, field in enumerate(table.specs()[file.spec_id].fields):
        value = file.partition[at]
        kind = field.transform.result_type(table.schema().find_type(field.source_id))
        found[field.name] = None if value is None else field.transform.to_human_string(kind, value)
    return found


@contextmanager
def _without_far_bounds(transaction: Transaction, files: Sequence[DataFile]) -> Iterator[None]:
    """Describes files that are added without the bounds of columns that have days or times beyond the years 1 to 9999.

    pyiceberg reads bounds into Python's own times, which end there: one message would stop a table for good.
    """
    kinds = (DateType, TimestampType, TimestamptzType)
    names = [field.name for field in transaction.table_metadata.schema().fields if isinstance(field.field_type, kinds)]
    far = {
        f"write.metadata.metrics.column.{name}": "counts"
        for name in names
        for file in files
        if file.nulls.get(name) != file.rows and (name not in file.minimums or name not in file.maximums)
    }
    former = {name: value for name, value in transaction.table_metadata.properties.items() if name in far}
    if far:
        transaction.set_properties(far)
    yield
    if far:
        transaction.remove_properties(*far)
    if former:
        transaction.set_properties(former)


def _nullable(schema: pa.Schema) -> pa.Schema:
    """The columns, all of them nullable."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without ids and large offsets, whose parts may be null."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    return kind


@contextmanager
def _declared_errors(path: str) -> Iterator[None]:
    """Raise pyiceberg's errors, and the catalog's, as ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise TableCorruptError(
            f"the table {path} lacks a file that its catalog or metadata names ({_line(error)}): restore the table "
            "from a backup, with its catalog."
        ) from error
    except (OSError, SQLAlchemyError, RESTError) as error:
        raise TableError(f"the table {path} cannot be read or written: {_line(error)}.") from error


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
