"""The defaults in the documents: where each stands, what the code has, and how it is written.

A default in a document is text like any other, so that a page reads the same on code hosts. It is found by its form: as
`key` (value), or in a table with the column `default`. `python docs/defaults.py` writes those that have changed, which
`make docs` does first, and the tables of Spark's options and the broker's properties; a test fails until then.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, NamedTuple

import consumerd
from consumerd.service.config.model import Config
from consumerd.spark.source.options import OPTIONS
from consumerd.storage.broker.config import WITHOUT_EFFECT, BrokerConfig

ROOT: Final = Path(__file__).resolve().parents[1]
DOCUMENTS: Final = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "*/README.md", "*/*/README.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"  # which names what was removed
]


class Place(NamedTuple):
    """A default in a document: its name there, where it begins and ends, its text, and the value that the code has."""

    name: str
    begin: int
    end: int
    text: str
    default: Any


def read(document: str) -> str:
    """The text of a document."""
    return (ROOT / document).read_text("utf-8")


def line_of(text: str, position: int) -> int:
    """The line of a position, counted from 1."""
    return text.count("\n", 0, position) + 1


_UNITS: Final = {
    "": 1, "s": 1, "seconds": 1, "ms": 0.001, "minutes": 60, "min": 60, "h": 3600,
    "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip
_TABLE: Final = re.compile(r"^\| (?:option|setting|property) \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
_NUMBER: Final = re.compile(rf"(-?\d[\d,]*(?:\.\d+)?) ?({'|'.join(sorted(_UNITS, key=len, reverse=True))})(?!\w)")


def _configuration() -> dict[str, Any]:
    """Each key of the configuration with its table, and its default."""
    return {
        f"{table}.{key}": setting.value()
        for table, section in Config.tables().items()
        for key, setting in section.fields.items()
        if not setting.required
    }


def _parameters(made: Any) -> dict[str, Any]:
    """The keyword arguments of a class or function, and their defaults."""
    return {name: each.default for name, each in inspect.signature(made).parameters.items()}


def _broker_properties() -> dict[str, Any]:
    keys = BrokerConfig.fields.values()
    return {each.names.v07: None if each.required else each.value() for each in keys if each.names.v07}


def defaults_for(document: str, before: str) -> Mapping[str, Any]:
    """What a table with the column `default` is about: its document, and the text before it, say so."""
    if document == "docs/broker.md":
        return _broker_properties()
    headings = r"(?:^### (\w+)(?: and \w+)?$|\(`?v08=consumerd\.(\w+)|`v08=consumerd\.(\w+))"
    named = re.findall(headings, before, re.MULTILINE)
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


def _cells(row: str, begin: int) -> Iterator[tuple[str, str, int]]:
    """The names in the first cell of a row, each with its value's text and where that begins."""
    names = re.findall(r"`([\w.]+)`", row.split("|")[1])
    cell = row.split("|")[2]
    begin += row.index("|", 1) + 1
    found = list(re.finditer(r"(?:[^,]|,(?=\d{3}\b)|,(?! ))+", cell.strip()))
    if len(found) > len(names):
        found = [re.match(r".*", cell.strip())]  # type: ignore[list-item]
    begin += len(cell) - len(cell.lstrip())
    for name, each in zip(names, found, strict=False):
        yield name, each[0].strip(), begin + each.start() + len(each[0]) - len(each[0].lstrip())


def tables(document: str) -> Iterator[Place]:
    """Each value in a column `default`."""
    text = read(document)
    for head in _TABLE.finditer(text):
        defaults = defaults_for(document, text[: head.start()])
        begin = head.start(1)
        for row in head[1].splitlines(keepends=True):
            values = list(_cells(row, begin))
            unit = re.search(r" \w+$", values[-1][1]) if values else None
            plain = all(re.fullmatch(r"[\d.]+", value) for _, value, _ in values[:-1])
            for number, (name, value, at) in enumerate(values):
                assert name in defaults, f"{document}: {name} is not a setting"
                shown = value + unit[0] if unit and plain and number < len(values) - 1 else value  # 120, 30 s
                yield Place(f"{document}: {name}", at, at + len(value), shown, defaults[name])
            begin += len(row)


def sentences(document: str) -> Iterator[Place]:
    """Each `table.key` (value); pages about one table, or the library, leave it out."""
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
            begin = found.start(2)
            name = f"{document}:{line_of(text, begin)}: {found[1]}"
            yield Place(name, begin, begin + len(number[0]), number[0], defaults[found[1]])


def written(default: Any, former: str) -> str:
    """A default as the documents write it, in the unit of the `former` text where that has one and is as exact."""
    mark = former[0] if former[0] in "`*" else ""
    if isinstance(default, Enum):
        default = default.name.lower()
    if isinstance(default, bool) or not isinstance(default, int | float):
        return f"`{str(default).lower() if isinstance(default, bool) else default}`"
    found = _NUMBER.fullmatch(former.strip("`*"))
    unit = found[2] if found else ""
    sizes = ("GiB", "MiB", "KiB", "bytes") if unit in ("bytes", "KiB", "MiB", "GiB") else (unit, "s", "ms")
    numbers = {each: default / _UNITS[each] for each in sizes}
    unit = next((each for each, number in numbers.items() if number == round(number, 3) >= 1), sizes[0])
    return f"{mark}{numbers[unit]:,.10g}{' ' * bool(unit)}{unit}{mark}"


def spark_options() -> str:
    """The table of the options of Spark's data source."""
    rows = ["| option | for | |\n|---|---|---|\n"]
    for name, each in OPTIONS.items():
        requires = f"`{each.more['requires']}`" if each.more["requires"] else "both"
        if each.description:
            rows.append(f"| `{name}` | {each.more['of'] or requires} | {each.description} |\n")
    return "".join(rows)


def broker_properties(*, own: bool) -> str:
    """The table of the broker's properties: its `own` ones, or those of 0.7.2."""
    rows = ["| property | default | |\n|---|---|---|\n"]
    for each in BrokerConfig.fields.values():
        if each.names.v07 and each.more.get("own", False) is own:
            default = each.more.get("shown") or ("" if each.value() == {} else str(each.value()).lower())
            rows.append(f"| `{each.names.v07}` |{f' {default}' if default else ''} | {each.description} |\n")
    if not own:
        rows += [f"| `{name}` | | without effect: {reason} |\n" for name, reason in WITHOUT_EFFECT.items()]
    return "".join(rows)


def rewritten(document: str) -> str:
    """The text of a document with the defaults and options that the code has."""
    text = read(document)
    for place in sorted((*tables(document), *sentences(document)), key=lambda each: each.begin, reverse=True):
        if same(place.text, place.default) is False:
            text = f"{text[: place.begin]}{written(place.default, place.text)}{text[place.end :]}"
    text = re.sub(r"\| option \| for \| \|\n(?:\|.*\n)+", lambda _: spark_options(), text)
    made = iter((broker_properties(own=False), broker_properties(own=True)))
    return re.sub(r"\| property \| default \| \|\n(?:\|.*\n)+", lambda _: next(made), text)


if __name__ == "__main__":
    for each in DOCUMENTS:
        (ROOT / each).write_text(rewritten(each), "utf-8")
