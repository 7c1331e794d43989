from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from consumerd.service.daemon.logs import configure_logs


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("library", [True, False])
def test_tracebacks_have_no_local_variables(
    capsys: pytest.CaptureFixture[str], *, style: Literal["json", "console"], library: bool
) -> None:
    configure_logs("info", style)

    def fail(password: str) -> None:
        # As structlog's own tracebacks would have it.
        raise RuntimeError(f"a password of {len(password)} letters")

    try:
        fail("hush")
    except RuntimeError:
        if library:
            logging.getLogger("asyncio").exception("failed")
        else:
            structlog.get_logger().exception("failed")
    sys.stderr.flush()
    said = capsys.readouterr().err
    assert "a password of 4 letters" in said
    assert "in fail" in said or '"name": "fail"' in said
    assert "hush" not in said.replace('fail("hush")', "")  # the line of the source


def test_changes_level_and_format_of_loggers_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger("reloaded")
    configure_logs("info", "json")
    log.info("first")
    log.debug("hidden")
    configure_logs("debug", "console")
    log.debug("second")
    configure_logs("error", "json")
    log.warning("hidden")
    log.error("third")
    logging.getLogger("asyncio").warning("hidden")
    first, second, third = capsys.readouterr().err.splitlines()
    assert json.loads(first)["event"] == "first"
    assert "second" in second
    assert not second.startswith("{")
    assert json.loads(third)["event"] == "third"


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("library", [True, False])
def test_lines_begin_with_time_level_and_event(
    capsys: pytest.CaptureFixture[str], *, style: Literal["json", "console"], library: bool
) -> None:
    configure_logs("info", style)
    with structlog.contextvars.bound_contextvars(subscription="main"):
        if library:
            logging.getLogger("asyncio").warning("failed")
        else:
            structlog.get_logger().warning("failed", at="a.py:1", reason="none")
    sys.stderr.flush()
    line = capsys.readouterr().err
    if style == "json":
        keys = list(json.loads(line))
        assert keys[:3] == ["timestamp", "level", "event"]
        assert "subscription" in keys[3:]
    else:
        plain = re.sub(r"\x1b\[\d*m", "", line)
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[warning *\] failed .*subscription=main", plain)


def test_the_console_shows_a_short_traceback_below_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "console")
    structlog.get_logger().warning(
        "handler_failed", reason="KeyError: 'id'", traceback="app.py:9 in row\napp.py:3 in f"
    )
    line, *below = capsys.readouterr().err.splitlines()
    assert "handler_failed" in line
    assert below == ["app.py:9 in row", "app.py:3 in f"]
