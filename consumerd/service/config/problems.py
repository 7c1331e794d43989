"""The problems of a configuration: all of them at once, each with the line of the file or the environment variable.

Strategy: validation collects the problems of single keys. Rules about several keys are sentences that a table yields
(`Section.rules`), so that one broken rule does not hide the next; they are checked once all keys of the table are
valid. Each problem is placed where its user can mend it: at the variable that set the value, else at the key's line,
else at the line of the table. Values are never part of a problem, since they may be passwords.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from consumerd.base.errors import ConfigError, ConsumerdError, ExitCode, did_you_mean, nearest
from consumerd.base.settings.setting import Rule, Section
from consumerd.service.config.key_lines import KeyPath, key_lines
from consumerd.service.config.validation import (
    DELIMITER,
    PREFIX,
    InvalidValuesError,
    Wrong,
    known_keys,
    overridden,
    table_of,
    variables,
)

_Section = TypeVar("_Section", bound=Section)

#: A variable as shells and templates of other programs write it.
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::?[-=?+][^}]*)?\}")


class TomlDocument(dict[str, Any]):
    """The tables of a TOML file, and the lines of its keys."""

    def __init__(self, tables: Mapping[str, Any], text: str) -> None:
        super().__init__(tables)
        self._text = text

    @cached_property
    def lines(self) -> Mapping[KeyPath, int]:
        """The line of each key, counted from 1."""
        return key_lines(self._text)


def read_document(path: Path) -> TomlDocument:
    """The tables of a TOML file, unchecked. Raises ConfigError if it is not TOML."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows begin a file with a byte order mark
        return TomlDocument(tomllib.loads(text), text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration {path} is not TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigError(f"the configuration {path} is nested too deeply: use fewer levels.") from error
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text (byte {error.start}).") from error


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: a sentence, and the line or the environment variable that causes it, if one does.

    `table` is the table that it is about, None for a rule about several. `exit_code` is that of the problem alone.
    """

    sentence: str
    table: str | None = field(default=None, compare=False)
    line: int | None = None
    variable: str | None = None
    exit_code: ExitCode = field(default=ExitCode.CONFIG, compare=False)

    def format(self, source: str) -> str:
        """One line: `FILE:LINE: sentence`, or the variable in place of file and line."""
        where = source if self.line is None else f"{source}:{self.line}"
        if self.variable is not None:
            where = f"environment variable {self.variable}"
        return f"{where}: {' '.join(self.sentence.split())}"


class ConfigProblemsError(ConfigError):
    """The problems of one configuration, in the order of the file, then of the environment; `str` has a line for each.

    The exit code is CONFIG, unless all problems have the same other one.
    """

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        unique = dict.fromkeys(problems)
        self.problems = sorted(unique, key=lambda each: (each.variable or "", each.line or 0))
        super().__init__("\n".join(each.format(source) for each in self.problems))
        codes = {each.exit_code for each in self.problems}
        self.exit_code = codes.pop() if len(codes) == 1 else ExitCode.CONFIG  # type: ignore[misc]


def problem_of_error(error: ConsumerdError, path: KeyPath, source: str, document: Mapping[str, Any]) -> Problem:
    """The problem of a check of the table or key at `path`: its sentence, at the key of that table which it names."""
    sentence = str(error).removeprefix(f"{source}: ")
    table = path[:-1] if path[0] == "subscriptions" else path[:1]
    line, variable = _place_of_rule(table, sentence, document)
    if (line, variable) == _place(table, document):
        line, variable = _place(path, document)
    return Problem(sentence, str(path[0]), line, variable, error.exit_code)


def validated(
    table: type[_Section],
    document: Mapping[str, Any],
    source: str,
    *,
    environment: bool = True,
    problems: Sequence[Problem] = (),
) -> _Section:
    """Make a `table` of a whole `document`, under the environment. Raises ConfigProblemsError with all `problems`."""
    found, values = [*problems], document
    if environment:
        values, names = overridden(table, document)
        found += _unreadable(names)
        if names:
            raise ConfigProblemsError(source, found)
    try:
        made = table_of(table, values)
    except InvalidValuesError as error:
        raise ConfigProblemsError(source, [*found, *problems_of(error.wrong, table, document)]) from None
    if found:
        raise ConfigProblemsError(source, found)
    return made


def problems_of(wrong: Iterable[Wrong], table: type[Section], document: Mapping[str, Any]) -> list[Problem]:
    """The problems of the values of a `document`, which was validated as a `table`."""
    wrong = list(wrong)
    corrected = {  # missing keys that stand there misspelt
        (*path, nearest(str(key), known_keys(table, tuple(path))) or "")
        for *path, key in (each.path for each in wrong if each.kind == "unknown")
    }
    kept = (each for each in wrong if each.kind != "missing" or each.path not in corrected)
    return [_problem(each, table, document) for each in kept]


def _problem(wrong: Wrong, table: type[Section], document: Mapping[str, Any]) -> Problem:
    path, kind, says = wrong
    if isinstance(says, Rule):
        return Problem(f"{says.sentence}.", str(says.place[0]), *_place(says.place, document))
    of, where = str(path[0]) if path else None, shown_key(path, document)
    if kind == "rule":  # without a table, the sentence names the keys of several
        sentence = f"{where!r} is wrong: {_begun_lower(says)}." if where else f"{says}."
        return Problem(sentence, of, *_place_of_rule(path, says, document))
    if kind == "unknown":
        hint = did_you_mean(str(path[-1]), known_keys(table, path[:-1]), ", which is not a key of this table.")
        sentence = f"unknown key {where!r}{hint}"
    else:
        sentence = f"{where!r} {says or 'is required'}."
    return Problem(sentence, of, *_place(path, document))


def _unreadable(names: Iterable[str]) -> list[Problem]:
    """The problems of variables of the environment that should hold JSON, and do not, or nest it too deeply."""
    says = (
        "the value cannot be read: write lists and tables as JSON, as in "
        "CONSUMERD_KAFKA__BOOTSTRAP='[\"kafka1:9092\"]'."
    )
    tables = {name: name.lower().removeprefix(PREFIX.lower()).partition(DELIMITER)[0] for name in names}
    return [Problem(says, table, variable=name) for name, table in tables.items()]


def shown_key(path: KeyPath, document: Mapping[str, Any]) -> str:
    """A key as it is called in errors: a subscription by its name, where it has one."""
    parts = list(path)
    if parts[:1] == ["subscriptions"] and len(parts) > 1:
        try:
            name = document["subscriptions"][parts[1]]["name"]
        except (KeyError, IndexError, TypeError):
            name = None
        if isinstance(name, str) and name:
            parts[1] = name
    return ".".join(map(str, parts))


def _begun_lower(sentence: str) -> str:
    """The sentence as the continuation of another one; an acronym stays."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def _place_of_rule(path: KeyPath, sentence: str, document: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """The place of the first key that a rule of the table at `path` names, else that of the table."""
    for name in re.findall(r"[a-z_0-9]+(?:\.[a-z_0-9]+)*", sentence):
        named = tuple(name.split("."))
        for candidate in ((*path, *named), named if len(named) > 1 else path):
            if len(candidate) > len(path) and (_variable(candidate) or candidate in _lines(document)):
                return _place(candidate, document)
    return _place(path, document)


def _place(path: KeyPath, document: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """The line or the variable that sets the value at `path`, or that of the nearest table around it."""
    if (variable := _variable(path)) is not None:
        return None, variable
    lines = _lines(document)
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]], None
        if inner := [name for name, at in variables() if len(at) > length and at[:length] == path[:length]]:
            return None, min(inner)
    return None, None


def _lines(document: Mapping[str, Any]) -> Mapping[KeyPath, int]:
    return document.lines if isinstance(document, TomlDocument) else {}


def _variable(path: KeyPath) -> str | None:
    """The environment variable whose value has the key at `path`."""
    setting = [(name, path[len(at) :]) for name, at in variables() if at == path[: len(at)]]
    return next((name for name, rest in reversed(setting) if not rest or _has(os.environ[name], rest)), None)


def _has(text: str, path: KeyPath) -> bool:
    """Whether the JSON `text` has a value at `path`. A path into a list counts, at any index."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return isinstance(value, list)
    return True


def unknown_variables(whole: type[Section]) -> list[Problem]:
    """The problems of CONSUMERD_ variables that do not name a table."""
    problems = []
    for name, (table, *within) in variables():
        near = None if table in whole.fields else nearest(table, whole.fields, cutoff=0.6 if within else 0.8)
        if table not in whole.fields and (within or near):  # without a key it may belong to another program
            meant = f"{name[: len(PREFIX)]}{(near or '').upper()}{DELIMITER if within else ''}"
            said = f", did you mean {meant}...?" if near else "."
            problems.append(Problem(f"there is no table of this name{said}", variable=name))
    return problems


def unexpanded_variables(document: Mapping[str, Any]) -> list[Problem]:
    """The problems of values that hold `${NAME}`: variables are not expanded, so such a text is never meant.

    Topic filters and pipelines may have it. So may options of handlers, which can be templates or scripts, unless all
    of the value, or a URL, has that form.
    """
    return list(_unexpanded(document, (), document))


def _unexpanded(value: Any, path: KeyPath, document: Mapping[str, Any]) -> Iterator[Problem]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in ("whitelist", "blacklist") and (key != "spark" or path):
                yield from _unexpanded(inner, (*path, key), document)
    elif isinstance(value, str) and _VARIABLE.search(value):
        of_handler = "options" in path
        if (of_handler and not (_VARIABLE.fullmatch(value) or "://" in value)) or _variable(path):
            return
        shown = ".".join(str(part) for part in path if isinstance(part, str))
        remedy = "write the value"
        if path[0] != "subscriptions" and len(path) > 1:
            name = DELIMITER.join(str(part) for part in path[:3] if isinstance(part, str)).upper()
            remedy += f", or remove the key and set the environment variable {PREFIX}{name}"
            remedy += " to all options as JSON" if of_handler else ""
        sentence = f"{shown!r} has the form ${{NAME}}, and variables are not expanded in this file: {remedy}."
        yield Problem(sentence, str(path[0]), *_place(path, document))
