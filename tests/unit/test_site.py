"""The documentation site is built without a warning, needs no network, and has what the code has."""

from __future__ import annotations

import ast
import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.metrics.catalogue import ALL_METRICS
from consumerd.service.config.model import Config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def titles(site: Path) -> dict[str, set[str]]:
    """The headings that the search of the site knows, by page."""
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found: dict[str, set[str]] = {}
    for entry in index["docs"]:
        title = re.sub(r"<[^>]+>", "", entry["title"])
        found.setdefault(entry["location"].partition("#")[0], set()).add(title)
    return found


def module_of_docs(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module_of_docs("reference")


def test_each_page_of_docs_is_on_the_site(site: Path) -> None:
    assert (site / "index.html").is_file()
    for path in (ROOT / "docs").glob("*.md"):
        assert (site / f"{path.stem}.html").is_file()


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=\"?([^\" >]+)", text)
        loaded += re.findall(r"<link\b[^>]*\bhref=\"?([^\" >]+)", text)
        assert loaded
        assert not [each for each in loaded if re.match(r"(?:\w+:)?//", each)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:\w+:)?//", sheet.read_text("utf-8")), sheet


def test_search_finds_each_exit_code(titles: dict[str, set[str]]) -> None:
    assert {f"{each.value} {each.name}" for each in ExitCode} <= titles["reference/exit-codes.html"]


def test_search_finds_each_log_event_in_the_code(titles: dict[str, set[str]]) -> None:
    # Looked up without the generator: events are what stands first in a call of a logger.
    pattern = r"\b_?log(?:ger)?\.(?:debug|info|warning|error|exception)\(\s*(?:exc_info=\w+,\s*)?\"([a-z][a-z0-9_]*)\""
    named = {
        event for path in (ROOT / "consumerd").rglob("*.py") for event in re.findall(pattern, path.read_text("utf-8"))
    }
    assert len(named) > 80
    listed = titles["reference/log-events.html"]
    assert named <= listed
    assert {"session_established", "session_reconnected", "messages_dead_lettered"} <= listed  # chosen by a condition
    assert {"fetch_refused", "topic_not_readable"} <= listed  # passed to a method that logs them


def test_no_log_event_escapes_the_reference(reference: ModuleType) -> None:
    """Each call of a logger either names its events, or formats a sentence (tasks of Spark)."""
    unknown = []
    for path in sorted((ROOT / "consumerd").rglob("*.py")):
        for call, _, around in reference.log_calls(ast.parse(path.read_text("utf-8"))):
            names: list[Any] = reference._constants(call.args[0])
            if not names and isinstance(call.args[0], ast.Name) and around is not None:
                names = [each.arg for each in around.args.args if each.arg == call.args[0].id]
            if not names:
                unknown.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert unknown == []


def test_events_that_operations_explains_are_logged(reference: ModuleType) -> None:
    explained = set(reference.meanings()) - {"key"}
    assert len(explained) > 50
    assert explained <= set(reference.log_events())


def test_reference_has_each_key_and_each_command(site: Path, titles: dict[str, set[str]]) -> None:
    text = html.unescape((site / "reference" / "configuration.html").read_text("utf-8"))
    for table, section in Config.tables().items():
        keys = {} if table == "subscriptions" else section.fields
        assert not keys or f"[{table}]" in titles["reference/configuration.html"]
        for key in keys:
            nested = re.search(rf"\[{table}\.{key}(?:\.NAME)?\]", text)
            assert nested or f"<code>{key}</code>" in text, (table, key)
    listed = titles["reference/command-line.html"]
    assert {"consumerd run", "consumerd group lag", "consumerd offsets reset", "consumerd log verify"} <= listed


