"""Every target in plain Python: kept inputs, which fuzzing reached once or which once broke a law, and mangled ones.

Inputs are mangled for a moment every day, for a tenth of SECONDS each in `make test-long`.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.fuzz.corpora import CORPUS, REGRESSIONS, kept_inputs
from tests.fuzz.mangling import mangled
from tests.fuzz.targets import TARGETS

LONG_SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60")) / 10
#: Inputs, however long they take.
_LEAST = 100

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


@pytest.mark.timeout(LONG_SECONDS + 120)
@pytest.mark.parametrize("seconds", [0.2, pytest.param(LONG_SECONDS, marks=pytest.mark.long, id="long")])
@pytest.mark.parametrize("name", TARGETS)
def test_mangled_inputs_break_no_law(name: str, seconds: float) -> None:
    target = TARGETS[name]
    seed = random.SystemRandom().getrandbits(32)
    rng, end, rounds = random.Random(seed), time.monotonic() + seconds, 0
    samples = [*target.seeds().values(), *kept_inputs(CORPUS, name), *kept_inputs(REGRESSIONS, name)]

    def change(data: bytes) -> bytes:
        return mangled(rng, data, samples)

    while rounds < _LEAST or time.monotonic() < end:  # a busy machine has little of a moment for us
        data = rng.choice(samples)
        data = (change(data) if target.mutate is None else target.mutate(data, change, rng))[: target.longest]
        try:
            target.check(data)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {rounds}, input {data.hex()}")
            raise
        rounds += 1


def test_corpora_are_small_and_belong_to_targets() -> None:
    files = [*CORPUS.glob("*"), *REGRESSIONS.glob("*")]
    assert {file.name for file in files} <= {f"{name}.txt" for name in TARGETS}
    assert sum(file.stat().st_size for file in files) < _MOST
