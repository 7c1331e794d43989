"""A sink with exactly-once Parquet files, one for each range of a partition's log that was handled.

    <directory>/<topic>/<broker>-<partition>/<start>-<end>.parquet        20 digits each; [start, end) in log offsets

Strategy: a file is a batch, as with `files`. How large it gets is therefore said by the size of batches: rows by
`handler.max_batch`, bytes by `handler.max_bytes`, age by `handler.linger`. A file that grew over several batches would
have messages that count as handled and are nowhere durable.

Promises: `consumerd.handlers.builtin.ranges`; a directory: `consumerd.handlers.builtin.range_folders`; a URL:
`consumerd.handlers.builtin.range_objects`; columns: `consumerd.handlers.builtin.parquet_rows`. Encoding and writing
are done in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit

from consumerd.base.errors import HandlerLoadError
from consumerd.base.files import SystemFiles
from consumerd.base.settings.kind import checked
from consumerd.handlers.builtin.parquet_rows import parquet_pieces
from consumerd.handlers.builtin.range_folders import RangeFolders
from consumerd.handlers.builtin.range_objects import RangeObjects
from consumerd.handlers.builtin.ranges import IfEmpty, RangeHandler, RangeStore
from consumerd.handlers.secrets import Secret
from consumerd.storage.archives.errors import MissingExtraError
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.options import ExportCompression

_SUFFIX = ".parquet"
#: File systems that fsspec writes to in place: a crash would leave half a file under its final name.
_IN_PLACE: Final = frozenset(
    {"arrow_hdfs", "dask", "ftp", "hdfs", "http", "https", "jlab", "jupyter", "local", "sftp", "smb", "ssh", "webhdfs"}
)


class ParquetHandler(RangeHandler[Any]):
    """Writes each batch to a file of its own. Options:

    `directory`: a path, which is made when missing, or a URL of a store of objects for fsspec. `compression`: `zstd`,
    `snappy`, `gzip` or `none`. `storage_options`: a table for fsspec's driver, such as credentials. `if_empty`: see
    `RangeHandler.position`. Raises PartitionTakenError, RangeOverlapError, and what the disk or the store says, which
    the retry policy handles.
    """

    @checked
    def __init__(
        self,
        directory: str | Path,
        compression: Literal["none", "gzip", "zstd", "snappy"] = "zstd",
        storage_options: Secret[Mapping[str, Any] | None] = None,
        if_empty: IfEmpty = "stop",
    ) -> None:
        if not isinstance(directory, (str, Path)) or not str(directory):
            raise ValueError(f"directory must be a path or URL, not {directory!r}")
        path = _local(str(directory))
        if storage_options is not None and (path is not None or not isinstance(storage_options, Mapping)):
            raise ValueError("storage_options must be a table, and needs a directory that is a URL")
        try:
            extra("pyarrow.parquet", "writing Parquet")
            if path is None:
                extra("fsspec", "writing to a URL")
        except MissingExtraError as error:
            raise HandlerLoadError(
                "the handler 'parquet' needs the extra `archive`: pip install 'consumerd[archive]'."
            ) from error
        store: RangeStore[Any]
        if path is None:
            store = RangeObjects(str(directory), storage_options or {}, _SUFFIX)
        else:
            store = RangeFolders(SystemFiles(), path, _SUFFIX)
        super().__init__(store, partial(parquet_pieces, compression=ExportCompression(compression)), path, if_empty)

    @classmethod
    def on(cls, files: SystemFiles, directory: Path) -> Self:
        """The handler on another file system than the operating system's."""
        handler = cls(directory)
        handler._store = RangeFolders(files, directory, _SUFFIX)
        return handler


def _local(directory: str) -> Path | None:
    """The path of a local directory; None for a URL of anything else."""
    if "://" not in directory:
        return Path(directory)
    parts = urlsplit(directory)
    if parts.scheme in _IN_PLACE:
        raise ValueError(
            f"directory must be a path or a store of objects such as s3://, not {parts.scheme}://; mount it"
        )
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError(f"directory must be of the form file:///path, not {directory!r}")
    return Path(unquote(parts.path))