def test_metrics_page_has_what_the_code_has(reference: ModuleType, titles: dict[str, set[str]]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert page == reference.metrics(), "docs/metrics.md is old: run python docs/reference.py"
    for metric in ALL_METRICS:  # looked up without the generator
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{metric.name}` |")]
        assert f"| {metric.kind.value} |" in row
        assert row.endswith(f" | {labels} | {metric.help} |")
    assert {"Members", "Mirrors", "Broker"} <= titles["metrics.html"]


def test_drawings_of_states_have_what_the_code_has() -> None:
    states = module_of_docs("states")
    kinds = ("member", "partition", "coordinated", "consumer-protocol")
    assert set(states.DRAWINGS) == {f"states-{kind}.svg" for kind in kinds}
    for name, (title, table) in states.DRAWINGS.items():
        drawn = (ROOT / "docs" / "images" / name).read_text("utf-8")
        assert drawn == states.drawing(title, table), f"{name} is old: run python docs/states.py"
        changes = {(state, following) for (state, _), following in table.items() if state is not following}
        assert drawn.count("<path d=") == len(changes) + 1  # and the arrow's head


@pytest.mark.parametrize(("page", "least"), [("semantics", 15), ("security", 25)])
def test_each_row_about_behaviour_names_a_test_that_exists(page: str, least: int) -> None:
    """Of the tables with a column for tests; others only explain."""
    rows, tested = [], False
    for line in (ROOT / "docs" / f"{page}.md").read_text("utf-8").splitlines():
        if not line.startswith("|"):
            tested = False
        elif line.endswith("| test |"):
            tested = True
        elif tested and not re.fullmatch(r"[|-]+", line):
            rows.append(line)
    assert len(rows) > least
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert tests, row
        for path, name in tests:
            assert re.search(rf"def {name}\(", (ROOT / path).read_text("utf-8")), f"{path}::{name}"


#: What people type at night, and the section of docs/operations.md that they are to find.
SYMPTOMS = {
    "no space left": "no-space-left-on-device-disk-full",
    "all brokers are down": "an-outage-all-brokers-are-down",
    "brokers_unreachable": "an-outage-all-brokers-are-down",
    "disk full": "no-space-left-on-device-disk-full",
    "wrong password": "wrong-password-or-authentication-failed-tls-and-sasl-errors",
    "authentication failed": "wrong-password-or-authentication-failed-tls-and-sasl-errors",
    "certificate verify failed": "wrong-password-or-authentication-failed-tls-and-sasl-errors",
    "stuck partition": "lag-grows-or-a-partition-is-stuck",
    "consumer lag grows": "lag-grows-or-a-partition-is-stuck",
    "Connection refused": "connection-refused-timed-out-or-no-answer",
    "out of memory": "out-of-memory",
    "OOMKilled": "out-of-memory",
    "session expired": "the-session-expired-or-readyz-answers-503",
    "keeps rebalancing": "the-group-keeps-rebalancing",
    "can't rebalance after 4 retries": "jvm-members-cannot-rebalance",
    "no owner": "a-partition-has-no-owner-or-the-wrong-one",
    "NodeExists": "a-partition-has-no-owner-or-the-wrong-one",
    "duplicate messages": "duplicate-messages",
    "OffsetOutOfRange": "offset-out-of-range-or-messages-are-missing",
    "offset out of range": "offset-out-of-range-or-messages-are-missing",
    "topic deleted recreated": "a-topic-was-deleted-and-recreated",
    "UnicodeDecodeError": "a-message-cannot-be-decoded",
    "message too large": "a-corrupt-message-or-one-that-is-too-large",
    "permission denied": "permission-denied-or-a-read-only-file-system",
    "no messages received": "the-daemon-consumes-nothing",
    "handler hangs": "the-handler-hangs-times-out-or-keeps-failing",
    "ignores SIGTERM": "the-daemon-does-not-stop",
    "daemon exits": "the-daemon-exits-or-is-not-restarted",
    "consumer id already registered": "the-consumer-id-is-already-registered",
    "high cpu": "high-cpu-usage-while-idle",
}


@pytest.fixture(scope="module")
def search(site: Path, missing: Callable[[str], NoReturn]) -> Callable[[list[str]], list[list[list[str]]]]:
    """Types queries into the search of the site: for each the pages that it shows, each with its sections."""
    node = shutil.which("node")
    if node is None:
        missing("the search of the site runs in node, and there is no `node` on PATH: install Node.js")

    def typed(queries: list[str]) -> list[list[list[str]]]:
        command = [node, str(ROOT / "tests" / "support" / "site_search.js"), str(site)]
        done = subprocess.run(
            command, input=json.dumps(queries), capture_output=True, text=True, timeout=120, check=True
        )
        found: list[list[list[str]]] = json.loads(done.stdout)
        return found

    return typed


def test_search_finds_each_symptom_in_its_first_three_hits(
    search: Callable[[list[str]], list[list[list[str]]]], titles: dict[str, set[str]]
) -> None:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    section = text.partition("\n## Symptoms\n")[2].partition("\n## ")[0]
    headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"): heading for heading in headings}
    assert set(SYMPTOMS.values()) == set(anchors), "each symptom is typed"
    assert set(headings) <= titles["operations.html"]
    wrong = []
    for (query, anchor), pages in zip(SYMPTOMS.items(), search(list(SYMPTOMS)), strict=True):
        if f"operations.html#{anchor}" not in [page[0] for page in pages[:3]]:
            wrong.append(f"{query}: {[page[0] for page in pages[:3]]}")
    assert wrong == []


def test_search_finds_sections_with_all_words_else_with_any(
    search: Callable[[list[str]], list[list[list[str]]]],
) -> None:
    both, one, no_word, own = search(["stuck partition", "stuck qwertyuiop", "qwertyuiop", "stuck -partition"])
    assert 0 < len(both) < 10, "pages that have both words"
    assert one, "where no section has all words"
    assert no_word == []
    assert not [page for page in own if "operations.html#lag-grows-or-a-partition-is-stuck" in page]


def test_each_key_says_since_when(reference: ModuleType) -> None:
    page = html.unescape(reference.configuration())
    rows = re.findall(r"^\| <code>(\w+)</code> \| [^|]+ \| .+ \| (\d+\.\d+\.\d+) \| ", page, re.MULTILINE)
    assert {("connect", "0.1.0"), ("log_changed", "0.2.0"), ("otlp_endpoint", "0.2.0")} <= set(rows)
    released = re.findall(r"^## (\d+\.\d+\.\d+) ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert len({since for _, since in rows} - set(released)) <= 1  # the version that comes next
    assert len(rows) > 100
