"""Timing: several subjects do the same work in turns, and the best round of each counts.

Strategy: absolute figures of a shared machine mean little and change by the minute; taking turns makes the ratios hold,
because all subjects see the same minutes.
"""

from __future__ import annotations

import gc
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Measurement:
    """One subject in one case. `ratio` is how many times as fast ours is; None where there is nothing to compare."""

    benchmark: str
    case: str
    subject: str
    value: float
    unit: str
    ratio: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def race(
    subjects: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of the best of `rounds` of each subject, the collector of cycles being off.

    `clock` is `time.process_time` where only the work of this one process is meant, and not the waiting for disks.
    """
    best = dict.fromkeys(subjects, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, work in subjects.items():
                start = clock()
                work()
                best[name] = min(best[name], clock() - start)
    finally:
        gc.enable()
    return best


def table(results: list[Measurement]) -> list[str]:
    """Aligned lines: case, subject, value, ratio."""
    lines = []
    case = None
    for result in results:
        if result.case != case:
            case = result.case
            lines.append(f"{result.benchmark}: {case}")
        ratio = "" if result.ratio is None else f"   ours is {result.ratio:.2f}x as fast"
        lines.append(f"  {result.subject:<14}{result.value:>10.2f} {result.unit}{ratio}")
    return lines
