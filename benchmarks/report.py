"""A run of benchmarks as one JSON document, and that document as tables.

Strategy: the document holds all that was measured and what it depends on; tables are made of it alone, so that those of
`benchmarks/README.md` and `docs/performance.md` can be compared with `benchmarks/recorded.json` by a test.

    python -m benchmarks.report     write the tables and the plot of the recorded run
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import glance
from benchmarks.plot import decoding, latency
from benchmarks.race import Measurement

FORMAT = 1
FOLDER = Path(__file__).parent
RECORDED = FOLDER / "recorded.json"
README = FOLDER / "README.md"
PLOT = FOLDER / "decode.svg"
PAGE = FOLDER.parent / "docs" / "performance.md"
LATENCIES = PAGE.parent / "images" / "latency.svg"
#: Between which lines the tables of the README stand, and the table of the page.
LAST_RUN = "<!-- last run: made by python -m benchmarks.report -->", "<!-- end of last run -->"
GLANCE = "<!-- at a glance: made by python -m benchmarks.report -->", "<!-- end of at a glance -->"


@dataclass(frozen=True, slots=True)
class Turn:
    """One benchmark's turn: its end in UTC, how long it took, the machine's load before and after it (processes, on
    average over the last minute), and which of its promises were kept.
    """

    benchmark: str
    ended: str
    quick: bool
    arguments: list[str]
    seconds: float
    load_before: float
    load_after: float
    promises: dict[str, bool]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A run. `codec` is that of consumerd where a row does not name one."""

    codec: str
    machine: dict[str, Any]
    versions: dict[str, str]
    turns: list[Turn]
    rows: list[Measurement]

    def as_json(self) -> str:
        """One row per line, so that two records can be compared line by line."""
        head = {"format": FORMAT, "codec": self.codec}
        parts = [f'  "{name}": {json.dumps(value)}' for name, value in head.items()]
        parts += [f'  "{name}": {json.dumps(getattr(self, name))}' for name in ("machine", "versions")]
        for name, items in (("turns", map(asdict, self.turns)), ("rows", (row.as_json() for row in self.rows))):
            lines = ",\n".join(f"    {json.dumps(item)}" for item in items)
            parts.append(f'  "{name}": [\n{lines}\n  ]')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `as_json` wrote. Raises ValueError for anything else."""
        try:
            found = json.loads(text)
            if found.pop("format") != FORMAT:
                raise ValueError("it is of another format")
            turns = [Turn(**turn) for turn in found.pop("turns")]
            rows = [Measurement(**row) for row in found.pop("rows")]
            return cls(**found, turns=turns, rows=rows)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"this is no record of a run of the benchmarks: {error}") from error

    def merged(self, other: Report) -> Report:
        """This record with the benchmarks of `other` in place of its own. Raises ValueError if they do not belong
        together.
        """
        for name in ("machine", "versions", "codec"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"the recorded run is of another {name}: record all benchmarks")
        again = {_name(turn) for turn in other.turns}
        turns = [turn for turn in self.turns if _name(turn) not in again] + other.turns
        rows = [row for row in self.rows if row.benchmark not in again] + other.rows
        return Report(self.codec, self.machine, self.versions, turns, rows)

    @property
    def kept(self) -> bool:
        """Whether all benchmarks came to an end and all promises were kept."""
        return not any(turn.failed or not all(turn.promises.values()) for turn in self.turns)


def _name(turn: Turn) -> str:
    """A turn's benchmark: the pure codec has a turn of its own."""
    return turn.benchmark.partition(",")[0]


def number(value: float) -> str:
    """Three digits that count, with separators of thousands."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"


def about(report: Report) -> list[str]:
    """Sentences about a run's machine, versions and load."""
    machine, versions = report.machine, dict(report.versions)
    loads = [load for turn in report.turns for load in (turn.load_before, turn.load_after)]
    name = f"{machine.get('processor', 'unknown processor')} ({machine['architecture']})"
    python = versions.pop("python")
    minutes = sum(turn.seconds for turn in report.turns) / 60
    return [
        f"Recorded at {report.turns[-1].ended}; the benchmarks took {minutes:.0f} minutes.",
        f"{machine['cores']} cores of {name}, {machine['memory_gib']} GiB, {machine['system']}.",
        f"Python {python}; {', '.join(f'{name} {version}' for name, version in versions.items())}.",
        f"The load average was {min(loads, default=0)} to {max(loads, default=0)}: above the cores, programs waited.",
    ]


