"""Merging of a table's small files: which ones, and their rows in one new file, in the order of their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from consumerd.spark.lake.data_file import DataFile, DataFileWriter
from consumerd.spark.lake.folders import open_folder
from consumerd.spark.lake.reading import read_file
from consumerd.spark.lake.table import LakeTable
from consumerd.spark.tables.table import CompactResult


def merge_small_files(
    table: LakeTable,
    target_bytes: int,
    swap: Callable[[Sequence[DataFile], DataFile | None], bool],
) -> CompactResult:
    """Merge small files into files of about `target_bytes`.

    `swap` puts a file in the place of others, in one commit, and returns False where one of these is not there any
    more. Raises what it and DataFileWriter raise.
    """
    if target_bytes <= 0:
        raise ValueError(f"target_bytes = {target_bytes} is not positive")
    before = table.files()
    merged = 0
    parts: dict[tuple[object, ...], list[DataFile]] = {}
    for each in before:
        parts.setdefault(tuple(sorted(each.partition.items())), []).append(each)
    for group in [group for part in parts.values() for group in plan_merges(part, target_bytes)]:
        file = _merged(table, group)
        if swap(group, file):
            merged += 1
        elif file is not None:
            open_folder(table.path, table.data_options).remove(file.path)
    after = table.files()
    return CompactResult(
        table=table.path,
        files_before=len(before),
        files_after=len(after),
        bytes_before=sum(each.size for each in before),
        bytes_after=sum(each.size for each in after),
        merged=merged,
        removed=0,
    )


def plan_merges(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Groups of files to merge into one each: neighbours by their batches that are small, up to the target's size.

    The last, smaller group is merged again as batches are added: for each compaction, less than the target's size is
    written more than once.
    """
    groups: list[list[DataFile]] = [[]]
    held = 0
    for file in files:
        if file.size >= target_bytes:
            continue
        if held + file.size > target_bytes:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.size
    return [group for group in groups if len(group) > 1]


def _merged(table: LakeTable, sources: Sequence[DataFile]) -> DataFile | None:
    schema = table.schema()  # read after the list of files, so that it has all of their columns
    folder = open_folder(table.path, table.data_options)
    with DataFileWriter(table.path, schema, storage_options=table.data_options) as writer:
        for each in sources:
            for rows in read_file(folder, each.path, schema):
                writer.write(rows)
        file = writer.close()
    return None if file is None else replace(file, partition=sources[0].partition)
