"""The data source as Spark sees it: options in, schema and readers out.

Strategy: thin. Executors unpickle these classes with each task, so the modules that plan are imported in the methods
that only a driver calls. Options are read when the source is created, at the time of `.load()`.

For `CREATE TABLE ... USING consumerd OPTIONS (...)` Spark creates the source once while the table is created, with the
table's options among properties of its own (`provider`, `location`, `owner`, ...), and once for every read, without any
of them (4.2). It does keep the schema. So the options are stored as metadata of its first column, and a reader without
options takes them from there.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.spark.source.columns import SourceColumn, arrow_schema, offered, requested, schema_ddl
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.options import BATCH_ONLY, STREAM_ONLY, SourceOptions, read_options, refuse_options
from consumerd.spark.source.reading import read_rows
from consumerd.spark.source.request import ReadRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from consumerd.spark.source.planning import StreamPlanner

#: The worker of Spark's that asks a reader for filters. Elsewhere they may be switched off, and Spark then refuses
#: readers that would take them, instead of not handing them over.
_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_READ_ONLY = (
    "the data source consumerd is read only: write tables with parquet or delta, and to brokers with Spark's kafka, or "
    "with consumerd produce"
)
#: Where the workers are that make sources and plan with them. They are forked for one task each.
_PLANNING_WORKERS = ("pyspark.sql.worker.", "pyspark.sql.streaming.python_streaming_source_runner")


class ConsumerdDataSource(DataSource):
    """`spark.read.format("consumerd")` and `spark.readStream.format("consumerd")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with _without_traceback():
            self._given = table_options(options) if is_table(options) else dict(options)

    @classmethod
    def name(cls) -> str:
        return "consumerd"

    def schema(self) -> str | StructType:
        with _without_traceback():
            read = read_options(self._given)
            if is_table(self.options):
                return with_options(offered(include_headers=read.include_headers, mode=read.mode), self._given)
            return schema_ddl(read.include_headers, read.mode)

    def reader(self, schema: StructType) -> BatchReader:
        kind = PushingReader if _PUSHING_WORKER in sys.modules else BatchReader
        with _without_traceback():
            options = self._options(schema)
            refuse_options(options, STREAM_ONLY, "a batch")
            read = read_options(options)
            return kind(read, _request(read, schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream. It raises errors of the options in its first call: Spark hides those of this one."""
        try:
            options = self._options(schema)
            refuse_options(options, BATCH_ONLY, "a stream")
            read = read_options(options)
            return StreamReader(read, _request(read, schema))
        except ConsumerdError as error:
            return RejectedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        with _without_traceback():
            raise ReadOnlyError(_READ_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
        self.writer(schema, overwrite)

    def _options(self, schema: StructType) -> dict[str, str]:
        """Return the options of the read over those of the table, regardless of case. Raises OptionError."""
        kept = options_in(schema)
        if not kept and not self._given:
            raise OptionError(
                "no options given; a table keeps its options only if CREATE TABLE names no columns: create it without "
                "columns, and select those you need"
            )
        given = {name.lower() for name in self._given}
        return {name: value for name, value in kept.items() if name.lower() not in given} | self._given


class ReadOnlyError(ConsumerdError):
    """The source was used for writing, which it does not support."""

    exit_code = ExitCode.REFUSED


class BatchReader(DataSourceReader):
    """One batch: planned in the driver, read in executors."""

    def __init__(self, options: SourceOptions, request: ReadRequest) -> None:
        self._options = options
        self._request = request
        self._pruning = Pruning()

    def partitions(self) -> Sequence[InputPartition]:
        from consumerd.spark.source.planning import plan_batch  # noqa: PLC0415

        with _without_traceback():
            return [InputPartition(split) for split in plan_batch(self._options, self._pruning)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._request)


class PushingReader(BatchReader):
    """One batch whose filters leave out splits."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return list(self._pruning.push(filters))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: one object in the driver follows the partitions, another one reads in executors."""

    def __init__(self, options: SourceOptions, request: ReadRequest) -> None:
        self._options = options
        self._request = request
        self._following: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_following": None}

    def initialOffset(self) -> dict[str, dict[str, Any]]:  # noqa: N802 - Spark's name
        with _without_traceback():
            return self._follower().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self._options.max_per_trigger
        if most is None:
            return ReadAllAvailable()
        return ReadMaxRows(most) if self._options.max_bytes_per_trigger is None else ReadMaxBytes(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, Any]]:  # noqa: N802
        with _without_traceback():
            return self._follower().latest(start, _most(limit))

    def reportLatestOffset(self) -> dict[str, dict[str, Any]] | None:  # noqa: N802 - Spark's name
        with _without_traceback():
            return self._follower().reported()

    def commit(self, end: dict[str, Any]) -> None:
        with _without_traceback():
            self._follower().commit(end)

    def stop(self) -> None:
        self._following = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with _without_traceback():
            self._follower().stop_at_present()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with _without_traceback():
            return [InputPartition(split) for split in self._follower().splits(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._request)

    def _follower(self) -> StreamPlanner:
        from consumerd.spark.source.planning import StreamPlanner  # noqa: PLC0415

        if self._following is None:
            self._following = StreamPlanner(self._options)
        return self._following


class RejectedStreamReader(StreamReader):
    """A stream that cannot be read, because its options or columns are invalid: each call of the driver raises that.

    The runner of pyspark 4.2 replaces an error of `streamReader` itself by an UnboundLocalError of its own.
    """

    def __init__(self, error: ConsumerdError) -> None:
        self._error = error
        self._following = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        with _without_traceback():
            raise self._error

    def _follower(self) -> NoReturn:
        raise self._error


@contextlib.contextmanager
def _without_traceback() -> Iterator[None]:
    """Raise a declared error without its cause, so that Spark shows only its class and its sentence."""
    try:
        yield
    except ConsumerdError as error:
        if any(name.startswith(_PLANNING_WORKERS) for name in sys.modules):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # of this worker, which runs nothing but this source
        raise error.with_traceback(None) from None


def _request(options: SourceOptions, schema: StructType) -> ReadRequest:
    return ReadRequest.of(options, requested(schema, include_headers=options.include_headers, mode=options.mode))


def _most(limit: ReadLimit) -> int | None:
    """The limit of a micro-batch; None: no limit."""
    match limit:
        case ReadMaxBytes(most) | ReadMaxRows(most):
            return most
    return None


def _read(partition: InputPartition, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    if partition.value is None:
        return iter(())  # Spark makes one partition of no partitions
    rows = read_rows(partition.value, request)
    _freeze_imports()
    return rows


_settled = False


def _freeze_imports() -> None:
    """In a worker of Spark: exclude imported modules from garbage collections, one of which ends each task."""
    global _settled  # noqa: PLW0603 - a process settles once
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.collect()
        gc.freeze()


#: A property that only a catalog sets.
_PROVIDER: Final = "provider"
#: Before the names of the table's options, as they were given.
_OPTION: Final = "option."
_METADATA: Final = "consumerd.options"
#: The schema is visible to every user who may see the table.
_NOT_KEPT: Final = "kafka.sasl.password"


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a table that is being created."""
    return _PROVIDER in options and "owner" in options


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """The source's options among those that Spark passes to CREATE TABLE. Raises OptionError for a password."""
    found = {name.removeprefix(_OPTION): value for name, value in options.items() if name.startswith(_OPTION)}
    if "path" in options:  # which the catalog takes for the table's location, and makes a URI of
        found["path"] = options["path"].removeprefix("file:")
    if any(name.lower() == _NOT_KEPT for name in found):
        raise OptionError(
            f"option {_NOT_KEPT} would be kept in the catalog for everybody to see; use kafka.sasl.password.file"
        )
    return found


def with_options(columns: Iterable[SourceColumn], options: Mapping[str, str]) -> StructType:
    """The schema of these columns, with the table's options in it."""
    schema = from_arrow_schema(arrow_schema(column.name for column in columns))  # DDL is read by a JVM only
    schema.fields[0].metadata = {_METADATA: json.dumps(dict(options), sort_keys=True)}
    return schema


def options_in(schema: StructType) -> dict[str, str]:
    """The options that `with_options` has put there; none in any other schema. Raises OptionError for damaged ones."""
    for field in schema.fields:
        kept: Any = (field.metadata or {}).get(_METADATA)
        if isinstance(kept, str):
            try:
                found = json.loads(kept)
                return {str(name): str(value) for name, value in found.items()}
            except (ValueError, AttributeError, RecursionError):
                raise OptionError(
                    f"the metadata {_METADATA} of column {field.name} is not a JSON object; create the table again"
                ) from None
    return {}
