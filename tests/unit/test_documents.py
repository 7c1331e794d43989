"""What documents say is what the code has: the names that they import, the defaults of settings, the commands.

A default in a document is written where this test finds it: as `key` (value), or in a table with the column `default`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import warnings
from dataclasses import MISSING, fields
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pytest

import consumerd
from consumerd.base.errors import NotFoundError
from consumerd.cli.main import cli
from consumerd.service.config.model import Config
from consumerd.service.config.validation import model_of
from consumerd.storage.broker import BrokerConfig
from consumerd.storage.broker import config as broker_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "*/README.md", "*/*/README.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"  # which names what was removed
]


def read(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


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

_UNITS: Final = {
    "": 1, "s": 1, "seconds": 1, "ms": 0.001, "minutes": 60, "min": 60, "h": 3600,
    "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip
_NUMBER: Final = re.compile(rf"(-?\d[\d,]*(?:\.\d+)?) ?({'|'.join(sorted(_UNITS, key=len, reverse=True))})(?!\w)")
_TABLE: Final = re.compile(r"^\| (?:option|setting|property) \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def _configuration() -> dict[str, Any]:
    """Each key of the configuration with its table, and its default."""
    found: dict[str, Any] = {}

    def add(prefix: str, model: Any) -> None:
        for name, field in getattr(model, "model_fields", {}).items():
            found[f"{prefix}{name}"] = field.get_default(call_default_factory=True)
            add(f"{prefix}{name}.", field.annotation)

    add("", model_of(Config))
    return found


def _parameters(made: Any) -> dict[str, Any]:
    """The keyword arguments of a class or function, and their defaults."""
    return {name: each.default for name, each in inspect.signature(made).parameters.items()}


def _broker_properties() -> dict[str, Any]:
    defaults = {each.name: each.default for each in fields(BrokerConfig) if each.default is not MISSING}
    effective = {name: defaults.get(field) for name, (field, _) in broker_config._PROPERTIES.items()}
    return dict.fromkeys(broker_config.WITHOUT_EFFECT) | effective


def defaults_for(document: str, before: str) -> Mapping[str, Any]:
    """What a table with the column `default` is about: its document, and the text before it, say so."""
    if document == "docs/broker.md":
        return _broker_properties()
    named = re.findall(r"(?:^### (\w+)$|\(`?v08=consumerd\.(\w+)|`v08=consumerd\.(\w+))", before, re.MULTILINE)
    name = next(filter(None, named[-1]))
    handlers = {each.name: each for each in entry_points(group="consumerd.handlers")}
    return _parameters(handlers[name].load() if name in handlers else getattr(consumerd, name))


def same(text: str, default: Any) -> bool | None:
    """Whether a text is this default; None for words, which no test can judge."""
    text = text.strip().strip("*")
    if isinstance(default, Enum):
        default = default.name.lower()
    plain = text.strip("`").strip('"')
    if plain in ("true", "false"):
        return bool(default is (plain == "true"))
    if found := _NUMBER.fullmatch(plain):
        number = float(found[1].replace(",", "")) * _UNITS[found[2]]
        return isinstance(default, int | float) and abs(number - default) < 1e-9
    return None if not text.startswith("`") or " " in text else plain == default


def tables(document: str) -> Iterator[tuple[str, str, Any]]:
    """Place, text and default for each value in a column `default`."""
    text = read(document)
    for head in re.finditer(
        r"^\| (?:option|setting|property) \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE
    ):
        defaults = defaults_for(document, text[: head.start()])
        for row in head[1].splitlines():
            names, value = re.findall(r"`([\w.]+)`", row.split("|")[1]), row.split("|")[2].strip()
            values = re.split(r", (?!\d{3}\b)", value)
            values = [value] if len(values) > len(names) else values
            unit = re.search(r" \w+$", values[-1])
            if len(values) == len(names) and unit and all(re.fullmatch(r"[\d.]+", each) for each in values[:-1]):
                values = [*(each + unit[0] for each in values[:-1]), values[-1]]  # 120, 30 s
            for name, shown in zip(names, values, strict=False):
                assert name in defaults, f"{document}: {name} is not a setting"
                yield f"{document}: {name}", shown, defaults[name]


def sentences(document: str) -> Iterator[tuple[str, str, Any]]:
    """Place, text and default for each `table.key` (value); pages about one table, or the library, leave it out."""
    text = read(document)
    defaults = _configuration()
    alone = document in ("docs/handlers.md", "docs/library.md")
    if document == "docs/handlers.md":
        defaults |= {
            key.removeprefix("handler."): value for key, value in defaults.items() if key.startswith("handler.")
        }
    if document == "docs/library.md":
        defaults |= _parameters(consumerd.ConsumerConfig)
    for found in re.finditer(r"`([a-z_]+(?:\.[a-z_]+)*)`\s+\((-?\d[^)]*)\)", text):
        if ("." in found[1] or alone) and found[1] in defaults and (number := _NUMBER.match(found[2])):
            yield f"{document}:{line_of(text, found.start())}: {found[1]}", number[0], defaults[found[1]]


def test_numbers_are_those_of_the_code() -> None:
    judged, wrong = 0, []
    for document in DOCUMENTS:
        for place, shown, default in (*tables(document), *sentences(document)):
            verdict = same(shown, default)
            judged += verdict is not None
            if verdict is False:
                wrong.append(f"{place}: {shown}, and the code has {default!r}")
    assert wrong == []
    assert judged > 60


def test_every_number_of_the_commit_interval_is_compared() -> None:
    """A text about it says `commit.interval` (value): else a changed default leaves the sentence wrong."""
    compared = [place for document in DOCUMENTS for place, _, _ in sentences(document) if "commit" in place]
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
    assert same(text, default) is verdict
