from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.cli.tables import printable, show_rows

if TYPE_CHECKING:
    import pytest


def test_escapes_control_characters() -> None:
    assert printable("a\x1b[31m\tb\n\u202e\u00e9") == "a\\x1b[31m\\tb\\n\\u202e\u00e9"


def test_prints_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(["a", ">b"], [("x\ty", 1), ("z", None)])
    show_rows(["a"], [["x"]], title="unseen", kind="member")
    show_rows(["a"], [], title="unseen")
    assert capsys.readouterr().out == "x\\ty\t1\nz\t\nmember\tx\n"


def test_prints_a_table_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    show_rows(["name", ">number"], [("[red]x", 1), ("\x1b[31m", 22)], title="[b]two", kind="unseen")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["[b]two", "name      number", "[red]x         1", "\\x1b[31m      22"]
