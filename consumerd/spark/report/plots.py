"""The plots of a report as inline SVG, readable without colours, sight or a network.

Strategy: matplotlib draws with its SVG canvas alone (no pyplot, no window), in colours that stand for names. Its output
is parsed, the metadata dropped, ids made unique in the page, the colours replaced by CSS variables so that the page
chooses between light and dark, and a title and a description added. The same values give the same bytes. No text of the
data gets into a plot, only numbers and times.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from consumerd.spark.report.facts import CLASSES_PER_DOUBLING, EventFacts, LandedFacts, MessageSizes, SizeClass
from consumerd.spark.report.wording import (
    axis_number,
    axis_size,
    count,
    distance,
    duration,
    moment,
    plural,
    rate,
    size,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from consumerd.spark.progress import BatchProgress

#: Colours that stand for CSS variables while matplotlib draws.
_INK: Final = "#000001"
_GRID: Final = "#000002"
_FIRST: Final = "#000003"
_LAG: Final = "#000004"
_BAD: Final = "#000005"
_VARIABLES: Final = {
    _INK: "var(--ink-soft)",
    _GRID: "var(--line)",
    _FIRST: "var(--first)",
    _LAG: "var(--lag)",
    _BAD: "var(--bad)",
}
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "consumerd",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.parse_math": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GRID,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "ytick.major.size": 0,
}
_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "http://www.w3.org/1999/xlink"
#: More points than this are indistinguishable; each is then the largest of its neighbours.
MAX_POINTS: Final = 400
_SECOND_OF_DAY: Final = 1 / 86400
#: What a rate may be of, and its seconds.
_UNITS: Final = (("minute", 60), ("hour", 3600), ("day", 86400))
#: Bars of the histogram.
_MAX_BARS: Final = 48
#: Room for this many bars at least in the chart of batches.
_FEW_BARS: Final = 4


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture: well-formed SVG without width and height, and its description."""

    svg: str
    title: str
    description: str


def plot_events(events: EventFacts, watermark: datetime | None = None) -> Plot:
    """Events per minute over the time of the event; what is after the watermark may grow. There must be intervals.

    Where there is less than one a minute, they are per hour, or per day.
    """
    assert events.width is not None
    starts, values = zip(*_filled(events.intervals, events.width), strict=True)
    end = starts[-1] + events.width
    mean = sum(values) / (end - starts[0]).total_seconds()
    unit, length = next(((unit, length) for unit, length in _UNITS if mean * length >= 1), _UNITS[-1])
    rates = [rows * length / events.width.total_seconds() for rows in values]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        times = [*map(_days, starts), _days(end)]
        axes.fill_between(times, [*rates, rates[-1]], step="post", color=_FIRST, alpha=0.25, linewidth=0)
        axes.step(times, [*rates, rates[-1]], where="post", color=_FIRST, linewidth=1.4)
        axes.set_xlim(times[0], times[-1])
        _count_axis(axes, rates)
        if watermark is not None and starts[0] < watermark < end:
            axes.axvline(_days(watermark), color=_LAG, linewidth=1.2, linestyle=(0, (4, 3)))
            late = _days(watermark) > (times[0] + times[-1]) / 2
            axes.annotate(
                "watermark", (_days(watermark), 1.0), (-4 if late else 4, -4), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="right" if late else "left", va="top", fontsize=8,
            )  # fmt: skip
        axes.set_title(f"events per {unit}, by the time of the event", loc="left", fontsize=9)
        _time_axis(axes, [starts[0], end])

    description = (
        f"Events per {unit} from {moment(starts[0])} to {moment(end)}, counted per {duration(events.width)}: "
        f"at most {rate(max(rates))}, {rate(mean * length)} on average."
    )
    return _plot("events", f"Events per {unit}", description, draw, height=2.6)


