"""Text from brokers, members and errors stays text on the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumerd.service.daemon.recent import RecentLines
from consumerd.service.daemon.status_page import _REASONS, ALERTS, NOT_READY_ALERT, Choice, asset, render

ROOT = Path(__file__).resolve().parents[4]

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=y> '&amp;"
VOID = {"meta", "link", "input"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps those that there are, with their text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


TOTALS = dict.fromkeys(
    (
        "messages",
        "handler_failures",
        "dead_lettered",
        "deferred",
        "skipped",
        "commits",
        "failed_commits",
        "rebalances",
        "lost_partitions",
    ),
    7,
)


def document(text: str, subscriptions: tuple[str, ...] = ("main",)) -> dict[str, Any]:
    """A status in which every text that others choose is `text`."""
    moment = "2026-01-01T00:00:00Z"
    fields = {"reason": text, text: text, "traceback": text}
    members = {
        "time": moment,
        "live": [{"id": text, "partitions": 1, "this": True}],
        "not_live": [{"id": text, "partitions": 1}],
        "unowned": [text],
        "failure": text,
    }
    return {
        "version": "1",
        "group": text,
        "consumer_id": text,
        "time": moment,
        "started": moment,
        "uptime_seconds": 5.0,
        "alive": True,
        "ready": False,
        "not_ready_because": ["handler_hung"],
        "session": {"up": True},
        "memory": {"used": 1, "limit": 1 << 30},
        "process_memory": 369 << 20,
        "totals": TOTALS,
        "partitions": [
            {
                "subscription": subscriptions[-1],
                "topic": text,
                "partition": "0-0",
                "state": "hung",
                "blocked": None,
                "not_consumed_because": None,
                "log_change": None,
                "paused": False,
                "position": 1,
                "committed": None,
                "lag": 2048,
                "lag_held_back": 0,
                "lag_unit": "bytes",
                "lag_seconds": 7_500.0,
                "since_handled_seconds": 400.0,
                "handled": 0,
                "last_handled": None,
                "queued_batches": 0,
                "held_bytes": 0,
                "busy_seconds": 400.0,
            }
        ],
        "members": members,
        "subscriptions": [
            {
                "name": name,
                "group": text,
                "consumer_id": text,
                "topics": text,
                "handler": text,
                "ready": False,
                "not_ready_because": ["handler_hung"],
                "totals": TOTALS,
                "members": members,
            }
            for name in subscriptions
        ],
        "rebalances": [
            {
                "subscription": subscriptions[0],
                "time": moment,
                "seconds": 1.0,
                "partitions": 1,
                "gained": [text] * 20,
                "lost": [text],
            }
        ],
        "errors": [{"time": moment, "level": "error", "event": text, "fields": fields}],
        "history": {"seconds": [-5.0, 0.0], "messages_per_second": [1.0, 2.0], "lag": [None, 2048]},
    }


def many(count: int, *, needing: int) -> dict[str, Any]:
    """A status with so many partitions, of which the last ones need somebody."""
    status = document("t")
    (row,) = status["partitions"]
    status["partitions"] = [
        row | {"partition": f"0-{number}", "state": "hung" if number >= count - needing else "consuming"}
        for number in range(count)
    ]
    return status


def partitions(page: bytes) -> list[str]:
    return re.findall(r'<tr id="partition-t/0-(\d+)">', page.decode())


def read(text: str, word: str | None, *subscriptions: str) -> Reader:
    reader = Reader()
    reader.feed(render(document(text, subscriptions or ("main",)), word=word).decode())
    reader.close()
    assert reader.open == []
    return reader


def test_hostile_names_stay_text() -> None:
    plain, hostile = read("t", "w"), read(HOSTILE, "w")
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert hostile.text.count(HOSTILE) >= 8


def test_states_are_said_in_words() -> None:
    text = read("t", None).text
    assert "Not ready: a handler makes no progress" in text
    assert "2.0 KiB" in text
    assert "2 h" in text
    assert "for 7 min" in text
    assert "and 8 more" in text


def test_says_what_an_open_transaction_holds_back() -> None:
    def shown(lag: int, held_back: int) -> str:
        status = document("t")
        status["partitions"][0] |= {"lag": lag, "lag_held_back": held_back, "lag_unit": "messages"}
        return render(status, word=None).decode()

    assert ">1,005, 5 of them held back by an open transaction<" in shown(1005, 5)
    assert ">5 held back by an open transaction<" in shown(5, 5)
    assert "transaction" not in shown(5, 0)


def test_says_that_a_log_became_another_one() -> None:
    status = document("t")
    change = {
        "kind": "replaced", "time": status["time"], "offset": 1500, "former": "topic id <a>", "now": "topic id b",
        "continued_at": 0, "messages_gone": None,
    }  # fmt: skip
    for gone, words in ((None, "topic id b<"), (0, "topic id b, 0 messages are gone<"), (1200, "1,200 messages")):
        status["partitions"][0]["log_change"] = change | {"messages_gone": gone}
        text = render(status, word=None).decode()
        assert "log replaced" in text
        assert "was at 1,500 of topic id &lt;a&gt;, continued at 0 of" in text
        assert words in text
    status["partitions"][0]["log_change"] = change | {"former": None, "now": None}
    assert "was at 1,500, continued at 0<" in render(status, word=None).decode()


def test_lists_several_subscriptions_and_shows_each_group_once() -> None:
    one, two = read("t", "w"), read("t", "w", "main", "audit")
    assert "Subscriptions" not in one.text
    assert "Subscriptions" in two.text
    assert two.text.count("The group t") == 1
    assert two.text.count("audit") == 2  # in its row, and beside its partition
    hostile = read(HOSTILE, "w", "main", "audit")
    assert (hostile.tags, hostile.attributes) == (two.tags, two.attributes)


def test_has_no_forms_without_authorisation() -> None:
    for word, there in (("w", True), (None, False)):
        assert ('method="post"' in render(document("t"), word=word).decode()) is there


def test_the_page_obeys_its_own_policy() -> None:
    page = render(document("t"), word="w").decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert re.findall(r"<script[^>]*>", page) == ['<script src="/status.js" defer>']
    for name in ("status.css", "status.js"):
        assert b"http" not in asset(name).replace(b"HTTP", b"")


def test_says_the_state_before_warnings_and_warnings_before_figures() -> None:
    page = render(document("t"), word=None).decode()
    places = [
        page.index(text)
        for text in ("Not ready", "ConsumerdHandlerHung, ConsumerdNotReady", "Last warnings", "Figures")
    ]
    assert places == sorted(places)


def test_names_alerts_that_exist() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "consumerd-alerts.yaml").read_text())
    known = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {*(alert for alerts in ALERTS.values() for alert in alerts), NOT_READY_ALERT} <= known
    assert set(ALERTS) <= set(_REASONS)


def test_shows_partitions_that_need_somebody_first_and_a_page_at_a_time() -> None:
    status = many(250, needing=2)
    first, last = render(status, word=None), render(status, word=None, choice=Choice(page=3))
    assert partitions(first) == ["248", "249", *map(str, range(98))]
    assert partitions(last) == [*map(str, range(198, 248))]
    assert "Page 1 of 3" in first.decode()
    assert '<a href="/?page=2">Next</a>' in first.decode()
    assert "Previous" not in first.decode()
    assert '<a href="/?page=2">Previous</a>' in last.decode()
    assert "250 in all, 2 need attention, 250 match" in first.decode()
    assert partitions(render(status, word=None, choice=Choice(page=9))) == partitions(last)
    assert "Page" not in render(many(100, needing=0), word=None).decode()


def test_chooses_partitions_by_name_and_need() -> None:
    status = many(250, needing=2)
    assert partitions(render(status, word=None, choice=Choice(named="/0-24"))) == [
        "248", "249", "24", *(str(number) for number in range(240, 248))
    ]  # fmt: skip
    assert partitions(render(status, word=None, choice=Choice(needing=True))) == ["248", "249"]
    nothing = render(status, word=None, choice=Choice(named=HOSTILE)).decode()
    assert "No partition matches." in nothing
    assert HOSTILE not in nothing
    assert Choice("a&b", True).address(2) == "/?named=a%26b&needing=1&page=2"


@pytest.mark.parametrize("page", ["", "0", "-1", "x", "²", "9" * 50])
def test_page_that_is_not_a_number_is_the_first(page: str) -> None:
    assert Choice.of({"page": page, "needing": "yes"}) == Choice()


def test_choice_is_read_from_the_address() -> None:
    assert Choice.of({"named": "clicks", "needing": "1", "page": "12"}) == Choice("clicks", True, 12)


def test_charts_have_a_scale_and_gaps_where_values_are_unknown() -> None:
    status = document("t")
    status["history"] = {
        "seconds": [-20.0, -15.0, -10.0, -5.0, 0.0],
        "messages_per_second": [1.0, 2.0, 3.0, 4.0, 5000.0],
        "lag": [1024, 2048, None, 1024, None],
    }
    page = render(status, word=None).decode()
    assert "<span>5,000</span><span>0</span>" in page
    assert "<span>2.0 KiB</span><span>0</span>" in page
    assert page.count("<span>20 s ago</span><span>now</span>") == 2
    assert [len(points.split()) for points in re.findall(r'<polyline points="([^"]*)"', page)] == [5, 2, 1]
    assert "Lag: unknown; largest since 20 s ago: 2.0 KiB" in page


def test_shows_the_memory_of_the_process_beside_that_of_messages() -> None:
    text = read("t", None).text
    assert "Process memory369.0 MiB" in text
    assert "Fetch buffer1 B of 1.0 GiB" in text
    unknown = document("t") | {"process_memory": None}
    assert 'Process memory</dt><dd><span class="value">unknown' in render(unknown, word=None).decode()


def test_groups_warnings_of_one_kind() -> None:
    status = document("t")
    status["errors"] = [
        {"time": f"2026-01-01T00:00:{59 - number}Z", "level": "warning", "event": event, "fields": {"n": str(number)}}
        for number, event in enumerate(["handler_failed", "commit_failed", "handler_failed", "handler_failed"])
    ]
    rows = re.findall(r'<td class="number">(\d)</td><td>warning</td><td><code>(\w+)</code></td><td>(n=\d)',
                      render(status, word=None).decode())  # fmt: skip
    assert rows == [("3", "handler_failed", "n=0"), ("1", "commit_failed", "n=1")]


def test_a_traceback_stands_below_its_event_with_its_lines() -> None:
    page = document("x", ("main",))
    traceback = 'app.py:9 in row: record["id"]\napp.py:3 in handle: row(<message>)'
    page["errors"][0]["fields"] = {"reason": "KeyError: 'id'", "traceback": traceback}
    text = render(page, word=None).decode()
    shown = "app.py:9 in row: record[&quot;id&quot;]\napp.py:3 in handle: row(&lt;message&gt;)"
    assert f"<td>reason=KeyError: &#x27;id&#x27;<pre>{shown}</pre></td>" in text


def test_the_last_lines_keep_the_lines_of_a_traceback_and_no_password_in_it() -> None:
    recent = RecentLines()
    traceback = "app.py:9 in row: connect('postgres://me:hunter2@db')\napp.py:3 in handle: row()"
    recent(None, "warning", {"event": "handler_failed", "level": "warning", "traceback": traceback})
    (line,) = recent
    assert line.fields["traceback"].splitlines()[1] == "app.py:3 in handle: row()"
    assert "hunter2" not in line.fields["traceback"]
