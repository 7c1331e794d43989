"""Timing: several subjects do the same work in turns, and the medians of the rounds count.

Strategy: absolute figures of a shared machine mean little and change by the minute. All subjects of a round see the
same minute, so each round gives a ratio of its own; the median of these ratios holds, and their spread says how well.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import structlog

from consumerd.base.java import MissingRuntimeError

_Subject = TypeVar("_Subject")

OURS = "consumerd"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One subject in one case: the record that every benchmark gives.

    `value` is the median of the rounds. Beside a peer or a limit (`ratio` is not None) `ours` is our own median in the
    same unit, `ratio` the median of the rounds' ratios of ours to the subject (above 1: ours is faster), and `spread`
    the distance between their quartiles as a part of the ratio. Other figures stand for themselves.
    """

    benchmark: str
    case: str
    subject: str
    value: float
    unit: str
    ratio: float | None = None
    ours: float | None = None
    spread: float | None = None
    rounds: int = 1
    #: Of a row that stands for a distribution: medians of the rounds at `benchmarks.latency_clients.QUANTILES`.
    quantiles: list[float] | None = None

    def as_json(self) -> dict[str, Any]:
        """For `--json`, with four digits that count."""
        fields = {name: _rounded(value) for name, value in asdict(self).items()}
        del fields["quantiles"]
        if self.quantiles is not None:
            fields["quantiles"] = [_rounded(value) for value in self.quantiles]
        return fields


def quiet() -> None:
    """Log warnings and errors only, to standard error: standard output is for results."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def laps(
    subjects: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each subject in each round, the collector of cycles being off.

    `clock` is `time.process_time` where only the work of this one process is meant, and not the waiting for disks.
    """
    found: dict[str, list[float]] = {name: [] for name in subjects}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, work in subjects.items():
                start = clock()
                work()
                found[name].append(clock() - start)
    finally:
        gc.enable()
    return found


def rates(seconds: Mapping[str, Sequence[float]], work: float) -> dict[str, list[float]]:
    """What was done per second in each round; a round does `work`."""
    return {name: [work / each for each in rounds] for name, rounds in seconds.items()}


def spread(ratios: Sequence[float]) -> float | None:
    """The distance between the quartiles as a part of the median; None of a single round."""
    if len(ratios) < 2:
        return None
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / middle


def compared(
    benchmark: str,
    case: str,
    unit: str,
    figures: Mapping[str, Sequence[float]],
    *,
    ours: str = OURS,
    others: Iterable[str] | None = None,
    less: bool = False,
) -> list[Measurement]:
    """The subject `ours` of `figures` (rates by round: more is better), and it beside each of `others` (default: all).

    Lists are of the same rounds in the same order. With `less`, less is better: ratios above 1 are in our favour, too.
    """
    mine = figures[ours]
    middle = statistics.median(mine)
    found = [Measurement(benchmark, case, OURS, middle, unit, rounds=len(mine))]
    for name in [name for name in figures if name != ours] if others is None else others:
        pairs = zip(mine, figures[name], strict=True)
        ratios = [other / one if less else one / other for one, other in pairs]
        ratio, value = statistics.median(ratios), statistics.median(figures[name])
        found.append(Measurement(benchmark, case, name, value, unit, ratio, middle, spread(ratios), len(ratios)))
    return found


def table(results: Iterable[Measurement]) -> list[str]:
    """Aligned lines: case, subject, value, ratio."""
    lines = []
    case = None
    for result in results:
        if result.case != case:
            case = result.case
            lines.append(f"{result.benchmark}: {case}")
        ratio = "" if result.ratio is None else f"   ours is {result.ratio:.2f}x as fast"
        if result.ratio is not None and result.spread is not None:
            ratio += f" (+-{result.spread * result.ratio / 2:.2f})"
        lines.append(f"  {result.subject:<24}{result.value:>10.2f} {result.unit}{ratio}")
    return lines


def show(results: Iterable[Measurement], promises: Mapping[str, bool], *, as_json: bool) -> int:
    """Print what a benchmark found, as a table or one JSON object; returns its exit code, 1 for a broken promise."""
    if as_json:
        print(json.dumps({"rows": [result.as_json() for result in results], "promises": dict(promises)}))
    else:
        print("\n".join(table(results)))
        for sentence, kept in promises.items():
            print(f"{'kept' if kept else 'BROKEN'}: {sentence}")
    return 0 if all(promises.values()) else 1


def show_if_possible(measure: Callable[[], Iterable[Measurement]], *, as_json: bool) -> int:
    """Print what `measure` found, or that a program is missing that it needs; returns the exit code."""
    try:
        results = measure()
    except MissingRuntimeError as error:
        print(f"left out: {error}", file=sys.stderr)
        return 0
    return show(results, {}, as_json=as_json)


def alternating(subjects: Iterable[_Subject], rounds: int) -> Iterator[_Subject]:
    """All subjects in each round, the other way round in each second one: the first of a round has another start."""
    forward = list(subjects)
    for number in range(rounds):
        yield from reversed(forward) if number % 2 else forward


def run_rounds(
    name: str,
    description: str,
    measure: Callable[[int], list[Measurement]],
    verdict: Callable[[list[Measurement]], Mapping[str, bool]],
    arguments: Sequence[str] | None,
    *,
    rounds: int,
) -> int:
    """The command of a benchmark whose one option beside `--json` is the number of rounds; returns its exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=description.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"the median of so many counts (default: {rounds})")
    options = parser.parse_args(arguments)
    results = measure(options.rounds)
    return show(results, verdict(results), as_json=options.json)
