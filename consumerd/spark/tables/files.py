"""Where a table is, and files of the file systems that Hadoop knows.

Strategy: a path of this machine is `consumerd.base.files.SystemFiles`, any other one `HadoopFiles`, by the session's
JVM. Hadoop's `FileSystem.rename` moves *into* an existing directory, hence `FileContext` here.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from consumerd.base.files import FileEntry, Files, StrPath, SystemFiles
from consumerd.spark.tables.errors import TablePathError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Characters that Hadoop takes for a pattern in a path that is to be read.
_PATTERN_CHARACTERS: Final = frozenset("{}[]*?\\,")


class HadoopFiles:
    """Files of any file system that Hadoop knows, through the session's JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no public way to Hadoop's file systems
        hadoop = gateway.jvm.org.apache.hadoop.fs
        configuration = gateway.jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf()
        self._hadoop_path = hadoop.Path
        self._system = hadoop.Path(path).getFileSystem(configuration)
        self._context = hadoop.FileContext.getFileContext(self._system.getUri(), configuration)
        kinds = getattr(hadoop, "Options$Rename")
        self._refusing = gateway.new_array(kinds, 1)
        self._refusing[0] = kinds.NONE
        self._overwriting = gateway.new_array(kinds, 1)
        self._overwriting[0] = kinds.OVERWRITE

    def entries(self, path: StrPath, *, missing_ok: bool = False, sized: bool = True) -> list[FileEntry]:
        if missing_ok and not self.exists(path):
            return []
        return sorted(
            FileEntry(each.getPath().getName(), each.isDirectory(), each.getLen(), each.getModificationTime() / 1000)
            for each in self._system.listStatus(self._place(path))
        )

    def exists(self, path: StrPath) -> bool:
        return bool(self._system.exists(self._place(path)))

    def read(self, path: StrPath) -> bytes | None:
        if not self.exists(path):
            return None
        stream = self._system.open(self._place(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: StrPath, data: bytes) -> bool:
        fresh = self._write(path, data)
        try:
            return self._rename(fresh, path)
        finally:
            self.remove_tree(fresh)

    def replace(self, path: StrPath, data: bytes) -> None:
        self._context.rename(self._place(self._write(path, data)), self._place(path), self._overwriting)

    def _write(self, path: StrPath, data: bytes) -> str:
        folder, _, _ = str(path).rpartition("/")
        fresh = f"{folder}/._{secrets.token_hex(8)}"
        stream = self._system.create(self._place(fresh), False)
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()
        return fresh

    def _rename(self, source: StrPath, target: StrPath) -> bool:
        """Rename a file; False if the name is taken."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - not there without Spark

        try:
            self._context.rename(self._place(source), self._place(target), self._refusing)
        except Py4JJavaError:
            if self.exists(target):
                return False
            raise
        return True

    def sync_directory(self, path: StrPath) -> None:
        """Do nothing: the name node logs names before it responds."""

    def make_directory(self, path: StrPath) -> None:
        self._system.mkdirs(self._place(path))

    def remove_tree(self, path: StrPath) -> None:
        self._system.delete(self._place(path), True)

    def _place(self, path: StrPath) -> Any:
        return self._hadoop_path(str(path))


def has_jvm(spark: SparkSession) -> bool:
    """Whether a session has a JVM of its own; one of Spark Connect raises AttributeError for all that needs it."""
    return hasattr(spark, "sparkContext")


def errors_of(files: Files) -> tuple[type[Exception], ...]:
    """What operations on these files raise."""
    if isinstance(files, SystemFiles):
        return (OSError,)
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - not there without Spark

    return OSError, Py4JJavaError


def locate(spark: SparkSession | None, path: str) -> tuple[str, Files]:
    """The path qualified with its file system, as Spark resolves it, and the operations on it.

    `spark`: None for a path of this machine. Raises TablePathError for characters that Hadoop takes for a pattern, and
    for URLs without Spark.
    """
    bad = sorted(_PATTERN_CHARACTERS & set(path))
    if bad or not path.strip():
        raise TablePathError(f"{path!r} is not a valid table path: Spark would read {' '.join(bad)} as a glob pattern.")
    if spark is None:
        if urlsplit(path).scheme not in ("", "file"):
            raise TablePathError(f"{path} is not a folder of this machine: checkpoints elsewhere need Spark.")
        return str(Path(path.removeprefix("file:")).absolute()), SystemFiles()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as above
    place = gateway.jvm.org.apache.hadoop.fs.Path(path)
    system = place.getFileSystem(gateway.jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf())
    qualified = system.makeQualified(place)
    if qualified.toUri().getScheme() == "file":
        return str(qualified.toUri().getPath()), SystemFiles()
    return str(qualified.toString()), HadoopFiles(spark, path)
