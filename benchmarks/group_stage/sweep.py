"""One table of all sizes: what each event took and cost, in seconds and requests to ZooKeeper.

Strategy: a scenario is run at one size after the other, the smallest first, and each makes one line as soon as it has
ended. What its figures say of an event (`join: settled`, `join: requests`) stands in one cell; the rest (what was lost,
repeated, the load) is in the object of JSON only. A size at which the group does not settle is a line as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from benchmarks.race import Measurement

#: Columns of a table: what figures call the event.
EVENTS = {
    "model": (
        "join at the end",
        "join at the front",
        "leave at the end",
        "leave at the front",
        "one partition more",
        "all stop",
    ),
    "events": ("join", "leave", "one partition more", "all stop"),
}
#: What figures call an event's seconds.
_SECONDS = ("settled", "ended")
_MEMBERS, _PARTITIONS = 8, 11
_CELL = 20


class Size(NamedTuple):
    """Of a group, with all its members."""

    members: int
    partitions: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """`20x1000`. Raises ValueError."""
        members, _, partitions = text.partition("x")
        return cls(int(members), int(partitions))


def sizes(scenario: str) -> list[Size]:
    """What is measured where nothing else is asked for: with real processes, no more than a machine can hold."""
    largest = {2: 5000, 20: 5000, 200: 5000} if scenario == "model" else {2: 5000, 20: 1000}
    return sorted(
        (
            Size(members, partitions)
            for members, most in largest.items()
            for partitions in (10, 100, 1000, 5000)
            if partitions <= most
        ),
        key=lambda size: (size.members * size.partitions, size),
    )


class Line:
    """The figures of one size."""

    def __init__(self, scenario: str, size: Size) -> None:
        self._scenario = scenario
        self._size = size
        self._figures: dict[str, float] = {}
        self.broken: list[str] = []

    def add(self, row: Measurement) -> None:
        """Take one figure."""
        self._figures[row.subject] = row.value

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        events: dict[str, dict[str, float]] = {event: {} for event in EVENTS[self._scenario]}
        rest: dict[str, float] = {}
        for subject, value in self._figures.items():
            event, _, what = subject.partition(": ")
            (events[event] if event in events and what else rest)[what if event in events else subject] = value
        return {
            "benchmark": "group",
            "scenario": self._scenario,
            **self._size._asdict(),
            "events": events,
            "other": rest,
            "broken": self.broken,
        }

    def text(self) -> str:
        """For people."""
        cells = [self._cell(event) for event in EVENTS[self._scenario]]
        return _text([str(self._size.members), f"{self._size.partitions:,}", *cells])

    def _cell(self, event: str) -> str:
        seconds = next(
            (self._figures[it] for it in (f"{event}: {what}" for what in _SECONDS) if it in self._figures), None
        )
        requests = self._figures.get(f"{event}: requests")
        if seconds is None or requests is None:
            return "did not end"
        return f"{seconds:.2f} s {requests:>7,.0f}"


def heading(scenario: str) -> str:
    """The first line of a table."""
    return _text(["members", "partitions", *EVENTS[scenario]])


def _text(cells: Sequence[str]) -> str:
    widths = [_MEMBERS, _PARTITIONS, *(_CELL for _ in cells[2:])]
    return "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
