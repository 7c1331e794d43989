"""Patterns that mean the same in Java and in Python, and those that may not."""

from __future__ import annotations

import pytest

from consumerd.spark.lake.patterns import python_pattern


@pytest.mark.parametrize(
    ("pattern", "text", "groups"),
    [
        (
            r"(?<at>\d+)(?: (x))? \[(?<level>[A-Z(]+)\] (?<text>.*)",
            "12 x [AB(] hi",
            {"at": "12", "level": "AB(", "text": "hi"},
        ),
        (r"(?<a>[^ ]*+) (?<b>x{1,3}?)(?:y|z)+", "é xxyz", {"a": "é", "b": "xx"}),
        (r"(?<a>.*)", "a\x0bb", {"a": "a\x0bb"}),
        (r"(?<a>a|ab)(?<b>c|bcd)(?<c>d*)", "abcd", {"a": "a", "b": "bcd", "c": ""}),
        (r"(?<a>\w+)\.(?<b>[\s\-]+)", "a1_.\t-", {"a": "a1_", "b": "\t-"}),
    ],
)
def test_translates_what_both_read_the_same(pattern: str, text: str, groups: dict[str, str]) -> None:
    compiled = python_pattern(pattern)
    assert compiled is not None
    match = compiled.match(text)
    assert match is not None
    assert match.groupdict() == groups


@pytest.mark.parametrize("text", ["a\nb", "a\x85b", "a\u2028b", "a\r", "a\n"])
def test_a_dot_matches_none_of_javas_line_ends(text: str) -> None:
    compiled = python_pattern("(?<a>.*)")
    assert compiled is not None
    assert compiled.match(text) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<a>\p{L})", r"\Qa\E(?<a>b)", r"(?i)(?<a>b)", r"^(?<a>b)$", r"\b(?<a>b)", r"(?<a>b)\k<a>", r"(?<a>b)\1",
        r"(?<a>[a[bc]])", r"(?<a>[a-z&&[^b]])", r"(?=x)(?<a>b)", r"(?<a>b)*", r"(?:(?<a>b)|c)+", r"(?<a>b){2}",
        r"(?<a>b{,2})", r"(?<a>b**)", r"(?<a>b", r"(?<a>b))", r"(?<a>\x41)", r"(?<a>[^^])", r"(?<a>\h)", r"(?<a>{)",
        r"(?<a>b{3,2})", "(?<a>b)\\",
    ],
)  # fmt: skip
def test_leaves_other_patterns_to_spark(pattern: str) -> None:
    assert python_pattern(pattern) is None
