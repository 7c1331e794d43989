"""The page of `consumerd log ls --html`: an archive at a glance, with a timeline.

Strategy: one file without script, fonts or addresses, for screens in light and dark and for paper. Names and problems
come from hostile bytes: they come in through `escape` alone. Partitions with findings come first where there are more
than a page should have. Colours never say what words do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from consumerd.base.version import __version__
from consumerd.cli.tables import utc_text
from consumerd.spark.report.wording import size

if TYPE_CHECKING:
    from consumerd.storage.archives.findings import ArchiveFinding
    from consumerd.storage.archives.listing import ListedPartition

#: Partitions, and findings, that the page shows.
MOST_ROWS: Final = 2000
_COLUMNS: Final = ("Partition", "Segments", "Bytes", "Offsets", "Time (UTC)", "Formats", "Findings", "Folder")
_NUMBERS: Final = frozenset({"Segments", "Bytes", "Offsets"})


def archive_page(
    paths: Sequence[str],
    partitions: Sequence[ListedPartition],
    findings: Sequence[ArchiveFinding],
    totals: Mapping[str, int],
) -> str:
    """The page as HTML. `paths`: as they were named. `totals` by their names; `findings`: of partitions and others."""
    first = sorted(range(len(partitions)), key=lambda number: not partitions[number].findings)[:MOST_ROWS]
    shown = [partitions[number] for number in sorted(first)]
    style = (files("consumerd.cli") / "log_page.css").read_text("utf-8")
    sections = [_tiles(totals), _timeline(shown), _table(shown, len(partitions)), _findings(findings)]
    named = ", ".join(paths)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="consumerd {escape(__version__)}">
<title>Archive {escape(named)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>Archive</h1><p class="soft">{escape(named)}</p></header>
<main>
{"".join(sections)}</main>
<footer class="soft">By names, indexes, and the first and last batches of segments: <code>consumerd log verify</code>
finds what these do not show.</footer>
</body>
</html>
"""


def _tiles(totals: Mapping[str, int]) -> str:
    values = {name: size(number) if name == "bytes" else f"{number:,}" for name, number in totals.items()}
    tiles = (f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in values.items())
    return f'<dl class="tiles">{"".join(tiles)}</dl>\n'


def _timeline(partitions: Sequence[ListedPartition]) -> str:
    """A bar for each partition, from its first to its last time; nothing where no times are known."""
    bars = [
        (each, each.first_time, each.last_time)
        for each in partitions
        if each.first_time is not None and each.last_time is not None and utc_text(each.last_time) is not None
    ]
    if not bars:
        return ""
    first, last = min(low for _, low, _ in bars), max(high for _, _, high in bars)
    span = max(1, last - first)
    rows = (
        f'<tr><th scope="row">{_name(each)}</th><td><span class="bar{" flawed" if each.findings else ""}" '
        f'style="margin-left:min({100 * max(0, low - first) / span:.2f}%,100% - 3px);'
        f'width:{100 * max(0, high - low) / span:.2f}%" '
        f'title="{_time(low)} to {_time(high)}"></span></td></tr>\n'
        for each, low, high in bars
    )
    return (
        '<section><h2>Timeline</h2><table class="timeline"><thead><tr><th scope="col">Partition</th>'
        f'<th scope="col"><span class="axis"><span>{_time(first)}</span><span>{_time(last)}</span></span></th></tr>'
        f"</thead><tbody>\n{''.join(rows)}</tbody></table></section>\n"
    )


def _table(partitions: Sequence[ListedPartition], count: int) -> str:
    note = ""
    if len(partitions) < count:
        note = f'<p class="soft">{len(partitions):,} of {count:,} partitions, those with findings among them.</p>'
    head = "".join(f'<th scope="col"{" class=number" if name in _NUMBERS else ""}>{name}</th>' for name in _COLUMNS)
    rows = "".join(map(_row, partitions))
    return (
        f'<section><h2>Partitions</h2>{note}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div></section>\n"
    )


def _row(each: ListedPartition) -> str:
    kinds = ", ".join(sorted({str(finding.kind) for finding in each.findings}))
    times = "" if each.first_time is None else f"{_time(each.first_time)} to {_time(each.last_time)}"
    offsets = f"{_number(each.start)} to {_number(each.end)}"
    read = "" if each.read else " (another copy is read)"
    return (
        f'<tr><th scope="row">{_name(each)}</th><td class="number">{each.segments:,}</td>'
        f'<td class="number">{size(each.bytes)}</td><td class="number">{offsets}</td><td>{times}</td>'
        f"<td>{escape(', '.join(sorted(each.formats)))}</td>"
        f'<td class="{"flawed" if kinds else "soft"}">{escape(kinds) or "none"}</td>'
        f"<td><code>{escape(each.folder)}</code>{read}</td></tr>\n"
    )


def _findings(findings: Sequence[ArchiveFinding]) -> str:
    if not findings:
        return ""
    rows = "".join(
        f'<tr><th scope="row" class="flawed">{escape(str(each.kind))}</th><td>{escape(each.problem)}</td></tr>\n'
        for each in findings[:MOST_ROWS]
    )
    more = len(findings) - MOST_ROWS
    note = f'<p class="soft">{more:,} further findings are not shown.</p>' if more > 0 else ""
    return f"<section><h2>Findings</h2><table><tbody>\n{rows}</tbody></table>{note}</section>\n"


def _name(each: ListedPartition) -> str:
    name = "?" if each.topic is None else f"{each.topic}/{each.partition}"
    return escape(name) + (f' <span class="soft">{escape(each.state)}</span>' if each.state else "")


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _time(milliseconds: int | None) -> str:
    return utc_text(milliseconds) or "?"
