"""Files and commits of the pipeline's tables, without Spark: its tasks run this, and so do processes without a JVM.

In: Arrow batches, of tasks or of a handler of the daemon (`sink`). Out: Parquet files, each described by one
`DataFile`, which a commit to a table names.

Files in reading order: data_file, arrays, folders, days, tasks, offsets, table, delta, iceberg, iceberg_files,
merging, reading, refine, checkpoint, worker, workers, batches, handover, land, land_tasks, batch_rows, append_rules,
appending, sink, batch_files, duplicates, again, refine_step, refine_tasks, parts, row_hash, coverage,
reconcile_tasks, reconcile_runs, reconcile, compact, casts, json_text, patterns, registered, decode.

Easy to miss:

- pyspark is not imported here, nor by anything that is imported here.
- A file that no commit names is not part of the table, whatever it holds: a killed writer leaves such files.
- deltalake accepts a transaction that the table has, and a removal of a file that it does not have; it syncs nothing.
- pyiceberg repeats a commit that another one has overtaken, which would add a batch twice, unless its retries are off.
- Parquet's statistics of a column of floats leave out NaN, which Spark takes for the greatest value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from consumerd.base.errors import ConfigError

if TYPE_CHECKING:
    from consumerd.spark.lake.table import LakeTable


_PACKAGES: Final = {"delta": ("deltalake", "spark"), "iceberg": ("pyiceberg", "iceberg")}
#: The remedy where earlier releases' format is configured.
NO_PARQUET: Final = (
    'tables in the format "parquet" are only read: set format = "delta", and run `consumerd spark convert` once for a '
    "pipeline that has such tables"
)


def open_lake_table(
    path: str,
    format: Literal["delta", "iceberg"] | str = "delta",  # noqa: A002 - Spark's word
    *,
    storage_options: Mapping[str, str] | None = None,
) -> LakeTable:
    """The table at `path`, a path of this machine or a URL, which need not exist yet.

    `storage_options`: of the object store, as deltalake has them; what is not given is read from the environment. For
    Iceberg also those of pyiceberg's catalog (`type`, `uri`, ...). Raises ConfigError for an unknown format, and where
    the format's package is missing; TablePathError where the folder holds a table in the earlier Parquet layout.
    """
    if format == "parquet":
        raise ConfigError(f"{NO_PARQUET}.")
    if format not in _PACKAGES:
        raise ConfigError(f"{format!r} is not a table format: must be {' or '.join(_PACKAGES)}.")
    try:
        table = _open(path, format, storage_options)
    except ImportError as error:
        package, extra = _PACKAGES[format]
        raise ConfigError(
            f"{format} tables need the package {package} ({error}): pip install 'consumerd[{extra}]'."
        ) from None
    from consumerd.base.files import SystemFiles  # noqa: PLC0415 - executors import this room for less
    from consumerd.spark.lake.folders import local_path  # noqa: PLC0415 - likewise
    from consumerd.spark.tables.layout import refuse_earlier_layout  # noqa: PLC0415 - likewise

    if (folder := local_path(path)) is not None:
        refuse_earlier_layout(SystemFiles(), folder.rstrip("/"))
    return table


def _open(path: str, format: str, storage_options: Mapping[str, str] | None) -> LakeTable:  # noqa: A002 - Spark's word
    if format == "iceberg":
        from consumerd.spark.lake.iceberg import IcebergLakeTable  # noqa: PLC0415 - each format needs its package

        return IcebergLakeTable(path, storage_options=storage_options)
    from consumerd.spark.lake.delta import DeltaLakeTable  # noqa: PLC0415 - likewise

    return DeltaLakeTable(path, storage_options=storage_options)
