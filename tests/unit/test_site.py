"""The documentation site is built without a warning, needs no network, and has what the code has."""

from __future__ import annotations

import ast
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.config.model import Config
from consumerd.errors import ExitCode
from consumerd.metrics.catalogue import ALL_METRICS

if TYPE_CHECKING:
    from types import ModuleType

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


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_under_test", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


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
    for table, field in Config.model_fields.items():
        keys = getattr(field.annotation, "model_fields", {})
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