def _sections(rows: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = defaultdict(list)
    for row in rows:
        found[row.benchmark].append(row)
    return found


def markdown(report: Report) -> str:
    """The tables of a run, with what it depends on."""
    lines = [*(line for sentence in about(report) for line in (sentence, ""))]
    for benchmark, rows in _sections(report.rows).items():
        lines += [f"### {benchmark}", "", *_of_turns(benchmark, report.turns), ""]
        compared = [row for row in rows if row.ratio is not None]
        if compared:
            lines += ["| case | beside | ours | theirs | unit | ratio | spread |", "|---|---|--:|--:|---|--:|--:|"]
        for row in compared:
            assert row.ratio is not None
            assert row.ours is not None
            spread = "" if row.spread is None else f"{100 * row.spread:.0f} %"
            ours, theirs = number(row.ours), number(row.value)
            lines.append(
                f"| {row.case} | {row.subject} | {ours} | {theirs} | {row.unit} | {number(row.ratio)} | {spread} |"
            )
        alone = _alone(rows)
        if alone:
            lines += [""] if compared else []
            lines += ["| case | figure of | value | unit |", "|---|---|--:|---|"]
        lines += [f"| {row.case} | {row.subject} | {number(row.value)} | {row.unit} |" for row in alone]
        lines.append("")
    broken = [sentence for turn in report.turns for sentence, kept in turn.promises.items() if not kept]
    if broken:
        lines += ["Promises that this run did not keep:", "", *(f"- {sentence}" for sentence in broken), ""]
    return "\n".join(lines)


def _of_turns(benchmark: str, turns: Iterable[Turn]) -> list[str]:
    """A line about each run of a benchmark."""
    return [
        f"{turn.benchmark}, {'quick' if turn.quick else 'full'} (`{' '.join(turn.arguments)}`): {turn.seconds:.0f} s, "
        f"ended at {turn.ended}, load {turn.load_before} to {turn.load_after}.  "
        for turn in turns
        if _name(turn) == benchmark
    ]


def _alone(rows: list[Measurement]) -> list[Measurement]:
    """The figures that no row of ratios shows already."""
    shown = {(row.case, row.unit, row.ours) for row in rows if row.ratio is not None}
    return [row for row in rows if row.ratio is None and (row.case, row.unit, row.value) not in shown]


def text(report: Report) -> str:
    """Aligned lines for a terminal."""
    lines = about(report)
    for benchmark, rows in _sections(report.rows).items():
        lines.append(f"== {benchmark}")
        for row in rows:
            if row.ratio is not None and row.ours is not None:
                noise = "" if row.spread is None else f" (spread {100 * row.spread:.0f} %)"
                figures = f"{number(row.ours):>9} to {number(row.value):>9} {row.unit}"
                lines.append(f"{row.case:<58}{row.subject:<26}{figures:<36}{number(row.ratio):>8}{noise}")
        lines += [f"{row.case:<58}{row.subject:<26}{number(row.value):>9} {row.unit}" for row in _alone(rows)]
    for turn in report.turns:
        lines += [f"{'kept' if kept else 'BROKEN'}: {turn.benchmark}: {said}" for said, kept in turn.promises.items()]
        if turn.failed:
            lines.append(f"FAILED: {turn.benchmark}")
    return "\n".join(lines)


def with_tables(document: str, place: tuple[str, str], tables: str) -> str:
    """A document with `tables` in place of those before, between the lines `place`. Raises ValueError without these."""
    before, begin, rest = document.partition(place[0])
    _, end, after = rest.partition(place[1])
    if not begin or not end:
        raise ValueError(f"the document has no place for tables: {place[0]}")
    return f"{before}{begin}\n\n{tables}\n{end}{after}"


def at_a_glance(rows: list[Measurement]) -> str:
    """What docs/performance.md begins with: the table and, where latencies were recorded, their plot."""
    found = glance.table(rows) + "\n"
    if any(row.quantiles is not None for row in rows):
        found += (
            f"\n![Part of the messages that had arrived by their age, by case and client](images/{LATENCIES.name})\n"
        )
    return found


def main() -> int:
    """Write the tables of the recorded run into the README and docs/performance.md, and its plots."""
    report = Report.from_json(RECORDED.read_text())
    PAGE.write_text(with_tables(PAGE.read_text(), GLANCE, at_a_glance(report.rows)))
    README.write_text(with_tables(README.read_text(), LAST_RUN, markdown(report)))
    PLOT.write_text(decoding(report.rows))
    if any(row.quantiles is not None for row in report.rows):
        LATENCIES.write_text(latency(report.rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
