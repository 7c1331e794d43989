from __future__ import annotations

import copy
import random
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from consumerd.spark.progress import BatchProgress, ProgressHistory
from consumerd.spark.reconcile_result import LogStretch, LogStretches, PartitionCheck, ReconcileResult
from consumerd.spark.report.facts import EventFacts, GroupFacts, LandedInterval, QuarantineFacts, ReportFacts
from consumerd.spark.report.page import MAX_PARTITIONS, render, step_rows
from consumerd.spark.step_history import StepRun

VOID = {"meta", "link", "br", "hr", "img", "input"}
FETCHING = {"src", "srcset", "href", "data", "action", "formaction", "poster", "background"}


class Page(HTMLParser):
    """The text that a browser would show; fails if tags are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_escapes_text_of_the_data(facts: ReportFacts) -> None:
    text = render(facts)
    page = Page(text)
    assert not {"script", "iframe", "object", "embed", "img", "link", "base", "form", "frac"} & {
        tag for tag, _ in page.tags
    }
    assert "{{ 7 * 7 }}" in page.text
    assert page.text.count("<script>alert('1')</script>") >= 12
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert r"\x00\x1b[31m" in page.text
    assert r"\u202e" in page.text
    assert r"\xff\xfe<script>" in page.text
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_page_fetches_nothing(facts: ReportFacts) -> None:
    page = Page(render(facts))
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name.removeprefix("xlink:") in FETCHING:
                assert (value or "").startswith("#"), (tag, name, value)
            assert "url(" not in (value or "").replace("url(#", "")
    (policy,) = [one for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "@import" not in render(facts)


def test_ids_are_unique_and_references_resolve(facts: ReportFacts) -> None:
    text = render(facts)
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    labels = {one for _, attributes in page.tags for one in (attributes.get("aria-labelledby") or "").split() if one}
    assert named
    assert labels
    assert (named | labels) <= set(ids)


def test_plots_have_descriptions_and_tables(facts: ReportFacts) -> None:
    page = Page(render(facts))
    assert [one["role"] for one in page.all("svg")] == ["img"] * 4
    assert len(page.all("title")) == 1 + 4
    assert len(page.all("desc")) == 4
    assert "6,000 rows and 791.0 KiB altogether" in page.text
    assert "57.6 KiB behind after the first, 57.6 KiB at most, 0 B after the last" in page.text
    assert "counted per minute: at most 98, 98 on average." in page.text
    assert "2.0 % in quarantine at most, 2.0 % in the last." in page.text
    assert len(page.all("table")) == 11


def test_same_facts_give_the_same_page(facts: ReportFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    page = render(facts)
    assert "<svg" in page
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")  # another time, for plots
    random.seed(7)
    assert render(copy.deepcopy(facts)) == page
    assert render(replace(facts, landed=replace(facts.landed, rows=facts.landed.rows + 1))) != page


def test_page_shows_totals(facts: ReportFacts) -> None:
    page = Page(render(facts))
    for words in (
        "Landed 6,000 791.0 KiB of values",
        "Refined 5,900 10 of bronze neither here nor quarantined",
        "Quarantined 90 1.5 % of what was refined",
        "Newest event 1 min ago 2026-11-21 17:59:00 UTC Newest landed 1 min ago 2026-11-21 17:59:00 UTC",
        "Behind the source 0 B after the last batch",
        "Open windows 12 until the watermark passes them Watermark 20 min ago 2026-11-21 17:40:00 UTC",
        "Late events 3 missing from their windows",
        "10 rows have no time, and are in no window.",
        "1.5 % of what was refined: 2.0 % of the newest minute, 1.0 % before. The chart of what landed shows",
        "The 2 largest of 4,711 groups, over 7 windows from 2026-11-21 17:00:00 UTC to 2026-11-21 17:59:00 UTC",
        "/a 30 60.0 %",
        "null /b 10 20.0 % 1",
        "bronze 6,000 60 60 585.9 KiB 9.8 KiB 100 B",
        "silver 5,900 60 0 0 B 0 B",
        "land 2026-11-21 17:02:00 UTC 5.0 s 100 20 4.9 KiB 2.5 times as long (2.0 s in 2 runs)",
        "Gaps 30 in bronze Duplicates 3 in bronze",
        "Undecodable 2",
        "30 gaps, 3 duplicates, 30 stretches lost before they landed and 1 partition with content",
        "7 other reasons 10 11.1 %",
        "0 300 90 40 missing: [0, 5), [10, 15),",
        "[190, 195) and 10 more 3 duplicates content differs",
        "clicks 0-1 0 900 10 10 none",
    ):
        assert words in page.text


def test_page_of_a_clean_pipeline_says_so(facts: ReportFacts) -> None:
    fine = ReconcileResult("clicks", False, (PartitionCheck("clicks", "0-1", 0, 900, 10, 10, 10),))
    page = Page(render(replace(facts, reconciled=fine, quarantine=QuarantineFacts())))
    assert "Everything that was to land has landed, once: 1 partition, compared message by message." in page.text
    assert "Empty: whatever was refined could be parsed." in page.text
    assert "clicks 0-1 0 900 10 10 none" in page.text
    assert all("bad" not in (attributes.get("class") or "") for tag, attributes in page.tags if tag == "p")


def test_page_of_a_pipeline_that_has_not_run(empty: ReportFacts) -> None:
    page = Page(render(empty))
    assert page.all("svg") == []
    for words in (
        "Not reconciled",
        "Nothing has landed yet.",
        "No batch was noted",
        "There are no values to measure.",
        "Nothing has been refined yet.",
        "Refined not yet Quarantined not yet Gaps unknown in bronze Duplicates unknown in bronze",
    ):
        assert words in page.text


def test_page_of_one_batch_without_lag(facts: ReportFacts) -> None:
    start = facts.landed.intervals[0].start
    landed = replace(facts.landed, width=None, intervals=(LandedInterval(start, 6000, 810_000, batch=0),))
    progress = ProgressHistory((BatchProgress("q", "r", 0, start, 1.0, None),))
    page = Page(render(replace(facts, landed=landed, progress=progress)))
    assert "The source does not tell where it ends" in page.text
    assert "0 2026-11-21 17:00:00 UTC 1.0 s unknown" in page.text
    known = ProgressHistory((replace(progress.batches[0], behind=5),))
    page = Page(render(replace(facts, landed=replace(landed, batches=1), progress=known)))
    assert len(page.all("svg")) == 2, "events and sizes: one bar is not a chart"
    assert "5 B behind the source's end after the only batch." in page.text
    assert "6,000 rows and 791.0 KiB of values in 1 batch." in page.text


def test_shows_zero_lag_as_a_sentence(facts: ReportFacts) -> None:
    never = ProgressHistory(tuple(replace(batch, behind=0) for batch in facts.progress.batches))
    page = Page(render(replace(facts, progress=never)))
    assert "0 B behind the source's end after each of 60 batches." in page.text
    assert len(page.all("svg")) == 3


def test_shows_lag_of_v08_in_messages(facts: ReportFacts) -> None:
    page = Page(render(replace(facts, counts_messages=True)))
    assert "59,000 messages behind after the first, 59,000 messages at most, 0 messages after the last" in page.text
    assert "5 messages" in page.text
    assert "Offsets count messages, and so does lag" in page.text


def test_lists_partitions_with_findings_first(facts: ReportFacts) -> None:
    partitions = [PartitionCheck("t", f"0-{n}", 0, 9, 1, 1, 1) for n in range(1000)]
    partitions[700] = replace(partitions[700], gaps=LogStretches(1, (LogStretch(3, 5),)))
    partitions[800] = replace(partitions[800], pending=4)
    page = Page(render(replace(facts, reconciled=ReconcileResult("t", True, tuple(partitions)))))
    assert f"{MAX_PARTITIONS} of 1,000 partitions, those with findings first" in page.text
    assert "findings t 0-700 0 9 1 1 missing: [3, 5) t 0-800 0 9 1 1 4 rows not refined yet t 0-0" in page.text
    assert "0-300" not in page.text


def test_names_events_that_are_far_from_the_others(facts: ReportFacts) -> None:
    assert facts.events is not None
    assert "far from the others" not in Page(render(facts)).text.replace("10 events are far from the others", "")
    wrong = replace(facts.events, rows=facts.events.rows + 5, oldest=datetime(1970, 1, 1, tzinfo=UTC))
    text = Page(render(replace(facts, events=wrong))).text
    assert "15 events are far from the others and not in the chart: the oldest is of 1970-01-01 00:00:00 UTC" in text
    few = replace(wrong, intervals=())  # without a chart nothing is said of one
    text = Page(render(replace(facts, events=few))).text
    assert f"{few.rows:,} events: the oldest is of 1970-01-01 00:00:00 UTC, the newest of" in text
    assert "in the chart" not in text
    only = replace(few, rows=1, oldest=few.newest)
    assert "The only event is of" in Page(render(replace(facts, events=only))).text
    assert "All 2 events are of" in Page(render(replace(facts, events=replace(only, rows=2)))).text
    ahead = replace(facts.events, newest=facts.made + timedelta(hours=3))
    assert "Newest event 3 h 0 min ahead" in Page(render(replace(facts, events=ahead))).text


def test_page_without_times_and_aggregate_says_so(facts: ReportFacts) -> None:
    text = Page(render(replace(facts, events=None, windows=None, groups=None, history=(), tables=()))).text
    assert "Newest event unknown the pipeline names no event_time" in text
    assert not any(words in text for words in ("Open windows", "Top groups", "compared", "batches files size"))
    assert "Newest event unknown no row of silver has a time" in Page(render(replace(facts, events=EventFacts()))).text
    waiting = GroupFacts(("page",), (), (), 0, 0, 0)
    assert "No window is complete yet" in Page(render(replace(facts, groups=waiting))).text


def test_compares_a_step_with_runs_of_about_as_many_rows(facts: ReportFacts) -> None:
    def run(minute: int, seconds: float, rows: int) -> StepRun:
        return StepRun("land", facts.made + timedelta(minutes=minute), seconds, rows)

    (row,) = step_rows([run(0, 10, 100), run(1, 900, 10_000), run(2, 12, 190), run(3, 30, 110)])
    assert (row.usual, row.before, row.difference) == (11, 2, "2.7 times as long")
    (row,) = step_rows([run(0, 10, 100), run(1, 11, 100)])
    assert row.difference == "as usual"
    (row,) = step_rows([run(0, 10, 100), run(1, 11, 1000)])
    assert (row.usual, row.before, row.difference) == (None, 0, "")
    assert "no such run before" in Page(render(replace(facts, history=(run(0, 1, 1),)))).text
