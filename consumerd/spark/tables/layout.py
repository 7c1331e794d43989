"""The earlier Parquet layout, which is read and not written any more: a table as a folder of batches.

    <table>/_table.json                        the checkpoint that owns it
    <table>/_schema.json                       its columns
    <table>/batch=<20 digits>/part-*.parquet   one batch
    <table>/batch=<first>-<last>/...           batches that compaction merged
    <table>/_staging/<random>/                 an unfinished batch

Strategy: names of directories tell which batches each holds, and which one to read a batch from. A directory holds one
batch or, merged, a range of them without gaps, and every row has its batch. So in any set of directories that a killed
compaction left, every batch is read once: directories are taken in the order of their first batch, the widest first,
each for those of its batches that no directory before it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from consumerd.base.files import Files
from consumerd.spark.tables.errors import TableCorruptError, TablePathError

#: The files with the table's columns, and with its owner.
SCHEMA_FILE: Final = "_schema.json"
OWNER_FILE: Final = "_table.json"
#: The version that the owner's file has.
TABLE_VERSION: Final = 1
#: Folder of unfinished batches; its name keeps Spark and us from reading it.
STAGING: Final = "_staging"
_FOLDER = re.compile(r"batch=([0-9]{20})(?:-([0-9]{20}))?")


class BatchFolder(NamedTuple):
    """A folder by its name: batches `first` to `last`, both included."""

    name: str
    first: int
    last: int

    @property
    def is_merged(self) -> bool:
        """Whether compaction made it."""
        return "-" in self.name


class Slice(NamedTuple):
    """The part to read from one folder: its batches `first` to `last`."""

    folder: BatchFolder
    first: int
    last: int

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the folder are meant."""
        return (self.first, self.last) == (self.folder.first, self.folder.last)


def has_earlier_layout(files: Files, folder: str) -> bool:
    """Whether a folder holds a table in this layout that was not converted."""
    if not files.exists(f"{folder}/{OWNER_FILE}"):
        return False
    log = files.entries(f"{folder}/_delta_log", missing_ok=True)
    return not any(each.name.endswith((".json", ".parquet")) for each in log)


def refuse_earlier_layout(files: Files, folder: str) -> None:
    """Raise TablePathError if a folder holds a table in this layout that was not converted."""
    if has_earlier_layout(files, folder):
        raise TablePathError(
            f"{folder} holds a table in the earlier Parquet layout, which is only read: run `consumerd spark convert` "
            "to turn the pipeline's tables into Delta tables."
        )


def parse_folders(names: Iterable[str]) -> list[BatchFolder]:
    """The folders of batches among `names`, ordered by first batch, the widest first. Other names are left out."""
    found = []
    for name in names:
        match = _FOLDER.fullmatch(name)
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            if first <= last:
                found.append(BatchFolder(name, first, last))
    # Of two that hold the same one batch, the merged one comes first: it is there to stay.
    return sorted(found, key=lambda folder: (folder.first, -folder.last, not folder.is_merged))


def resolve(folders: Iterable[BatchFolder]) -> list[Slice]:
    """Slices that contain every batch once; `folders` as `parse_folders` orders them."""
    slices: list[Slice] = []
    done = -1
    for folder in folders:
        if folder.last > done:
            slices.append(Slice(folder, max(folder.first, done + 1), folder.last))
            done = folder.last
    return slices


def cut(slices: Iterable[Slice], after: int, to: int) -> list[Slice]:
    """The parts of `slices` with batches greater than `after` and not greater than `to`."""
    parts = [Slice(each.folder, max(each.first, after + 1), min(each.last, to)) for each in slices]
    return [each for each in parts if each.first <= each.last]


def has_gap(slices: Iterable[Slice]) -> bool:
    """Whether a batch between the first and the last one is missing."""
    expected = None
    for each in slices:
        if expected is not None and each.first != expected:
            return True
        expected = each.last + 1
    return False


def owner_of(data: bytes, path: str) -> str:
    """The owner that the file names. Raises TableCorruptError."""
    try:
        found = json.loads(data)
        version, kind, writer = found["consumerd_table"], found["kind"], found["writer"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TableCorruptError(f"{path} does not describe a table ({error}): restore it from a backup.") from None
    if version != TABLE_VERSION or kind != "parquet" or not isinstance(writer, str):
        raise TableCorruptError(
            f"{path} describes a table of kind {kind!r}, version {version!r}, not 'parquet', version {TABLE_VERSION}: "
            "read it with the release that wrote it."
        )
    return writer
