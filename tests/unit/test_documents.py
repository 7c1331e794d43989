"""What documents say is what the code has: the names that they import, the defaults of settings, the commands."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import warnings
from collections.abc import Iterator
from typing import Any, Final

import click
import pytest

from consumerd.base.errors import NotFoundError
from consumerd.cli.main import cli
from consumerd.spark.source.options import OPTIONS
from tests.unit.test_site import module_of_docs

defaults = module_of_docs("defaults")
ROOT: Final = defaults.ROOT
DOCUMENTS: Final = defaults.DOCUMENTS
read, line_of = defaults.read, defaults.line_of


# Names

_DOTTED: Final = re.compile(
    r"(?<![\w./@:-])((?:consumerd|pyspark_consumerd|tests|benchmarks|native|deploy)(?:\.\w+)+)(?![\w/-])"
)
_FILES: Final = (".json", ".toml", ".md", ".html", ".py", ".service")


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one: an attribute, or a field of a class."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if part in getattr(found, "__annotations__", {}):
                return True
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.fixture(scope="module")
def literals() -> set[str]:
    """The strings of the package: names of entry points, headers and attributes have dots, too."""
    return {
        node.value
        for path in (ROOT / "consumerd").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_dotted_names_are_in_the_code(document: str, literals: set[str]) -> None:
    text = read(document)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # former names may be documented as such
        wrong = [
            f"{document}:{line_of(text, found.start())}: {found[1]}"
            for found in _DOTTED.finditer(text)
            if not found[1].endswith(_FILES)
            # A header or an attribute may be made of its prefix and a name.
            and not (resolves(found[1]) or literals & {found[1], found[1].rpartition(".")[0] + "."})
        ]
    assert wrong == []


def test_imports_of_examples_are_in_the_code() -> None:
    imported = [
        (document, f"{node.module}.{each.name}")
        for document in DOCUMENTS
        for block in re.findall(r"```python\n(.*?)```", read(document), re.DOTALL)
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "consumerd"
        for each in node.names
    ]
    assert len(imported) > 30
    assert [(document, name) for document, name in imported if not resolves(name)] == []


_FILE: Final = re.compile(r"`((?:consumerd|tests|docs|deploy|native|examples|benchmarks)/[a-z0-9_./-]+)(?:::\w+)?`")


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if not each.startswith("examples/")])
def test_files_of_the_repository_exist(document: str) -> None:
    assert [name for name in _FILE.findall(read(document)) if not (ROOT / name).exists()] == []


def test_names_that_were_removed_are_found() -> None:
    assert resolves("consumerd.wire.v08.records.decode_records")
    assert not resolves("consumerd.wire.v08.records.nothing")
    assert not resolves("consumerd.nothing")


# Commands


def commands(document: str) -> Iterator[tuple[str, list[str]]]:
    """Where a command stands that is a line of its own, and its words."""
    text = read(document)
    for found in re.finditer(r"^(?:    (?:\$ )?|\$ )consumerd ((?:.*\\\n)*.*)$", text, re.MULTILINE):
        words = shlex.split(re.split(r" [|<>]|;", found[1].replace("\\\n", " "))[0], comments=True)
        yield f"{document}:{line_of(text, found.start())}", words


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if next(commands(each), None)])
def test_commands_parse(document: str) -> None:
    wrong = []
    for place, words in commands(document):
        if "..." in " ".join(words) or any(word.isupper() and word.isalpha() for word in words):
            continue  # a form, not a command
        command: click.Command | None = cli
        rest = list(words)
        try:
            while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
                command = command.get_command(click.Context(command), rest.pop(0))
            assert command is not None, words
            if not isinstance(command, click.Group):
                command.make_context(command.name, rest)
        except (click.UsageError, NotFoundError, AssertionError) as error:
            if "does not exist" not in str(error):  # files of examples
                wrong.append(f"{place}: {error}")
        except click.exceptions.Exit:
            pass
    assert wrong == []


def test_example_of_the_protocol_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", read("docs/protocol-guide.md"), re.DOTALL)
    (records,) = [block for block in blocks if "encode_record_batch" in block]
    exec(compile(records, "protocol-guide.md", "exec"), {})
    assert "b'k' b'first'" in capsys.readouterr().out


# Defaults


def test_numbers_are_those_of_the_code() -> None:
    places = [place for document in DOCUMENTS for place in (*defaults.tables(document), *defaults.sentences(document))]
    judged = [(place, defaults.same(place.text, place.default)) for place in places]
    wrong = [
        f"{place.name}: {place.text}, and the code has {place.default!r}" for place, fits in judged if fits is False
    ]
    assert wrong == [], "run `python docs/defaults.py`"
    assert sum(fits is not None for _, fits in judged) > 60


def test_tables_of_options_are_those_of_the_code() -> None:
    for document in ("docs/spark.md", "docs/broker.md"):
        assert defaults.rewritten(document) == read(document), "run `python docs/defaults.py`"
    for own in (True, False):
        assert defaults.broker_properties(own=own) in read("docs/broker.md")
    assert defaults.spark_options() in read("docs/spark.md")
    listed = re.findall(r"^\| `([\w.]+)`", defaults.spark_options(), re.MULTILINE)
    assert listed == [name for name in OPTIONS if name != "paths"]


def test_every_number_of_the_commit_interval_is_compared() -> None:
    """A text about it says `commit.interval` (value): else a changed default leaves the sentence wrong."""
    compared = [each for document in DOCUMENTS for each in defaults.sentences(document) if "commit" in each.name]
    assert len(compared) >= 6
    for document in DOCUMENTS:
        loose = re.search(r"commits? (?:interval|every) \(?\d+", read(document))
        assert loose is None, f"{document}: {loose}"


@pytest.mark.parametrize(
    ("text", "default", "verdict"),
    [
        ("128 KiB", 131072, True), ("5 ms", 0.005, True), ("120", 120.0, True), ("121", 120.0, False),
        ("**true**", True, True), ("false", True, False), ("`none`", "none", True), ("`gzip`", "none", False),
        ("where possible", None, None), ("5", None, False),
    ],
)  # fmt: skip
def test_compares_texts_with_defaults(text: str, default: object, verdict: bool | None) -> None:
    assert defaults.same(text, default) is verdict


@pytest.mark.parametrize(
    ("default", "former", "text"),
    [
        (7.5, "10 s", "7.5 s"), (20.0, "10 s", "20 s"), (0.25, "500 ms", "250 ms"), (0.25, "1 s", "250 ms"),
        (3 << 20, "128 KiB", "3 MiB"), (1000, "1 MiB", "1,000 bytes"), (7, "5", "7"), (20_000, "10,000", "20,000"),
        (False, "**true**", "`false`"), ("gzip", "`none`", "`gzip`"),
    ],
)  # fmt: skip
def test_writes_defaults_as_texts(default: object, former: str, text: str) -> None:
    assert defaults.written(default, former) == text
    assert defaults.same(text, default)
