r"""Patterns in Java's syntax as Python's, where both surely mean the same; others are for Spark.

Strategy: what is translated is a small language: characters, classes, groups, alternatives and quantifiers. A dot does
not match Java's line ends, of which Python knows one. Refused is what has another meaning or none in Python (nested and
intersected classes, `\p{..}`, `\Q..\E`, flags, anchors, references, lookaround), and a repeated group that captures,
since the two differ in what an empty repetition captures.
"""

from __future__ import annotations

import re
from typing import Final

_LITERAL_ESCAPES: Final = frozenset("\\.[]{}()*+-?^$|/\"'#&~,:;<>=!@%_` ")
_SAME_ESCAPES: Final = frozenset("dDwWsStnrf")
_TOKEN = re.compile(
    r"""(?P<quantifier>(?:[*+?]|\{[0-9]{1,4}(?:,(?:[0-9]{1,4})?)?\})[?+]?)
      | (?P<open>\((?:\?<(?P<name>[A-Za-z][A-Za-z0-9]*)>|\?:|(?!\?)))
      | (?P<close>\))
      | (?P<or>\|)
      | (?P<class>\[\^?(?P<inner>(?:\\.|[^\]\[\\])+)\])
      | (?P<escape>\\.)
      | (?P<plain>[^\[\](){}^$?*+\#\\|])""",
    re.DOTALL | re.VERBOSE,
)
_DOT: Final = "[^\n\r\x85\u2028\u2029]"


def python_pattern(java: str) -> re.Pattern[str] | None:
    """A pattern that matches a whole text, with the same named groups; None where only Java surely reads it so."""
    written: list[str] = []
    captures: list[bool] = []  # of each open group: whether it or one in it captures
    before: bool | None = None  # whether what a quantifier would repeat captures; None: there is nothing to repeat
    at = 0
    while at < len(java):
        match = _TOKEN.match(java, at)
        if match is None:
            return None
        at = match.end()
        kind = next(kind for kind in _KINDS if match[kind] is not None)
        text: str | None = match[0]
        if kind == "quantifier":
            if before is None or (before and text != "?"):
                return None
            before = None
        elif kind == "open":
            text = f"(?P<{match['name']}>" if match["name"] else text
            captures.append(text != "(?:")
            before = None
        elif kind == "close":
            if not captures:
                return None
            before = captures.pop()
            captures[-1:] = [captures[-1] or before] if captures else []
        else:
            text, before = _atom(kind, match), None if kind == "or" else False
        if text is None:
            return None
        written.append(text)
    try:
        return re.compile(rf"\A(?:{''.join(written)})\Z", re.ASCII)
    except (re.error, RecursionError, OverflowError):
        return None


_KINDS: Final = ("quantifier", "open", "close", "or", "class", "escape", "plain")


def _atom(kind: str, match: re.Match[str]) -> str | None:
    """A character, a class, an escape or `|`, as Python writes it; None for what is not surely the same."""
    text = match[0]
    if kind == "class":
        return text if _is_plain_class(match["inner"]) else None
    if kind == "escape":
        known = text[1] in _LITERAL_ESCAPES | _SAME_ESCAPES
        return text if text[1] in _SAME_ESCAPES else re.escape(text[1]) if known else None
    return text if kind == "or" else _DOT if text == "." else re.escape(text)


def _is_plain_class(inner: str) -> bool:
    """Whether both read the inside of a class the same."""
    if any(two in inner for two in ("&&", "--", "||", "~~")) or inner[0] in "^-]":
        return False
    return all(each in _LITERAL_ESCAPES | _SAME_ESCAPES for each in re.findall(r"\\(.)", inner, re.DOTALL))