def _filled(intervals: Sequence[tuple[datetime, int]], width: timedelta) -> list[tuple[datetime, int]]:
    """All intervals from the first to the last, also those without rows."""
    rows = dict(intervals)
    first, last = intervals[0][0], intervals[-1][0]
    return [(start, rows.get(start, 0)) for start in (first + n * width for n in range((last - first) // width + 1))]


def plot_landed(landed: LandedFacts) -> Plot:
    """Rows per batch, or per stretch of time, and the share of them in quarantine. There must be intervals."""
    rows = [one.rows for one in landed.intervals]
    shares = [100 * (one.quarantined or 0) / one.rows if one.rows else 0.0 for one in landed.intervals]
    refined = any(one.quarantined for one in landed.intervals)
    unit = "batch" if landed.width is None else duration(landed.width)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, sharex=True, height_ratios=(3, 2)) if refined else [figure.subplots()]
        _bars(panels[0], landed, rows, _FIRST)
        _count_axis(panels[0], rows)
        panels[0].set_title(f"rows landed per {unit}", loc="left", fontsize=9)
        if refined:
            _bars(panels[1], landed, shares, _BAD)
            _share_axis(panels[1], shares)
            panels[1].set_title("of these in quarantine", loc="left", fontsize=9)
        if landed.width is None:
            panels[-1].set_xlabel("batch")

    description = (
        f"Bars, one per {unit}: {count(landed.rows)} rows and {size(landed.size)} altogether, "
        f"at most {count(max(rows))} rows per {unit}"
        + (f"; {max(shares):.1f} % in quarantine at most, {shares[-1]:.1f} % in the last." if refined else ".")
    )
    return _plot("landed", "What landed over time", description, draw, height=3.2 if refined else 2.2)


def plot_lag(batches: Sequence[BatchProgress], *, messages: bool = False) -> Plot:
    """Bytes behind the source's end after each batch, or `messages`; batches that do not know it are left out.

    One must know it.
    """
    known = [(batch.ended, batch.behind) for batch in batches if batch.behind is not None]
    points = thin(known)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        times = [_days(time) for time, _ in points]
        values = [value for _, value in points]
        axes.fill_between(times, values, step="post", color=_LAG, alpha=0.18, linewidth=0)
        axes.step(times, values, where="post", color=_LAG, linewidth=1.6, marker="o", markersize=2.6)
        axes.set_title(f"{'messages' if messages else 'bytes'} behind the source's end", loc="left", fontsize=9)
        (_count_axis if messages else _byte_axis)(axes, values)
        if times[0] == times[-1]:
            axes.set_xlim(times[0] - _SECOND_OF_DAY, times[0] + _SECOND_OF_DAY)
        _time_axis(axes, [batch.ended for batch in batches if batch.behind is not None])

    first, most, last = (
        distance(value, messages=messages) for value in (known[0][1], max(value for _, value in known), known[-1][1])
    )
    description = (
        f"A line over {plural(len(known), 'batch', 'batches')}: {first} behind after the first, "
        f"{most} at most, {last} after the last."
    )
    return _plot("lag", "How far landing was behind", description, draw, height=2.6)


def plot_sizes(sizes: MessageSizes) -> Plot:
    """A histogram of the values' sizes over a logarithmic axis. There must be messages."""
    bars, step = merge(sizes.classes)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        positions = [number + step / 2 for number, _ in bars]
        axes.bar(positions, [rows for _, rows in bars], width=step * 0.92, color=_FIRST, linewidth=0)
        low, high = bars[0][0] - 2 * step, bars[-1][0] + 3 * step
        axes.set_xlim(low, high)
        ticks = _size_ticks(low, high)
        axes.set_xticks([_position(value) for value in ticks], [axis_size(value) for value in ticks])
        axes.set_title("messages by size of the value", loc="left", fontsize=9)
        _count_axis(axes, [rows for _, rows in bars])

    description = (
        f"A histogram of {count(sizes.rows)} values: half of them have up to {size(sizes.percentile(0.5))}, "
        f"99 of 100 up to {size(sizes.percentile(0.99))}, the largest {size(sizes.classes[-1].largest)}."
    )
    return _plot("sizes", "Message sizes", description, draw, height=2.4)


def thin(points: Sequence[tuple[datetime, int]]) -> list[tuple[datetime, int]]:
    """Return at most `MAX_POINTS` points: the largest of each stretch, and always the last."""
    if len(points) <= MAX_POINTS:
        return list(points)
    step = -(-len(points) // (MAX_POINTS - 1))
    kept = [max(points[start : start + step], key=lambda point: point[1]) for start in range(0, len(points), step)]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def merge(classes: Sequence[SizeClass]) -> tuple[list[tuple[int, int]], int]:
    """Bars of the histogram as (first class, rows), and how many classes each bar spans."""
    step = 1
    while (classes[-1].number - classes[0].number) // step >= _MAX_BARS:
        step *= 2
    bars: dict[int, int] = {}
    for one in classes:
        bars[one.number - one.number % step] = bars.get(one.number - one.number % step, 0) + one.rows
    return list(bars.items()), step


def _position(value: float) -> float:
    """Return the position of a size on the axis of classes."""
    return CLASSES_PER_DOUBLING * math.log2(value + 1)


def _size_ticks(low: float, high: float) -> list[int]:
    """Powers of two between two positions, not too many."""
    shown = [value for value in (0, *(1 << power for power in range(40))) if low <= _position(value) <= high]
    return shown[:: -(-len(shown) // 10) or 1]


def _byte_ticks(most: int) -> list[int]:
    """Multiples of a power of two that reach `most` in at most five steps."""
    step = 1
    while most > 5 * step:
        step *= 2
    return list(range(0, most + step, step))


def _bars(axes: Axes, landed: LandedFacts, values: Sequence[float], colour: str) -> None:
    if landed.width is None:
        batches = [one.batch or 0 for one in landed.intervals]
        axes.bar(range(len(batches)), values, color=colour, linewidth=0)
        # Few bars stand in the middle, and are not as wide as the page.
        middle, half = (len(batches) - 1) / 2, max(len(batches), _FEW_BARS) / 2 + 0.1
        axes.set_xlim(middle - half, middle + half)
        every = -(-len(batches) // 20)
        axes.set_xticks(range(0, len(batches), every), [str(batch) for batch in batches[::every]])
        return
    starts = [_days(one.start) for one in landed.intervals]
    axes.bar(starts, values, width=0.9 * (landed.width / timedelta(days=1)), align="edge", color=colour, linewidth=0)
    _time_axis(axes, [one.start for one in landed.intervals if one.start is not None])


def _count_axis(axes: Axes, values: Sequence[float]) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(value)))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_ylim(0, max(*values, 1) * 1.08)


def _share_axis(axes: Axes, values: Sequence[float]) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.set_ylim(0, max(*values, 0.1) * 1.08)


def _byte_axis(axes: Axes, values: Sequence[int]) -> None:
    ticks = _byte_ticks(max(*values, 1))
    axes.set_yticks(ticks, [axis_size(value) for value in ticks])
    axes.set_ylim(0, max(*values, 1) * 1.08)


def _time_axis(axes: Axes, times: Sequence[datetime]) -> None:
    """Ticks as short as can be, and the dates of the first and the last of `times` in words."""
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC, show_offset=False)  # type: ignore[no-untyped-call]
    formatter.formats[5] = "%H:%M:%S.%f"  # its own form has seconds alone, which say nothing without the minute
    axes.xaxis.set_major_formatter(formatter)
    first, last = (f"{each.astimezone(UTC):%Y-%m-%d}" for each in (min(times), max(times)))
    axes.set_xlabel(f"{first} (UTC)" if first == last else f"{first} to {last} (UTC)")


def _days(moment: datetime) -> float:
    """As matplotlib counts time."""
    return float(date2num(moment))  # type: ignore[no-untyped-call]


def _plot(name: str, title: str, description: str, draw: Callable[[Figure], None], *, height: float) -> Plot:
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(9.0, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        written = io.BytesIO()
        figure.savefig(written, format="svg", transparent=True)
    return Plot(_inline(written.getvalue(), name, title, description), title, description)


def _inline(written: bytes, name: str, title: str, description: str) -> str:
    """The SVG as part of a page: see the module's strategy."""
    root = ET.fromstring(written)  # nosec B314  # noqa: S314 - our own output
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for attribute, value in list(element.attrib.items()):
            element.set(attribute, _rewrite(attribute, value, name))
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    for index, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(f"{{{_SVG}}}{tag}", id=f"{name}-{'title' if tag == 'title' else 'description'}")
        element.text = text
        root.insert(index, element)
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    return ET.tostring(root, encoding="unicode")


def _rewrite(attribute: str, value: str, name: str) -> str:
    if attribute == "id":
        return f"{name}-{value}"
    if attribute == f"{{{_XLINK}}}href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = value.replace("url(#", f"url(#{name}-")
    return re.sub("#00000[1-5]", lambda found: _VARIABLES[found.group()], value)
