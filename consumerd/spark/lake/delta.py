"""A Delta table through deltalake: no JVM and no jar.

Strategy. A commit creates one file of Delta's log, so it needs no rename, and an object store needs only conditional
puts. A batch is a transaction whose application is the checkpoint's id and whose version is the batch's number.
deltalake accepts the same version twice, so it is compared here, on the snapshot that commits; and every commit is
made without deltalake's own retries, so that it fails if anything was committed since that snapshot. Then the next
attempt starts from a new snapshot. That makes every change a compare-and-swap on the version of the table.

The owner is a property. deltalake sets properties only in a commit of their own, so a table begins without one, and
belongs to the first checkpoint that sets it. A table with files and without an owner is somebody else's.

deltalake does not sync what it writes on this machine. So its log is synced after each commit: all files of the log at
the first one, since a killed process may have written the last of them, then those that are newer. A commit that was
lost with the power was never reported, and leaves at most an empty file, which is a version without a change.

Where a batch ends in its source is in a small file of its own, `_consumerd/<number>.json`, which is written before the
commit; the number is a second transaction of the commit (`<owner>#offsets`). The file before it is removed afterwards.

Files are merged in the order of their batches, by our own writer, and swapped in one commit that changes no data.
Nothing is removed but by `vacuum`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow.fs import FileType

from consumerd.base.errors import NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.spark.lake.data_file import DataFile
from consumerd.spark.lake.days import Days
from consumerd.spark.lake.folders import open_folder
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

#: Features of Delta's protocol that do not change which rows a file has, or how its columns are called. deltalake adds
#: `variantType` to every table with `timestampNtz` when it sets a property.
_READABLE: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "variantType"})
_OS_ERROR: Final = re.compile(r"([^\n]*) \(os error (\d+)\)")
_LOG_NAME: Final = re.compile(r"(\d{20})\..*")


class DeltaLakeTable(SnapshotTable[DeltaTable]):
    """See the module's text and LakeTable."""

    def __init__(
        self,
        path: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        version: int | None = None,
        files: SystemFiles | None = None,
    ) -> None:
        super().__init__(path, storage_options, version)
        if self._is_local and "%" in self.path:
            raise TablePathError(f"{path} is not a valid path of a Delta table: deltalake would decode its %.")
        self._log = _LocalLog(f"{self.path}/_delta_log", files or SystemFiles()) if self._is_local else None

    # -- reading

    def _owner(self, table: DeltaTable) -> str | None:
        return table.metadata().configuration.get(OWNER)

    def _last_batch(self, table: DeltaTable, writer: str | None) -> int | None:
        return None if writer is None else table.transaction_version(writer)

    def _is_free(self, table: DeltaTable, writer: str) -> bool:
        """Whether `writer` may become its owner: its creation, or its conversion for `writer`, was not completed."""
        return self._owner(table) is None and (not table.file_uris() or self._last_batch(table, writer) is not None)

    def _arrow(self, table: DeltaTable) -> pa.Schema:
        return pa.schema(table.schema().to_arrow())

    def offsets(self) -> TableOffsets | None:
        missing: int | None = None
        while True:
            table = self._open()
            owner = None if table is None else self._owner(table)
            number = None if table is None or owner is None else _offsets_number(table, owner)
            if table is None or number in (None, missing):
                return None
            try:
                with open_folder(self.path, self._options).open(_offsets_file(number)) as file:
                    found = TableOffsets.decode(file.read())
            except FileNotFoundError:
                missing = number  # unless a newer commit has replaced it, the table was copied without the file
                continue
            except (OSError, ValueError) as error:
                raise TableCorruptError(
                    f"{self.path}/{_offsets_file(number)} cannot be read ({error}): restore it from a backup."
                ) from None
            return found if found.batch == self._last_batch(table, owner) else None

    def files(self, after: int = -1, to: int | None = None) -> list[DataFile]:
        return _files(self._existing(), after, to)

    def dataset(self, after: int = -1, to: int | None = None) -> Any:
        table = self._existing()
        with _declared_errors(self.path):
            found = table.to_pyarrow_dataset()
        if after >= 0:
            found = found.filter(pc.field(BATCH) > after)
        return found if to is None else found.filter(pc.field(BATCH) <= to)

    def version(self) -> int:
        return self._existing().version()

    def history(self, limit: int | None = None) -> list[TableVersion]:
        table = self._existing()
        with _declared_errors(self.path):
            return [
                TableVersion(
                    entry["version"],
                    datetime.fromtimestamp(entry.get("timestamp", 0) / 1000, UTC),
                    entry.get("operation", ""),
                )
                for entry in table.history(limit)
            ]

    def as_of(self, version: int | datetime) -> DeltaLakeTable:
        if isinstance(version, datetime):
            found = next((each.version for each in self.history() if each.at <= version), None)
            if found is None:
                raise NotFoundError(f"the table {self.path} has no version that is as old as {version.isoformat()}.")
            version = found
        elif not 0 <= version <= self.version():
            raise NotFoundError(f"the table {self.path} has versions up to {self.version()}, and no version {version}.")
        return DeltaLakeTable(self.path, storage_options=self._options, version=version)

    def _open(self) -> DeltaTable | None:
        with _declared_errors(self.path):
            if self._log is not None and not self._log.exists():
                return None
            try:
                table = DeltaTable(self.path, version=self._pinned, storage_options=self._options)
            except TableNotFoundError:
                return None
            features = set(table.protocol().reader_features or ()) - _READABLE
            if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
                features.add("columnMapping")
            if features:
                raise TableError(
                    f"the table {self.path} has features of Delta that are not supported "
                    f"({', '.join(sorted(features))}): drop them with the program that added them, or read it there."
                )
            return table

    # -- writing

    def _append(self, change: TableChange) -> bool:
        writer, batch, offsets = change.writer, change.batch, change.offsets
        actions: list[AddAction | RemoveAction] = [_add(file, data_change=True) for file in change.files]
        transactions = [Transaction(writer, batch)]
        number = None if offsets is None else self._write_offsets(offsets)
        former: int | None = None
        if number is not None:
            transactions.append(Transaction(_offsets_of(writer), number))

        def attempt() -> bool:
            nonlocal former
            table = self._claimed(change)
            last = self._last_batch(table, writer)
            if last is not None and batch <= last:
                # Ours, if an earlier attempt took place although an error was reported.
                return batch == last and number is not None and _offsets_number(table, writer) == number
            former = _offsets_number(table, writer)
            self._write(
                table,
                change.files,
                actions,
                CommitProperties(
                    app_transactions=transactions,
                    max_commit_retries=0,
                    custom_metadata={"userMetadata": f"consumerd batch {batch}"},
                ),
            )
            return True

        done = self._committed(attempt)
        stale = former if done else number
        if number is not None and stale is not None:
            with contextlib.suppress(OSError):  # a few bytes, which no one reads
                open_folder(self.path, self._options).remove(_offsets_file(stale))
        return done

    def _write_offsets(self, offsets: TableOffsets) -> int:
        """Write the file that a commit is to name; return its number."""
        number = secrets.randbelow(1 << 62)
        folder = open_folder(self.path, self._options)
        data = offsets.encode().encode()
        # deltalake's own stream takes no buffers, which `write` passes on where it does not collect them first.
        with pa.BufferedOutputStream(folder.create(_offsets_file(number)), len(data) + 1) as file:
            file.write(data)
        folder.sync(_offsets_file(number))
        return number

    def _overwrite(self, change: TableChange, rebuild: str) -> bool:
        stored = _stored(change.schema)
        actions: list[AddAction | RemoveAction] = [_add(file, data_change=True) for file in change.files]

        def attempt() -> bool:
            table = self._open()
            if table is None:
                table = self._created(stored, change.days)
            table = self._owned(change.writer, table)
            self._must_have(change.days, table)
            if self._has_rebuilt(table, rebuild):
                return False
            self._write(
                table,
                change.files,
                actions,
                CommitProperties(
                    app_transactions=[Transaction(change.writer, change.batch), Transaction(rebuild, 0)],
                    max_commit_retries=0,
                    custom_metadata={"userMetadata": f"consumerd rebuilt batches up to {change.batch}"},
                ),
                replacing=stored,
            )
            return True

        return self._committed(attempt)

    def _has_rebuilt(self, table: DeltaTable, rebuild: str) -> bool:
        return table.transaction_version(rebuild) is not None

    def _must_have(self, days: Days | None, table: DeltaTable) -> None:
        found, wanted = table.metadata().partition_columns, _columns(days)
        if found != wanted:
            raise other_division(self.path, ", ".join(found), ", ".join(wanted))

    def _must_fit(self, table: DeltaTable, schema: pa.Schema) -> None:
        _new_columns(table, _stored(schema), self.path)

    def _must_accept(self, writer: str, table: DeltaTable) -> None:
        if not self._is_free(table, writer):
            super()._must_accept(writer, table)

    def _created(self, schema: Schema, days: Days | None) -> DeltaTable:
        DeltaTable.create(
            self.path,
            schema,
            partition_by=_columns(days),
            storage_options=self._options,
            commit_properties=_once(),
        )
        return self._existing()

    def _claimed(self, change: TableChange) -> DeltaTable:
        """A snapshot of the table, which belongs to the writer and has these columns."""
        stored = _stored(change.schema)
        table = self._open()
        if table is None:
            table = self._created(stored, change.days)
        table = self._owned(change.writer, table)
        self._must_have(change.days, table)
        new = _new_columns(table, stored, self.path)
        if new:
            table.alter.add_columns(new, commit_properties=_once())
            table = self._existing()
        return table

    def _owned(self, writer: str, table: DeltaTable) -> DeltaTable:
        """A snapshot of the table after `writer` is its owner. Raises TableOwnedError."""
        if self._is_free(table, writer):
            table.alter.set_table_properties({OWNER: writer}, raise_if_not_exists=False, commit_properties=_once())
            table = self._existing()
        self._must_accept(writer, table)
        return table

    def adopt(self, files: Sequence[DataFile], *, writer: str, batch: int | None, schema: pa.Schema) -> None:
        """Create the table with files that are there, as all batches of `writer` up to `batch`, in one commit.

        A table that exists keeps its files, and gets its owner if it has none. Raises TableOwnedError.
        """
        transactions = [] if batch is None else [Transaction(writer, batch)]
        actions = [_add(file, data_change=True) for file in files]

        def attempt() -> bool:
            table = self._open()
            if table is None:
                create_table_with_add_actions(
                    self.path,
                    _stored(schema),
                    actions,
                    storage_options=self._options,
                    commit_properties=CommitProperties(max_commit_retries=0, app_transactions=transactions),
                )
                table = self._existing()
            self._owned(writer, table)
            return True

        self._committed(attempt)

    def optimize(self, target_bytes: int) -> CompactResult:
        with _declared_errors(self.path):
            return merge_small_files(self, target_bytes, self._swap)

    def _swap(self, sources: Sequence[DataFile], merged: DataFile | None) -> bool:
        """Put a file in the place of these, if all of them are there."""
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(each.path, False, now, each.size, dict(each.partition)) for each in sources
        ]
        if merged is not None:
            actions.append(_add(merged, data_change=False))

        def attempt() -> bool:
            table = self._existing()
            # deltalake does not compare what is removed with what is there: someone else may have merged it.
            if not {each.path for each in sources} <= {each.path for each in _files(table, -1, None)}:
                return False
            self._write(table, [] if merged is None else [merged], actions, _once())
            return True

        return self._committed(attempt)

    def vacuum(self, keep_seconds: float, *, dry_run: bool = False) -> list[str]:
        """See LakeTable. deltalake counts in hours: `keep_seconds` is rounded up."""
        table = self._existing()
        hours = -int(-keep_seconds // 3600)
        with _declared_errors(self.path):
            named = sorted(set(table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)))
            # Also files that an earlier vacuum removed, until the log forgets them.
            there = DeltaStorageHandler(self.path, self._options).get_file_info(named)
            found = [name for name, info in zip(named, there, strict=True) if info.type == FileType.File]
            if found and not dry_run:
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
                self._sync()
        return found

    def _write(
        self,
        table: DeltaTable,
        files: Sequence[DataFile],
        actions: list[AddAction | RemoveAction],
        properties: CommitProperties,
        *,
        replacing: Schema | None = None,
    ) -> None:
        """One commit on this snapshot, which adds the files, or replaces all that there are, with these columns."""
        must_be_there(self.path, files, self._options)
        table.create_write_transaction(
            actions,
            "append" if replacing is None else "overwrite",
            table.schema() if replacing is None else replacing,
            partition_by=table.metadata().partition_columns,
            commit_properties=properties,
        )

    def _attempted(self, attempt: Callable[[], bool]) -> bool | None:
        before = self._version()
        with _declared_errors(self.path):
            try:
                done = attempt()
            except DeltaError:
                if self._version() == before:
                    raise
                return None
            self._sync()
            return done

    def _version(self) -> int | None:
        table = self._open()
        return None if table is None else table.version()

    def _sync(self) -> None:
        if self._log is not None:
            self._log.sync()


