"""Every kept input through its target, in plain Python: what fuzzing reached once, and what once broke a law."""

from __future__ import annotations

import pytest

from tests.fuzz.corpora import CORPUS, REGRESSIONS, kept_inputs
from tests.fuzz.targets import TARGETS

#: Bytes of all corpora together: they are checked out and replayed every day.
_MOST = 200_000


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_break_no_law(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    assert max(map(len, seeds.values())) <= target.longest
    for data in (b"", *seeds.values(), *kept_inputs(CORPUS, name), *kept_inputs(REGRESSIONS, name)):
        try:
            target.check(data)
        except BaseException as error:
            error.add_note(f"input {data.hex()}")
            raise


def test_corpora_are_small_and_belong_to_targets() -> None:
    files = [*CORPUS.glob("*"), *REGRESSIONS.glob("*")]
    assert {file.name for file in files} <= {f"{name}.txt" for name in TARGETS}
    assert sum(file.stat().st_size for file in files) < _MOST
