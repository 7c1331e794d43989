"""Showing the demo while it runs: a live table on a terminal, else a line for each thing that happens.

Strategy: both write to standard error, so that standard output holds the result and nothing else. The demo tells a view
what happens and, some times a second, how things stand; a view never asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_EVENTS_SHOWN: Final = 14


@dataclass(frozen=True, slots=True)
class MemberStanding:
    """One daemon: its name, its state (`running`, `killed`, ...), the partitions it owns in ZooKeeper."""

    name: str
    state: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of the demo: messages produced of `total`, delivered so far, bytes not yet committed, the members."""

    seconds: float
    produced: int = 0
    total: int = 0
    handled: int = 0
    lag: int = 0
    members: Sequence[MemberStanding] = ()


def pipeline_table(steps: Sequence[tuple[str, int, float, str]]) -> Table:
    """The steps of the pipeline: rows, seconds and a remark for each."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("step", "rows", "seconds"):
        table.add_column(name, justify="left" if name == "step" else "right")
    table.add_column("")
    for step, rows, seconds, remark in steps:
        table.add_row(step, f"{rows:,}", f"{seconds:.1f}", remark)
    return table


class View(Protocol):
    """The display of the demo; a context manager around its whole life."""

    def happened(self, seconds: float, text: str) -> None:
        """Show an event, `seconds` after the start."""
        ...

    def update(self, standing: Standing) -> None:
        """Show the current state."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class PlainView(View):
    """A line for each event, on a stream that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def happened(self, seconds: float, text: str) -> None:
        """Print the event."""
        self._console.print(f"{seconds:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def update(self, standing: Standing) -> None:
        """Do nothing: only events are printed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class TerminalView(View):
    """A table that is redrawn in place, above the latest events."""

    def __init__(self, console: Console) -> None:
        self._events: list[str] = []
        self._standing = Standing(0.0)
        # Redrawn on `update` alone: a refreshing thread would draw while the demo stops its children.
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def happened(self, seconds: float, text: str) -> None:
        """Add the event to the list."""
        self._events.append(f"{seconds:6.1f} s  {text}")
        self._draw()

    def update(self, standing: Standing) -> None:
        """Redraw the table."""
        self._standing = standing
        self._draw()

    def _draw(self) -> None:
        self._live.update(self.render(), refresh=True)

    def render(self) -> Group:
        """Return the content of the screen."""
        now = self._standing
        counts = Table.grid(padding=(0, 2))
        for label, value in (("produced", now.produced), ("handled", now.handled)):
            bar = ProgressBar(total=max(1, now.total), completed=min(value, now.total), width=40)
            counts.add_row(label, bar, f"{value:,} of {now.total:,}")
        counts.add_row("lag", "", f"{now.lag:,} bytes of the log")
        members = Table("daemon", "state", "partitions", box=None, padding=(0, 2), header_style="bold")
        for member in now.members:
            members.add_row(member.name, member.state, str(member.partitions))
        events = Text("\n".join(self._events[-_EVENTS_SHOWN:]), style="dim")
        return Group(counts, Text(), members, Text(), events)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
