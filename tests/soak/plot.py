"""The hour as a picture: memory, descriptors, tasks and messages per second over time, with the faults, as SVG.

Strategy: as `benchmarks.plot`, lines and words of SVG without a library; the panels share the axis of time. Processes
that were restarted have a piece of line for each life, all of one colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.plot import COLOURS, NAMESPACE

_WIDTH: Final = 860
_LEFT, _RIGHT, _TOP, _GAP, _PANEL = 60, 210, 40, 34, 110
#: Points of a line at most: a point is the median's neighbour, which at this width nobody could tell apart.
_POINTS: Final = 360

#: (minutes, value)
Line = list[tuple[float, float]]


class Panel(NamedTuple):
    """Lines by name, each in pieces; `limit` is drawn as a dashed line."""

    title: str
    lines: Mapping[str, Sequence[Line]]
    limit: float | None = None


def _ceiling(value: float) -> float:
    """The smallest round number that is not below `value`."""
    power = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def _thin(line: Line) -> Line:
    step = -(-len(line) // _POINTS)
    return line[::step] if step > 1 else line


def draw(title: str, minutes: float, panels: Sequence[Panel], faults: Sequence[float]) -> str:
    """The picture. `faults` are the minutes at which faults began."""
    height = _TOP + len(panels) * (_PANEL + _GAP) + 30
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    inner = _WIDTH - _LEFT - _RIGHT

    def x(minute: float) -> float:
        return _LEFT + minute / minutes * inner

    parts = [
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        top = _TOP + number * (_PANEL + _GAP)
        parts += _panel(panel, top, x, colours)
    bottom = _TOP + len(panels) * (_PANEL + _GAP) - _GAP
    if faults:
        ticks = "".join(f"M{x(minute):.1f} {bottom + 2}v5" for minute in faults if 0 <= minute <= minutes)
        parts.append(f'<path d="{ticks}" stroke="#d55e00"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 16}" y="{bottom + 9}" fill="#d55e00">faults begin</text>')
    step = _ceiling(minutes / 8)
    for tick in range(int(minutes / step) + 1):
        parts.append(f'<text x="{x(tick * step):.1f}" y="{bottom + 24}" text-anchor="middle">{tick * step:g}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT + 16}" y="{bottom + 24}">minutes</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top: int, x: Callable[[float], float], colours: Mapping[str, str]) -> list[str]:
    values = [value for pieces in panel.lines.values() for line in pieces for _, value in line]
    high = _ceiling(max([*values, panel.limit or 0.0, 1.0]))

    def y(value: float) -> float:
        return top + _PANEL * (1 - value / high)

    parts = [f'<text x="{_LEFT}" y="{top - 6}">{escape(panel.title)}</text>']
    for part in (0.0, 0.5, 1.0):
        at = y(high * part)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#ccc"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{high * part:g}</text>')
    if panel.limit is not None:
        at = y(panel.limit)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#000" stroke-dasharray="6 4"/>')
        parts.append(f'<path d="M{_WIDTH - _RIGHT + 16} {top + 8}h16" stroke="#000" stroke-dasharray="6 4"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 38}" y="{top + 12}">limit {panel.limit:.0f}</text>')
    for row, (name, pieces) in enumerate(panel.lines.items()):
        for line in pieces:
            path = " ".join(f"{x(minute):.1f},{y(value):.1f}" for minute, value in _thin(line))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>')
        at = top + (28 if panel.limit is not None else 12) + 16 * row
        parts.append(f'<path d="M{_WIDTH - _RIGHT + 16} {at - 4}h16" stroke="{colours[name]}" stroke-width="3"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 38}" y="{at}">{escape(name)}</text>')
    return parts
