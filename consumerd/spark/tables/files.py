"""The few file operations that tables need: local ones by system calls, all others by Hadoop's file systems.

Strategy: one port, `Files`, with an atomic create, an atomic rename that refuses an existing target, and durability. A
batch that a checkpoint calls done must survive a loss of power, so local files and directories are synced before and
after the rename. Hadoop's `FileSystem.rename` moves *into* an existing directory, hence `FileContext` here.

Object stores that copy instead of renaming (S3, GCS, ...) cannot commit by a rename: Parquet tables are refused there;
use Delta tables, which commit by creating one file.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from py4j.protocol import Py4JJavaError

from consumerd.base.durable import make_directory
from consumerd.spark.tables.errors import TablePathError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Schemes of stores whose rename is a copy.
COPYING_STORES: Final = frozenset({"s3", "s3a", "s3n", "gs", "wasb", "wasbs", "oss", "cosn", "obs", "swift"})
#: Characters that Hadoop takes for a pattern in a path that is to be read.
_PATTERN_CHARACTERS: Final = frozenset("{}[]*?\\,")


class FileEntry(NamedTuple):
    """One name in a folder. `size` in bytes; `changed` in seconds since 1970."""

    name: str
    is_folder: bool
    size: int
    changed: float


class Files(Protocol):
    """Operations on paths, which are texts below the table's own folder."""

    def entries(self, path: str) -> list[FileEntry]:
        """The entries of a directory, by name; none if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        ...

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None if it does not exist."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Create the file atomically with all its bytes; False if it exists."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Create or replace the file atomically."""
        ...

    def rename_folder(self, source: str, target: str) -> bool:
        """Rename a directory; False if the name is taken. Its files are durable before, its name after."""
        ...

    def settle(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def make_folder(self, path: str) -> None:
        """Create a directory and its parents."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""
        ...


class LocalFiles:
    """Files of this machine, or of a file system that is mounted on all machines alike."""

    def entries(self, path: str) -> list[FileEntry]:
        found = []
        try:
            with os.scandir(path) as scan:
                for each in scan:
                    try:
                        status = each.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # it was removed meanwhile
                    found.append(FileEntry(each.name, each.is_dir(), status.st_size, status.st_mtime))
        except FileNotFoundError:
            return []
        return sorted(found)

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        fresh = self._write(path, data)
        try:
            os.link(fresh, path)
        except FileExistsError:
            created = False
        else:
            created = True
        finally:
            fresh.unlink()
        _sync(Path(path).parent)  # of a file that exists, too: its writer may have failed or died before its sync
        return created

    def replace(self, path: str, data: bytes) -> None:
        self._write(path, data).replace(path)
        _sync(Path(path).parent)

    def _write(self, path: str, data: bytes) -> Path:
        fresh = Path(path).with_name(f"._{secrets.token_hex(8)}")
        try:
            with fresh.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            fresh.unlink(missing_ok=True)
            error.filename = path  # a write, unlike an open, does not say which file it is about
            raise
        return fresh

    def rename_folder(self, source: str, target: str) -> bool:
        for folder, _, names in os.walk(source):
            for name in names:
                _sync(Path(folder, name))
            _sync(Path(folder))
        renamed = not Path(target).exists()  # an empty directory would be replaced
        try:
            if renamed:
                Path(source).rename(target)
        except OSError:
            if not Path(target).exists():
                raise
            renamed = False
        _sync(Path(target).parent)  # of a taken name, too: its writer may have failed or died before its sync
        return renamed

    def settle(self, path: str) -> None:
        _sync(Path(path))

    def make_folder(self, path: str) -> None:
        make_directory(Path(path), _sync)

    def remove(self, path: str) -> None:
        place = Path(path)
        try:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()
        except FileNotFoundError:
            # Another process removes it as well: the next run removes the rest, if any.
            return


class HadoopFiles:
    """Files of any file system that Hadoop knows, through the session's JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no public way to Hadoop's file systems
        hadoop = gateway.jvm.org.apache.hadoop.fs
        configuration = gateway.jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf()
        self._path = hadoop.Path
        self._system = hadoop.Path(path).getFileSystem(configuration)
        self._context = hadoop.FileContext.getFileContext(self._system.getUri(), configuration)
        kinds = getattr(hadoop, "Options$Rename")
        self._refusing = gateway.new_array(kinds, 1)
        self._refusing[0] = kinds.NONE
        self._overwriting = gateway.new_array(kinds, 1)
        self._overwriting[0] = kinds.OVERWRITE

    def entries(self, path: str) -> list[FileEntry]:
        place = self._path(path)
        if not self._system.exists(place):
            return []
        return sorted(
            FileEntry(each.getPath().getName(), each.isDirectory(), each.getLen(), each.getModificationTime() / 1000)
            for each in self._system.listStatus(place)
        )

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def read(self, path: str) -> bytes | None:
        place = self._path(path)
        if not self._system.exists(place):
            return None
        stream = self._system.open(place)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> bool:
        fresh = self._write(path, data)
        try:
            return self.rename_folder(fresh, path)
        finally:
            self.remove(fresh)

    def replace(self, path: str, data: bytes) -> None:
        self._context.rename(self._path(self._write(path, data)), self._path(path), self._overwriting)

    def _write(self, path: str, data: bytes) -> str:
        folder, _, _ = path.rpartition("/")
        fresh = f"{folder}/._{secrets.token_hex(8)}"
        stream = self._system.create(self._path(fresh), False)
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()
        return fresh

    def rename_folder(self, source: str, target: str) -> bool:
        try:
            self._context.rename(self._path(source), self._path(target), self._refusing)
        except Py4JJavaError:
            if self.exists(target):
                return False
            raise
        return True

    def settle(self, path: str) -> None:
        """Do nothing: the name node logs names before it responds."""

    def make_folder(self, path: str) -> None:
        self._system.mkdirs(self._path(path))

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def locate(spark: SparkSession, path: str, *, renames: bool) -> tuple[str, Files]:
    """The path qualified with its file system, as Spark resolves it, and the operations on it.

    `renames`: whether commits are renames. Raises TablePathError for stores that cannot do that and for characters
    that Hadoop takes for a pattern.
    """
    bad = sorted(_PATTERN_CHARACTERS & set(path))
    if bad or not path.strip():
        raise TablePathError(f"{path!r} is not a valid table path: Spark would read {' '.join(bad)} as a glob pattern.")
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as above
    place = gateway.jvm.org.apache.hadoop.fs.Path(path)
    scheme = place.toUri().getScheme()
    if renames and scheme in COPYING_STORES:
        raise TablePathError(
            f"{path} is in an object store, where a rename is a copy and not atomic: "
            'use Delta tables there, format = "delta".'
        )
    system = place.getFileSystem(gateway.jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf())
    qualified = system.makeQualified(place)
    if qualified.toUri().getScheme() == "file":
        return str(qualified.toUri().getPath()), LocalFiles()
    return str(qualified.toString()), HadoopFiles(spark, path)