# -- what Delta's log has


def _once() -> CommitProperties:
    return CommitProperties(max_commit_retries=0)


def _columns(days: Days | None) -> list[str]:
    return [] if days is None or days.column is None else [days.column]


def _offsets_of(writer: str) -> str:
    return f"{writer}#offsets"


def _offsets_number(table: DeltaTable, writer: str) -> int | None:
    return table.transaction_version(_offsets_of(writer))


def _offsets_file(number: int) -> str:
    return f"_consumerd/{number:019}.json"


def _add(file: DataFile, *, data_change: bool) -> AddAction:
    statistics = {
        "numRecords": file.rows,
        "minValues": file.minimums,
        "maxValues": file.maximums,
        "nullCount": file.nulls,
    }
    return AddAction(
        file.path, file.size, dict(file.partition), file.modified, data_change, json.dumps(statistics, default=dict)
    )


def _files(table: DeltaTable, after: int, to: int | None) -> list[DataFile]:
    actions = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return of_batches(map(_data_file, actions), after, to)


def _data_file(action: Mapping[str, Any]) -> DataFile:
    return DataFile(
        path=action["path"],
        size=action["size_bytes"],
        rows=action["num_records"],
        modified=action["modification_time"],
        minimums=_known(action.get("min")),
        maximums=_known(action.get("max")),
        nulls={name: count for name, count in _known(action.get("null_count")).items() if isinstance(count, int)},
        partition={
            name: None if value is None else str(value) for name, value in (action.get("partition") or {}).items()
        },
    )


