from __future__ import annotations

import random

import pytest

from consumerd.spark.tables.errors import TableCorruptError
from consumerd.spark.tables.layout import BatchFolder, Slice, cut, has_gap, owner_of, parse_folders, resolve
from tests.support.lake_tables import batch_name, merged_name


def folders(*names: str) -> list[BatchFolder]:
    return parse_folders(names)


def test_parses_only_names_of_batches() -> None:
    names = ["_staging", "batch=5", "batch=" + "0" * 19 + "5x", batch_name(5), merged_name(2, 3), merged_name(3, 2), ""]
    assert [(each.first, each.last, each.is_merged) for each in parse_folders(names)] == [(2, 3, True), (5, 5, False)]


def test_reads_the_widest_directory() -> None:
    found = folders(*(batch_name(n) for n in range(5)), merged_name(0, 2), merged_name(1, 2), merged_name(3, 3))
    assert [each.folder.name for each in resolve(found)] == [merged_name(0, 2), merged_name(3, 3), batch_name(4)]


def test_cuts_overlapping_directories() -> None:
    found = folders(merged_name(0, 4), merged_name(3, 7))
    assert resolve(found) == [Slice(found[0], 0, 4), Slice(found[1], 5, 7)]
    assert [each.is_whole for each in resolve(found)] == [True, False]
    assert [(each.first, each.last) for each in cut(resolve(found), 2, 5)] == [(3, 4), (5, 5)]
    assert cut(resolve(found), 7, 9) == []


@pytest.mark.parametrize("seed", range(200))
def test_reads_every_batch_exactly_once_from_any_directories(seed: int) -> None:
    rng = random.Random(seed)
    names = [batch_name(n) for n in range(12) if rng.random() < 0.7]
    for _ in range(rng.randrange(6)):
        first = rng.randrange(12)
        names.append(merged_name(first, rng.randrange(first, 12)))
    rng.shuffle(names)
    found = parse_folders(names)
    present = {n for each in found for n in range(each.first, each.last + 1)}
    read = [n for each in resolve(found) for n in range(each.first, each.last + 1)]
    assert read == sorted(present)
    assert all(each.folder.first <= each.first <= each.last <= each.folder.last for each in resolve(found))
    # Folders that are not read can be deleted without a change of the result.
    used = {each.folder for each in resolve(found)}
    assert resolve([each for each in found if each in used]) == resolve(found)
    assert has_gap(resolve(found)) == (bool(read) and len(read) != read[-1] - read[0] + 1)


def test_table_has_one_owner() -> None:
    path = "/lake/bronze/_table.json"
    assert owner_of(b'{"consumerd_table": 1, "kind": "parquet", "writer": "one"}', path) == "one"
    with pytest.raises(TableCorruptError, match=f"{path} describes a table of kind 'delta'"):
        owner_of(b'{"consumerd_table": 1, "kind": "delta", "writer": "one"}', path)
    for broken in (b"", b"[]", b"{", b"[" * 100_000, b'{"consumerd_table": 1, "kind": "parquet", "writer": 5}'):
        with pytest.raises(TableCorruptError):
            owner_of(broken, path)
