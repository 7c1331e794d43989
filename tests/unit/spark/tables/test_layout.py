from __future__ import annotations

import random

import pytest

from consumerd.spark.tables.layout import (
    BatchFolder,
    Slice,
    batch_name,
    covered,
    cut,
    has_gap,
    merged_name,
    parse_folders,
    resolve,
)


def folders(*names: str) -> list[BatchFolder]:
    return parse_folders(names)


def test_parses_only_names_of_batches() -> None:
    names = ["_staging", "batch=5", "batch=" + "0" * 19 + "5x", batch_name(5), merged_name(2, 3), merged_name(3, 2), ""]
    assert [(each.first, each.last, each.is_merged) for each in parse_folders(names)] == [(2, 3, True), (5, 5, False)]


def test_reads_the_widest_directory_and_covers_the_others() -> None:
    found = folders(*(batch_name(n) for n in range(5)), merged_name(0, 2), merged_name(1, 2), merged_name(3, 3))
    assert [each.folder.name for each in resolve(found)] == [merged_name(0, 2), merged_name(3, 3), batch_name(4)]
    assert {each.name for each in covered(found)} == {batch_name(n) for n in range(4)} | {merged_name(1, 2)}


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
    # Covered folders can be deleted without a change of the result.
    gone = set(covered(found))
    assert resolve([each for each in found if each not in gone]) == resolve(found)
    assert has_gap(resolve(found)) == (bool(read) and len(read) != read[-1] - read[0] + 1)
