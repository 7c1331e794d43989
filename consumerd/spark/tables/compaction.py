"""Compaction of a Parquet table: neighbouring batches merged into folders of about the size that was asked for.

Strategy. A group of neighbours is written as a folder that names the first and the last batch of the group, and its
rename is the whole commit: from then on readers take these batches from it (`layout`). What it covers is removed later,
when readers that began before have ended. Killed anywhere, a compaction leaves what is in `_staging` and what is
covered; both go at the next one. Rows keep their column `batch`, so that streams go on where they were.

A group is closed once it has the target's size. The last, smaller one is merged again as batches are added: what is
written more than once stays below the target's size for each compaction.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumerd.spark.tables.layout import STAGING, Slice, covered, merged_name, resolve
from consumerd.spark.tables.table import CompactResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.spark.tables.files import Entry
    from consumerd.spark.tables.parquet import ParquetTable

_COMPACT: Final = "compact-"


@dataclass(frozen=True, slots=True)
class Weighed:
    """A slice with the number and the size (bytes) of its folder's files."""

    slice: Slice
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbours to merge into `parts` files."""

    members: tuple[Weighed, ...]
    parts: int

    @property
    def name(self) -> str:
        """The folder that is to be made."""
        return merged_name(self.members[0].slice.first, self.members[-1].slice.last)


def plan(weighed: Iterable[Weighed], target_bytes: int) -> list[Group]:
    """Groups that are worth it: fewer files come out than go in. Batches keep their order and leave no gap."""
    groups: list[Group] = []
    members: list[Weighed] = []

    def close() -> None:
        parts = max(1, round(sum(each.bytes for each in members) / target_bytes))
        lone = len(members) == 1 and members[0].slice.folder.is_merged  # its name is taken, by itself
        if members and not lone and sum(each.files for each in members) > parts:
            groups.append(Group(tuple(members), parts))
        members.clear()

    for each in weighed:
        full = sum(member.bytes for member in members) + each.bytes > target_bytes
        if members and (full or members[-1].slice.last + 1 != each.slice.first):
            close()
        members.append(each)
    close()
    return groups


def compact(table: ParquetTable, target_bytes: int, keep_seconds: float) -> CompactResult:
    """See Table.compact."""
    if target_bytes <= 0:
        raise ValueError(f"target_bytes = {target_bytes} is not positive")
    schema = table.schema()
    staging = f"{table.path}/{STAGING}"
    for entry in table.files.entries(staging):
        if entry.name.startswith(_COMPACT):
            table.files.remove(f"{staging}/{entry.name}")
    before = _weigh(table, table.slices())
    merged = 0
    for group in plan(before, target_bytes):
        rows = table.frame([each.slice for each in group.members], schema).coalesce(group.parts)
        merged += table.commit(rows, f"{staging}/{_COMPACT}{secrets.token_hex(8)}", group.name)
    removed = _remove_covered(table, keep_seconds)
    after = _weigh(table, table.slices())
    return CompactResult(
        table=table.path,
        files_before=sum(each.files for each in before),
        files_after=sum(each.files for each in after),
        bytes_before=sum(each.bytes for each in before),
        bytes_after=sum(each.bytes for each in after),
        merged=merged,
        removed=removed,
    )


def _weigh(table: ParquetTable, slices: Iterable[Slice]) -> list[Weighed]:
    weighed = []
    for each in slices:
        entries = table.files.entries(f"{table.path}/{each.folder.name}")
        sizes = [entry.size for entry in entries if _is_data(entry)]
        weighed.append(Weighed(each, len(sizes), sum(sizes)))
    return weighed


def _is_data(entry: Entry) -> bool:
    return not entry.is_folder and entry.name[:1] not in "._"


def _remove_covered(table: ParquetTable, keep_seconds: float) -> int:
    """Remove folders that others cover, if those are old enough; how many."""
    folders = table.folders()
    changed = {entry.name: entry.changed for entry in table.files.entries(table.path)}
    used = [each.folder for each in resolve(folders)]
    limit = time.time() - keep_seconds
    removed = 0
    for folder in covered(folders):
        over = [each for each in used if each.first <= folder.last and folder.first <= each.last]
        if all(changed.get(each.name, limit + 1) <= limit for each in over):
            table.files.remove(f"{table.path}/{folder.name}")
            removed += 1
    return removed
