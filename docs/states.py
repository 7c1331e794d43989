"""Drawings of the state machines, from their tables: `python docs/states.py` writes those of docs/reading.md.

Strategy: the states stand on an ellipse in their order; an arrow for each change bends to the left of its direction,
so that the one back stands apart. Events that change nothing are left out.
"""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from consumerd.group import consumer_protocol_tables, coordinated_tables
from consumerd.group.membership_tables import HOLD, PHASE

IMAGES: Final = Path(__file__).parent / "images"
#: Each drawing: its file, title and table.
DRAWINGS: Final[dict[str, tuple[str, Mapping[Any, Any]]]] = {
    "states-member.svg": ("The phases of a membership in ZooKeeper", PHASE),
    "states-partition.svg": ("The states of one partition at a member", HOLD),
    "states-coordinated.svg": ("The phases of a membership that a broker coordinates", coordinated_tables.PHASES),
    "states-consumer-protocol.svg": (
        "The phases of a membership by the consumer protocol",
        consumer_protocol_tables.PHASES,
    ),
}
#: Half of the sizes of the picture, of the ellipse, and of a state's box.
_CENTRE, _RADII, _BOX = (450.0, 300.0), (350.0, 250.0), (48.0, 18.0)
#: Where on its arrow a label may stand, from 0 to 1, best first: not in the middle, where arrows cross.
_LABELS: Final = (0.45, 0.3, 0.6, 0.2, 0.7)
_HEAD: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 600" role="img" font-family="sans-serif" font-size="12" '
    'text-anchor="middle">\n<title>{title}</title>\n<rect width="900" height="600" fill="#ffffff"/>\n'
    '<defs><marker id="to" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 10 5 0 10z" fill="#3f51b5"/></marker></defs>\n'
)


def _arrow(
    start: tuple[float, float], end: tuple[float, float], boxes: Collection[tuple[float, float]]
) -> tuple[str, tuple[float, float]]:
    """A path from one state to another one, and where its label stands: not under a box."""
    length = math.dist(start, end)
    along = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
    left = (along[1], -along[0])
    first, middle, last = (
        tuple(
            start[axis] + along[axis] * (way * length + gap * (_BOX[axis] + 4)) + left[axis] * aside
            for axis in (0, 1)
        )
        for way, gap, aside in ((0, 1, 8), (0.5, 0, 0.16 * length), (1, -1.1, 8))
    )  # fmt: skip
    places = [
        tuple((1 - t) ** 2 * first[axis] + 2 * t * (1 - t) * middle[axis] + t**2 * last[axis] for axis in (0, 1))
        for t in _LABELS
    ]
    free = [
        (x, y)
        for x, y in places
        if all(abs(x - box[0]) > _BOX[0] + 20 or abs(y - box[1]) > _BOX[1] + 8 for box in boxes)
    ]
    x, y = (free or places)[0]
    points = " ".join(f"{value:.0f}" for value in (*middle, *last))
    return f'<path d="M{first[0]:.0f} {first[1]:.0f}Q{points}"/>', (x, y)


def _text(words: str, x: float, y: float) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{html.escape(words)}</text>'


def drawing(title: str, table: Mapping[Any, Any]) -> str:
    """A transition table, (state, cause) to state, as SVG."""
    kind: Any = type(next(iter(table.values())))
    entered = {*table.values(), *(state for state, _ in table)}
    states = [state for state in kind if state in entered]
    angles = [2 * math.pi * number / len(states) - math.pi / 2 for number in range(len(states))]
    places = {
        state: (_CENTRE[0] + _RADII[0] * math.cos(angle), _CENTRE[1] + _RADII[1] * math.sin(angle))
        for state, angle in zip(states, angles, strict=True)
    }
    causes: dict[tuple[Any, Any], list[str]] = {}
    for (state, cause), following in table.items():
        if state is not following:
            causes.setdefault((state, following), []).append(cause.value)
    arrows = [
        (_arrow(places[start], places[end], places.values()), ", ".join(names))
        for (start, end), names in causes.items()
    ]
    width, height = _BOX
    layers = {
        'fill="none" stroke="#3f51b5" marker-end="url(#to)"': [path for (path, _), _ in arrows],
        'fill="#111111" stroke="#ffffff" stroke-width="4" paint-order="stroke"': [
            _text(words, *place) for (_, place), words in arrows
        ],
        'fill="#e8eaf6" stroke="#3f51b5"': [
            f'<rect x="{x - width:.0f}" y="{y - height:.0f}" width="{2 * width:.0f}" height="{2 * height:.0f}" rx="6"/>'
            for x, y in places.values()
        ],
        'fill="#111111" font-weight="bold"': [_text(state.value, x, y + 4) for state, (x, y) in places.items()],
    }
    groups = "".join(f"<g {style}>\n" + "\n".join(parts) + "\n</g>\n" for style, parts in layers.items())
    return f"{_HEAD.format(title=html.escape(title))}{groups}</svg>\n"


if __name__ == "__main__":
    for name, (title, table) in DRAWINGS.items():
        (IMAGES / name).write_text(drawing(title, table), "utf-8")
