"""What got slower since the recorded run, by more than noise.

Strategy: ratios to peers are compared, never rates, which change with the machine and its load. A row's noise is the
spread of its ratios in both runs together, and never less than a floor: two runs differ in more (memory layout, what
else runs, the processor's clock) than the rounds of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from benchmarks.race import Measurement

#: Least difference that counts, as a part of the recorded ratio.
FLOOR = 0.1
#: Noise from which on a row says nothing.
CEILING = 0.6

#: Benchmark, case, subject, unit.
Key: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A row in both runs. `noise` is a part of the recorded ratio."""

    key: Key
    before: float
    now: float
    noise: float

    def __str__(self) -> str:
        benchmark, case, subject, _ = self.key
        return (
            f"{benchmark}: {case}: {self.now:.3g} beside {subject}, recorded {self.before:.3g} "
            f"({100 * (self.now / self.before - 1):+.0f} %, noise {100 * self.noise:.0f} %)"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Each row of the recorded run is in one of these lists."""

    slower: list[Change] = field(default_factory=list)
    faster: list[Change] = field(default_factory=list)
    same: list[Change] = field(default_factory=list)
    too_noisy: list[Change] = field(default_factory=list)
    missing: list[Key] = field(default_factory=list)


def key(row: Measurement) -> Key:
    """What makes it the same row in another run."""
    return row.benchmark, row.case, row.subject, row.unit


def compare(before: Iterable[Measurement], now: Iterable[Measurement]) -> Comparison:
    """Compare the rows that have ratios. Rows that only `now` has are new, and are left out."""
    present = {key(row): row for row in now if row.ratio is not None}
    found = Comparison()
    for old in before:
        if old.ratio is None:
            continue
        new = present.get(key(old))
        if new is None or new.ratio is None:
            found.missing.append(key(old))
            continue
        noise = max(FLOOR, (old.spread or 0.0) + (new.spread or 0.0))
        change = Change(key(old), old.ratio, new.ratio, noise)
        if noise >= CEILING:
            found.too_noisy.append(change)
        elif new.ratio < old.ratio * (1 - noise):
            found.slower.append(change)
        elif new.ratio > old.ratio * (1 + noise):
            found.faster.append(change)
        else:
            found.same.append(change)
    return found


def lines(comparison: Comparison) -> list[str]:
    """Sentences for a person: first what matters least, last what got slower."""
    said = []
    if comparison.missing:
        said.append("not measured in this run:")
        said += [f"  {benchmark}: {case}, beside {subject}" for benchmark, case, subject, _ in comparison.missing]
    for title, changes in (("too noisy to say", comparison.too_noisy), ("faster", comparison.faster)):
        if changes:
            said += [f"{title}:", *(f"  {change}" for change in changes)]
    said.append(f"{len(comparison.same)} rows differ by no more than their noise")
    if comparison.slower:
        said += ["SLOWER than recorded, by more than noise:", *(f"  {change}" for change in comparison.slower)]
    else:
        said.append("no row is slower than recorded by more than its noise")
    return said