def _known(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Statistics of columns, as Delta's log has them, without those that are not known."""
    return {name: _statistic(value) for name, value in (values or {}).items() if value is not None}


def _statistic(value: Any) -> Any:
    match value:
        case datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case dict():
            return _known(value)
    return value


def _stored(schema: pa.Schema) -> Schema:
    """The columns in Delta's types, all of them nullable."""
    return Schema.from_json(json.dumps(_nullable(json.loads(Schema.from_arrow(schema).to_json()))))


def columns_of(text: bytes, source: str) -> pa.Schema:
    """The columns that Spark's JSON of a schema declares. `source`: its file, for TableCorruptError."""
    try:
        return pa.schema(Schema.from_json(text.decode()).to_arrow())
    except (ValueError, DeltaError) as error:
        raise TableCorruptError(
            f"{source} is not a valid list of columns ({error}): restore it from a backup."
        ) from None


def _nullable(kind: Any) -> Any:
    """A type or field of Delta, in JSON, whose parts may all be null."""
    if isinstance(kind, list):
        return [_nullable(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    nulls = ("nullable", "containsNull", "valueContainsNull")
    return {name: True if name in nulls else _nullable(value) for name, value in kind.items()}


#: Spark's words for those types of Delta that have other names there.
_WORDS: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def _type(field: Any) -> str:
    kind = _nullable(json.loads(field.to_json())["type"])
    return _WORDS.get(kind, kind) if isinstance(kind, str) else json.dumps(kind)


def _new_columns(table: DeltaTable, wanted: Schema, path: str) -> list[Any]:
    """The fields that the table does not have. Raises TableSchemaError for those that it has in another way."""
    stored = {field.name.lower(): field for field in table.schema().fields}
    new = []
    for field in wanted.fields:
        before = stored.get(field.name.lower())
        if before is None:
            new.append(field)
        elif before.name != field.name or _type(before) != _type(field):
            raise TableSchemaError(
                f"column {before.name!r} of {path} is {_type(before)}, and the new rows have {field.name!r}, "
                f"{_type(field)}: give the new column another name, or move the table and its checkpoint away to write "
                "everything again."
            )
    return new


class _LocalLog:
    """The folder of Delta's log on this machine, whose files deltalake does not sync."""

    def __init__(self, path: str, files: SystemFiles) -> None:
        self._path = path
        self._files = files
        self._synced = -1

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def sync(self) -> None:
        """Make durable what is newer than at the last call."""
        found = {entry.name: _LOG_NAME.fullmatch(entry.name) for entry in self._files.entries(self._path)}
        versions = {name: int(match[1]) for name, match in found.items() if match is not None}
        for name in sorted(name for name, version in versions.items() if version > self._synced):
            self._sync_file(f"{self._path}/{name}")
        if "_last_checkpoint" in found:
            self._sync_file(f"{self._path}/_last_checkpoint")
        self._files.sync_directory(self._path)
        self._synced = max(versions.values(), default=-1)

    def _sync_file(self, path: str) -> None:
        try:
            self._files.sync_file(path)
        except FileNotFoundError:
            pass  # an expired version, which a checkpoint replaces
        except OSError:
            # A failed sync is not repaired by the next one.
            data = self._files.read(path)
            if data is not None:
                self._files.replace(path, data)


@contextmanager
def _declared_errors(path: str) -> Iterator[None]:
    """Raise deltalake's errors as ours."""
    try:
        yield
    except DeltaError as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("Kernel error: ")
        if isinstance(error, CommitFailedError | DeltaProtocolError) or "nsupported" in text or "not supported" in text:
            raise TableError(
                f"the table {path} cannot be used: {text}: if a newer release of Delta wrote it, upgrade deltalake."
            ) from error
        raise TableCorruptError(
            f"{path}/_delta_log is damaged ({text}): restore the table from a backup, with its checkpoint."
        ) from error
    except OSError as error:
        raise TableError(f"the table {path} cannot be read or written: {_system_text(error)}.") from error


def _system_text(error: OSError) -> str:
    match = _OS_ERROR.search(str(error))
    if match is not None:
        return os.strerror(int(match[2]))
    return error.strerror or " ".join(str(error).split())
