from __future__ import annotations

import click
import pytest

from consumerd.cli.tables import printable, show_rows


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
    lines = [line.rstrip() for line in click.unstyle(capsys.readouterr().out).splitlines()]
    assert lines == ["[b]two", "name      number", "[red]x         1", "\\x1b[31m      22"]


def test_rows_have_one_line_each_and_texts_are_cut_not_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    owner = "g_host-1795859226659-484017b3-0"
    rows = [("events/0-12", owner, 123_456_789, ""), ("\u4e2d", "x", 5, "")]
    show_rows(["partition", "owner", ">offset", "remark"], rows)
    assert click.unstyle(capsys.readouterr().out).splitlines() == [
        "partition    owner                offset",
        "events/0-12  g_host-179\u20267b3-0  123456789",
        "\u4e2d           x                         5",
        "Texts with \u2026 are cut to 40 columns: pipe the output, or use --json where there is one.",
    ]


def test_table_has_at_most_the_lines_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_rows([">number"], [[number] for number in range(100)], title="numbers", most=6)
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert lines == ["numbers", "number", "     0", "     1", "     2", "... and 97 more lines"]
