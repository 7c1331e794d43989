r"""Expected values were taken from java.util.regex (17), which tests/interop compares with at random."""

from __future__ import annotations

import pytest

from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.regex import MAX_INSTRUCTIONS, matches, parse, require_re2

NAMES = [
    "",
    "a",
    "A",
    "b",
    "ab",
    "aa",
    "aab",
    "a-b",
    "a.b",
    "a_1",
    "1",
    "-",
    "]",
    "\n",
    "\u00e9",
    "\u2028",
    "\U0001d4b3",
]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (".", ["a", "A", "b", "1", "-", "]", "\u00e9", "\U0001d4b3"]),
        ("(?s).", ["a", "A", "b", "1", "-", "]", "\n", "\u00e9", "\u2028", "\U0001d4b3"]),
        (r"a\.b", ["a.b"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"\Qa.\Eb?", ["a.b"]),
        (r"\Qa-b", ["a-b"]),
        (r"\\Q", []),
        ("a*b", ["b", "ab", "aab"]),
        ("a+?b", ["ab", "aab"]),
        ("a*+b", ["b", "ab", "aab"]),
        ("a*+ab", []),
        ("(?>a|aa)b", ["ab"]),
        ("(?>aa|a)a", []),
        ("a{2}", ["aa"]),
        ("a{1,}", ["a", "aa"]),
        ("a{0,1}b", ["b", "ab"]),
        ("a{2}+b", ["aab"]),
        ("a|", ["", "a"]),
        ("(a|b)*?", ["", "a", "b", "ab", "aa", "aab"]),
        ("(?<letter>a)b", ["ab"]),
        ("(?:a)(b)?", ["a", "ab"]),
        ("(?i)a", ["a", "A"]),
        ("(?i:a)b?", ["a", "A", "ab"]),
        ("b|(?i)a", ["a", "A", "b"]),
        ("(?i)a|b(?-i)", ["a", "A", "b"]),
        ("(?i)[a-z]", ["a", "A", "b"]),
        ("(?i)[^A]", ["b", "1", "-", "]", "\n", "\u00e9", "\u2028", "\U0001d4b3"]),
        ("(?i)\u00c9", []),
        ("[ab]", ["a", "b"]),
        ("[^a-z]", ["A", "1", "-", "]", "\n", "\u00e9", "\u2028", "\U0001d4b3"]),
        ("[a-]", ["a", "-"]),
        ("[-a]", ["a", "-"]),
        ("[]a]", ["a", "]"]),
        (r"[\]]", ["]"]),
        (r"[\w-]", ["a", "A", "b", "1", "-"]),
        (r"[\d-z]", ["1", "-"]),
        ("[+--]", ["-"]),
        (r"[\p{Lower}1]", ["a", "b", "1"]),
        (r"[\Qa-\E]", ["a", "-"]),
        ("[\u00e9-\U0001d4b3]", ["\u00e9", "\u2028", "\U0001d4b3"]),
        (r"\d", ["1"]),
        (r"\W", ["-", "]", "\n", "\u00e9", "\u2028", "\U0001d4b3"]),
        (r"\s", ["\n"]),
        (r"\p{Alpha}", ["a", "A", "b"]),
        (r"\P{ASCII}", ["\u00e9", "\u2028", "\U0001d4b3"]),
        (r"\p{Punct}", ["-", "]"]),
        (r"\x61\u0062", ["ab"]),
        (r"\x{1d4b3}", ["\U0001d4b3"]),
        (r"\0141", ["a"]),
        (r"\cJ", ["\n"]),
        (r"\n|\-|]", ["-", "]", "\n"]),
        ("^a$", ["a"]),
        (r"\Aa\z", ["a"]),
        (r".*\bb", ["b", "a-b", "a.b"]),
        (r"a\Bb", ["ab"]),
        ("(?=.*b).*", ["b", "ab", "aab", "a-b", "a.b"]),
        ("(?!a).+", ["A", "b", "1", "-", "]", "\u00e9", "\U0001d4b3"]),
        (".*(?<=a)b", ["ab", "aab"]),
        (".*(?<![ab])b", ["b", "a-b", "a.b"]),
        (".*(?<=a{2})b", ["aab"]),
        ("$\u2028?", ["", "\u2028"]),
        (r"\Z\n", ["\n"]),
        ("[a-c&x]", ["a", "b"]),
    ],
)
def test_matches_what_java_matches(pattern: str, expected: list[str]) -> None:
    program = parse(pattern)
    assert [name for name in NAMES if matches(program, name)] == expected


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("[a-c&&b]", "&&"),
        ("[a[bc]]", "class within a class"),
        ("[a-[b]]", "class within a class"),
        (r"(a)\1", r"\\1"),
        (r"\k<n>", r"\\k"),
        (r"\h", r"\\h"),
        (r"\R", r"\\R"),
        (r"\G", r"\\G"),
        (r"\E", r"\\E"),
        (r"\y", r"\\y"),
        (r"\p{L}", r"\\p\{L\}"),
        (r"\p{IsGreek}", r"\\p\{IsGreek\}"),
        (r"\pL", r"\\p\{L\}"),
        (r"(?i)\p{Lower}", "under"),
        ("(?x)a", "flag x"),
        ("(?m)^a", "flag m"),
        ("(?i-i-i)a", "second -"),
        ("(?<=a*)b", "a lookbehind in a topic filter must be bounded"),
        ("(?#c)", r"\(\?#"),
        ("(?P<n>a)", "flag P"),
        ("(?<1>a)", "is not a valid group name"),
        ("(?<>a)", "is not a valid group name"),
    ],
)
def test_names_a_construct_outside_of_the_subset(pattern: str, construct: str) -> None:
    with pytest.raises(RegistryError, match=construct):
        parse(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "(?", "(?<", "(?:", "(?i", "[", "[a", "[^", "[]", "[a-", "[b-a]", r"[a-\d]", "*", "a|*", "(*)",
     "a**", "a{", "a{}", "a{,2}", "a{2,1}", "a{x}", "{", "a{2}{2}", "\\", r"\x", r"\x4", r"\xzz", r"\u12", r"\ud800",
     r"\x{110000}", r"\x{}", r"\0", r"\p", r"\p{", r"\c", "(" * 100 + ")" * 100, "\\Q"[:1]],
)  # fmt: skip
def test_rejects_a_broken_pattern(pattern: str) -> None:
    with pytest.raises(RegistryError):
        parse(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "((a?){50})*b", "(.*)*(.*)*x", "(a|aa)+$.", "(?:(?=a*)a)*b"]
)
def test_matches_catastrophic_patterns_in_linear_time(pattern: str) -> None:
    program = parse(pattern)
    assert not matches(program, "a" * 255)


