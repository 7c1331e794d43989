"""Texts have no phrase of the table in docs/style.md: documents, `--help`, errors, log events, docstrings, comments.

`make check` runs this file, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
STYLE: Final = ROOT / "docs" / "style.md"
_LEVELS: Final = {"debug", "info", "warning", "error", "critical", "exception"}
_ROW: Final = re.compile(r"^\| (?P<avoid>`[^|]+`) \| (?P<write>[^|]+) \|(?P<allowed>[^|]*)\|$", re.MULTILINE)
#: Comments, and the strings in which a `#` begins none.
_COMMENT_OR_STRING: Final = re.compile(
    r"""(?P<comment>#[^\n]*)|(?P<quotes>"{3}|'{3}|["'])(?:\\.|(?!(?P=quotes)).)*(?P=quotes)""", re.DOTALL
)


class Phrase(NamedTuple):
    """One row of the table: what it looks for, what may surround it, and what to write."""

    pattern: re.Pattern[str]
    allowed: re.Pattern[str] | None
    write: str


class Text(NamedTuple):
    """A text and where it begins."""

    path: Path
    line: int
    words: str


def _any_of(cell: str) -> re.Pattern[str] | None:
    """A pattern that finds any of the phrases in code font, with any white space between their words."""
    phrases = [r"\s+".join(map(re.escape, phrase.split())) for phrase in re.findall("`([^`]+)`", cell)]
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE) if phrases else None


def phrases() -> list[Phrase]:
    """The table "Phrases to replace" of the style page."""
    section = STYLE.read_text("utf-8").partition("\n## Phrases to replace\n")[2].partition("\n## ")[0]
    found = []
    for row in _ROW.finditer(section):
        pattern = _any_of(row["avoid"])
        assert pattern is not None
        found.append(Phrase(pattern, _any_of(row["allowed"]), row["write"].strip()))
    return found


def findings(texts: Iterator[Text], table: list[Phrase]) -> list[str]:
    """`file:line: ...` for each phrase of the table in a text."""
    found = []
    any_phrase = re.compile("|".join(phrase.pattern.pattern for phrase in table), re.IGNORECASE)
    for path, first, words in texts:
        if any_phrase.search(words) is None:
            continue
        for pattern, allowed, write in table:
            fine = [match.span() for match in allowed.finditer(words)] if allowed else []
            for match in pattern.finditer(words):
                if any(start <= match.start() and match.end() <= end for start, end in fine):
                    continue
                line = first + words.count("\n", 0, match.start())
                shown = " ".join(match[0].split())
                name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                found.append(f"{name}:{line}: {shown!r}: write {write}")
    return found


def documents() -> Iterator[Text]:
    for pattern in ("*.md", "docs/*.md", ".github/**/*.md", ".github/**/*.yml", "*/README.md", "*/*/README.md"):
        for path in sorted(ROOT.glob(pattern)):
            if path != STYLE:
                yield Text(path, 1, path.read_text("utf-8"))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a module or function, those within others included. Expressions have no docstrings."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(statement, name, []))


def _described(tree: ast.Module) -> Iterator[ast.expr]:
    """The docstrings that are not `--help`: those of anything but commands and groups of commands."""
    for node in (tree, *_statements(tree.body)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [] if isinstance(node, ast.Module) else [ast.unparse(each) for each in node.decorator_list]
            if any(re.match(r"\w+\.(command|group)\b", each) for each in decorators):
                continue
            if node.body and isinstance(node.body[0], ast.Expr):
                yield node.body[0].value


def sentences(path: Path) -> Iterator[Text]:
    """The strings of a module, the names of its log events, and the help of its commands; not docstrings.

    Values in f-strings are `{}`, and events are read with blanks for underscores. Other strings of one word are names.
    """
    tree = ast.parse(path.read_text("utf-8"))
    left_out = set(_described(tree))
    plain: list[ast.Constant] = []
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                left_out.update(values)
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in values]
                yield Text(path, node.lineno, "".join(map(str, parts)))
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(event)), *_]):
                if level in _LEVELS:
                    yield Text(path, node.lineno, event.replace("_", " "))
            case ast.Constant(value=str(words)) if " " in words:
                plain.append(node)
    yield from (Text(path, node.lineno, str(node.value)) for node in plain if node not in left_out)


def explanations(path: Path) -> Iterator[Text]:
    """The docstrings and comments of a module; comments on consecutive lines are one text."""
    source = path.read_text("utf-8")
    for docstring in _described(ast.parse(source)):
        if isinstance(docstring, ast.Constant) and isinstance(docstring.value, str):
            yield Text(path, docstring.lineno, docstring.value)
    block: list[str] = []
    last = line = end = 0
    for token in _COMMENT_OR_STRING.finditer(source):
        line += source.count("\n", end, token.start())
        end = token.start()
        if token["comment"] is None:
            continue
        if block and line != last:
            yield Text(path, last - len(block) + 1, "\n".join(block))
            block = []
        block.append(token["comment"].lstrip("#:"))
        last = line + 1
    yield Text(path, last - len(block) + 1, "\n".join(block))


def docstrings_and_comments() -> Iterator[Text]:
    for folder in ("consumerd", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from explanations(path)


def modules() -> Iterator[Text]:
    for folder in ("consumerd", "pyspark_consumerd", "deploy", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from sentences(path)


def names_of_tests() -> Iterator[Text]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.finditer(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE):
            line = name.string.count("\n", 0, name.start(1)) + 1
            yield Text(path, line, name[1].replace("_", " "))


@pytest.mark.parametrize("texts", [documents, modules, names_of_tests, docstrings_and_comments])
def test_texts_have_no_phrase_to_replace(texts: Callable[[], Iterator[Text]]) -> None:
    if found := findings(texts(), phrases()):
        pytest.fail("\n".join(["docs/style.md replaces these phrases:", *found]), pytrace=False)


def test_style_page_has_a_table_of_phrases() -> None:
    table = phrases()
    assert len(table) > 10
    assert all(phrase.write for phrase in table)


def test_finds_phrases_with_file_and_line(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""A docstring in which -1 is no number."""\n'
        "import click\n\n\n"
        "@click.command()\n"
        "def command(number: int) -> None:\n"
        '    """Print a number.\n\n'
        '    It ends when it is\n    told.\n    """\n'
        "    if number < 0:\n"
        "        raise ValueError(\n"
        '            f"{number} is "\n'
        '            "no number: there is no number below 0, and it is no longer one"\n'
        "        )\n"
        '    log.info("reader_hung_up")\n'
    )
    found = findings(sentences(module), phrases())
    places = [finding.partition("module.py")[2].partition(": write ")[0] for finding in found]
    assert sorted(places) == [":14: 'is no'", ":17: 'hung up'", ":9: 'is told'"]
    module.write_text(module.read_text() + "\n# a number that is\n# no number; a comment\n\n#: of whatever kind\n")
    found = findings(explanations(module), phrases())
    places = [finding.partition("module.py")[2].partition(": write ")[0] for finding in found]
    assert sorted(places) == [":19: 'is no'", ":1: 'is no'", ":22: 'of whatever kind'"]
