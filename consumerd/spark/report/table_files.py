"""The files of a table: how many there are, and how large they are together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from consumerd.spark.tables.files import HadoopFiles
from consumerd.spark.tables.lake import LakeBatchTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.tables.table import BatchTable


class TableFiles(NamedTuple):
    """The number of data files, and their bytes together."""

    number: int = 0
    size: int = 0


def table_files(spark: SparkSession, table: BatchTable, after: int = -1) -> TableFiles:
    """The files that have the rows of a table, of batches greater than `after`. Raises NotFoundError, OSError."""
    if isinstance(table, LakeBatchTable):
        files = table.lake.files(after)
        return TableFiles(len(files), sum(file.size for file in files))
    remote: dict[str, set[str]] = {}
    sizes = []
    for url in table.read(after=after).inputFiles():
        path = unquote(urlsplit(url).path)
        if urlsplit(url).scheme in ("", "file"):
            sizes.append(Path(path).stat().st_size)
        else:
            folder, _, name = unquote(url).rpartition("/")
            remote.setdefault(folder, set()).add(name)
    for folder, names in remote.items():
        sizes += [each.size for each in HadoopFiles(spark, folder).entries(folder) if each.name in names]
    return TableFiles(len(sizes), sum(sizes))