@pytest.mark.parametrize(
    "pattern", ["a{30000}", "((((a{99}){99}){99}){99})", "(a{2,999999999})", "(|){999999}", "|" * 16_000]
)
def test_rejects_a_pattern_before_it_grows_too_large(pattern: str) -> None:
    with pytest.raises(RegistryError, match=str(MAX_INSTRUCTIONS)):
        parse(pattern)


def test_limits_steps_beside_size() -> None:
    program = parse(".?" * 8000 + "x")
    with pytest.raises(RegistryError, match="simplify"):
        matches(program, "a" * 255)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(?=a).*", "lookahead (?=...) is not supported"),
        ("(?!test).*", "lookahead (?!...) is not supported"),
        (".*(?<=a)", "lookbehind (?<=...) is not supported"),
        (".*(?<!a)", "lookbehind (?<!...) is not supported"),
        ("(?>a*)b", "an atomic group (?>...) is not supported; use (?:...)"),
        ("a*+b", "a possessive repetition, such as *+, is not supported"),
        ("a{2}+", "a possessive repetition"),
        (r"\p{Lower}+", r"\p is not supported; use brackets, such as [a-z]"),
        (r"[\P{Digit}]", r"\P is not supported"),
        (r"a\Z", r"\Z is not supported; use \z"),
        (r"\u0061", r"\u is not supported; use \x{...}"),
        (r"[\0141]", r"\0 is not supported"),
        (r"[\Qa-z\E]", r"\Q within brackets is not supported"),
        ("(?-)a", "a - without flags after it is not supported"),
        ("a{1001}", "more than 1000 repetitions are not supported"),
        ("((?:ab){40}c){26}", "more than 1000 repetitions are not supported"),
        ("(?i)[\u00e9-\U0001d4b3]", "characters that are not ASCII are not supported"),
        (r"\x{e9}", "characters that are not ASCII are not supported"),
        ("(a", "a group is not closed"),
    ],
)
def test_names_what_re2_does_not_have(pattern: str, problem: str) -> None:
    with pytest.raises(RegistryError) as caught:
        require_re2(pattern)
    assert "cannot be matched by a broker, which has RE2: " in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "events|audit-.*", r"events\..*", "(?i:events)-[0-9]{1,3}", "(?<n>a)+?", r"\Qa.b\E*", r"\x61|\x{62}", "^a$",
        r"\w+\d\b", "((?:ab){40}c){25}", "(?:a{500}){0}", "(?s-i).",
    ],
)  # fmt: skip
def test_accepts_what_re2_has(pattern: str) -> None:
    require_re2(pattern)
