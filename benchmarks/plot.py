"""Plots as SVG, both axes logarithmic: throughput against message size, of the rows of `decode`; cost of a daemon by
partitions, of those of `footprint`; requests of a group by its members, of those of the model in `group`. And one of
distributions, of the rows of `latency`: a small plot for each case, milliseconds (logarithmic) to the part that took
at most so long.

Strategy: a few lines and words of SVG, without a library, so that the file is the same wherever it is made and a test
can compare it with the recorded run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

from benchmarks.latency_clients import QUANTILES
from benchmarks.race import OURS, Measurement

NAMESPACE = "http://www.w3.org/2000/svg"
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 300, 30, 50
#: Readable beside each other also without colours in mind, on white and on dark.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_CASE = re.compile(r"plain (\d+) B, (.+)")


def series(rows: Iterable[Measurement]) -> dict[str, dict[int, float]]:
    """Millions of messages per second by size, of each way of ours and of each peer."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        match = _CASE.fullmatch(row.case)
        if row.benchmark != "decode" or match is None:
            continue
        name = f"{OURS}, {match[2]}" if row.subject == OURS else row.subject
        found.setdefault(name, {})[int(match[1])] = row.value
    return found


def decoding(rows: Iterable[Measurement]) -> str:
    """The plot."""
    return plot("Decoding plain messages of 0.7", "bytes per message", "M msg/cpu-s", series(rows))


_FOOTPRINT = re.compile(r"(\d+) partitions, \d+ brokers")
_MODEL = re.compile(r"model, (\d+) members, (\d+) partitions, .*")
#: What `footprint` measures, and what its lines are called.
_COSTS = {
    "idle: memory": "resident memory, MiB",
    "file descriptors": "file descriptors",
    "start: processor": "start, processor seconds",
    "idle: processor": "idle, % of a core",
}


def footprint(rows: Iterable[Measurement]) -> str:
    """What partitions cost one daemon."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        match = _FOOTPRINT.fullmatch(row.case)
        # A logarithm has no place for what was too little to measure.
        if row.benchmark == "footprint" and match is not None and row.subject in _COSTS and row.value > 0:
            found.setdefault(_COSTS[row.subject], {})[int(match[1])] = row.value
    return plot("What partitions cost one daemon", "partitions", "unit beside each name", found)


def group(rows: Iterable[Measurement]) -> str:
    """Requests of a whole group to ZooKeeper at each event."""
    found: dict[str, dict[int, float]] = {}
    partitions = ""
    for row in rows:
        match = _MODEL.fullmatch(row.case)
        event, _, what = row.subject.partition(": ")
        if row.benchmark == "group" and match is not None and what == "requests" and event != "start":
            partitions = match[2]
            found.setdefault(event, {})[int(match[1])] = row.value
    return plot(f"A group that owns {partitions} partitions", "members", "requests to ZooKeeper at an event", found)


def plot(title: str, across: str, upwards: str, lines: Mapping[str, Mapping[int, float]]) -> str:
    """Lines of points by x and y, all above 0, with powers of ten as marks of both axes. Raises ValueError without any
    line.
    """
    sizes = sorted({size for points in lines.values() for size in points})
    values = [value for points in lines.values() for value in points.values()]
    if not values:
        raise ValueError("there is nothing to plot")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    first, last = math.log10(sizes[0]), math.log10(sizes[-1])

    def x(size: float) -> float:
        return LEFT + (math.log10(size) - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - math.log10(value)) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)} ({escape(upwards)})</text>',
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ccc"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10**power:g}</text>')
    for size in sizes:
        at = x(size)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ccc"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{size}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">{escape(across)}</text>')
    # Names in the order in which their lines end.
    ordered = sorted(lines.items(), key=lambda line: -line[1][max(line[1])])
    for number, (name, points) in enumerate(ordered):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(size):.1f},{y(points[size]):.1f}" for size in sorted(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = TOP + 18 * number + 12
        parts.append(f'<path d="M{WIDTH - RIGHT + 16} {at - 4}h16" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 38}" y="{at}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


#: Of a small plot in `latency`, and what is around it.
PANEL_WIDTH, PANEL_HEIGHT, ACROSS = 200, 110, 3
PANEL_LEFT, PANEL_TOP, PANEL_GAP = 44, 64, 44


def latency(rows: Iterable[Measurement]) -> str:
    """The part of messages that had arrived by when, of each case and subject. Raises ValueError without any."""
    cases: dict[str, dict[str, Sequence[float]]] = {}
    for row in rows:
        if row.quantiles is not None:
            cases.setdefault(row.case.rpartition(", ")[0], {})[row.subject] = row.quantiles
    if not cases:
        raise ValueError("there is nothing to plot")
    ages = [max(age, 0.01) for case in cases.values() for line in case.values() for age in line]
    low, high = math.floor(math.log10(min(ages))), math.ceil(math.log10(max(ages)))
    subjects = list(dict.fromkeys(name for case in cases.values() for name in case))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(subjects)}
    lines = -(-len(cases) // ACROSS)
    width = ACROSS * (PANEL_WIDTH + PANEL_LEFT) + 20
    height = PANEL_TOP + lines * (PANEL_HEIGHT + PANEL_GAP)
    parts = [
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{PANEL_LEFT}" y="18" font-size="14">Part of the messages by their age in ms</text>',
    ]
    at = PANEL_LEFT
    for name, colour in colours.items():
        parts.append(f'<path d="M{at} 32h16" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{at + 20}" y="36">{escape(name)}</text>')
        at += 40 + 7 * len(name)
    for number, (case, found) in enumerate(cases.items()):
        left = PANEL_LEFT + number % ACROSS * (PANEL_WIDTH + PANEL_LEFT)
        top = PANEL_TOP + number // ACROSS * (PANEL_HEIGHT + PANEL_GAP)
        parts += _panel(case, found, colours, (left, top), (low, high))
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    title: str,
    found: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    corner: tuple[int, int],
    powers: tuple[int, int],
) -> list[str]:
    """One case of `latency`."""
    (left, top), (low, high) = corner, powers
    bottom = top + PANEL_HEIGHT
    parts = [f'<text x="{left}" y="{top - 5}">{escape(title)}</text>']
    for power in range(low, high + 1):
        at = left + (power - low) / ((high - low) or 1) * PANEL_WIDTH
        parts.append(f'<path d="M{at:.1f} {top}V{bottom}" stroke="#ccc"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 13}" text-anchor="middle">{10**power:g}</text>')
    for part in (0.0, 0.5, 0.9, 1.0):
        at = bottom - part * PANEL_HEIGHT
        parts.append(f'<path d="M{left} {at:.1f}h{PANEL_WIDTH}" stroke="#ccc"/>')
        if part != 0.9:
            parts.append(f'<text x="{left - 5}" y="{at + 4:.1f}" text-anchor="end">{part:.0%}</text>')
    for name, ages in found.items():
        points = " ".join(
            f"{left + (math.log10(max(age, 0.01)) - low) / ((high - low) or 1) * PANEL_WIDTH:.1f},"
            f"{bottom - part * PANEL_HEIGHT:.1f}"
            for part, age in zip(QUANTILES, ages, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>')
    return parts
