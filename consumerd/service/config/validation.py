"""The validation of a configuration: values of TOML and of the environment become tables, by the declared types.

Strategy: a value is read by the type of its key, and whatever is wrong is collected with its path; where all keys of a
table are valid it is made, which checks its rules. Variables of the environment are merged with the document first.
Numbers and truth values may be texts, which they are in the environment.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from consumerd.base.settings.kind import kind_of
from consumerd.base.settings.setting import BrokenRulesError, Rule, SecretStr, Section, Setting
from consumerd.service.config.key_lines import KeyPath

PREFIX, DELIMITER = "CONSUMERD_", "__"
_Section = TypeVar("_Section", bound=Section)
_TRUTHS: Final = {
    text: value for value, texts in {True: "true 1 yes on", False: "false 0 no off"}.items() for text in texts.split()
}


class Wrong(NamedTuple):
    """A problem of the value at `path`. `says`: a rule, or what is allowed, as the end of a sentence about the key."""

    path: KeyPath
    kind: Literal["unknown", "missing", "rule", "value"]
    says: str | Rule = ""


class InvalidValuesError(ValueError):
    """All problems of the values of a table."""

    def __init__(self, wrong: list[Wrong]) -> None:
        self.wrong = wrong
        super().__init__("; ".join(f"{'.'.join(map(str, each.path))}: {each.says or each.kind}" for each in wrong))


def table_of(table: type[_Section], values: Mapping[str, Any]) -> _Section:
    """Make a table of plain values. Raises InvalidValuesError."""
    reader = _Reader()
    made = reader.table(table, values, ())
    if reader.wrong:
        raise InvalidValuesError(reader.wrong)
    return cast("_Section", made)


def overridden(table: type[Section], document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Merge the environment into the `document` of a `table`: CONSUMERD_GROUP__ID sets `[group] id`.

    Returns also the names of variables that should hold JSON, and do not.
    """
    merged: dict[str, Any] = dict(document)
    unreadable = []
    for name, path in variables():
        if path[0] not in table.fields:
            continue
        hint = hint_at(table, path)
        try:
            value = _decoded(hint, os.environ[name])
        except (ValueError, RecursionError):
            unreadable.append(name)
            continue
        for key in reversed(path):
            value = {key: value}
        merged = _merged(merged, value)
    return merged, unreadable


def variables() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The variables of the environment that may be meant for a configuration, each with its path there."""
    for name in sorted(os.environ, key=len):  # a table before the keys of it
        if name.upper().startswith(PREFIX):
            yield name, tuple(name.lower().removeprefix(PREFIX.lower()).split(DELIMITER, 2))


def hint_at(table: type[Section], path: KeyPath) -> Any:
    """The type of the value at `path`; None if there is none."""
    hint: Any = table
    for part in path:
        if isinstance(part, int):  # of an array
            continue
        inner, values = section_in(hint), _dict_in(hint)
        if inner is not None and values is None:
            name = _names(inner).get(part)
            if name is None:
                return None
            hint = inner.hints()[name]
        else:
            hint = None if values is None else get_args(values)[1]
    return hint


def section_in(hint: Any) -> type[Section] | None:
    """The table in a type, also in `X | None`, a list or a table of tables."""
    parts = (hint, *(part for each in get_args(hint) for part in (each, *get_args(each))))
    return next((each for each in parts if isinstance(each, type) and issubclass(each, Section)), None)


def known_keys(table: type[Section], path: KeyPath) -> list[str]:
    """Names of the keys that the table at `path` may hold; empty if any name may be one."""
    hint = hint_at(table, path)
    inner = section_in(hint)
    return [] if inner is None or _dict_in(hint) is not None else [*_names(inner)]


def _dict_in(hint: Any) -> Any:
    return next((each for each in (hint, *get_args(hint)) if get_origin(each) is dict), None)


def _names(table: type[Section]) -> dict[str, str]:
    """The names of fields by those in the file."""
    return {field.alias or name: name for name, field in table.fields.items()}


def _decoded(hint: Any, text: str) -> Any:
    """The value of a variable: JSON for lists and tables, and where anything is allowed. Raises ValueError."""
    parts = (hint, *get_args(hint))
    if section_in(hint) is not None or any(get_origin(each) in (dict, list, tuple) for each in parts):
        return json.loads(text)
    if hint is Any:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _merged(below[key], value) if key in below else value for key, value in above.items()}}


class _Reader:
    """Makes values by their types. A value that is None was wrong, and is named in `wrong`."""

    def __init__(self) -> None:
        self.wrong: list[Wrong] = []

    def table(self, table: type[Section], given: Any, path: KeyPath) -> Section | None:
        if isinstance(given, Section):
            return given
        if table.short is not None and isinstance(given, str):
            given = {table.short: given}
        if not isinstance(given, Mapping):
            self._refuse(path, "must be a table")
            return None
        before = len(self.wrong)
        names, hints, values = _names(table), table.hints(), {}
        for key, value in given.items():
            if key in names:
                name = names[key]
                values[name] = self._key(table.fields[name], hints[name], value, (*path, key))
            elif table.extra:
                values[key] = value
            else:
                self.wrong.append(Wrong((*path, key), "unknown"))
        self.wrong += [
            Wrong((*path, key), "missing")
            for key, name in names.items()
            if table.fields[name].required and key not in given
        ]
        if len(self.wrong) > before:
            return None
        try:
            return table(**values)
        except BrokenRulesError as error:
            self.wrong += [Wrong(path, "rule", rule) for rule in error.rules]
            return None

    def _refuse(self, path: KeyPath, says: str) -> Any:
        self.wrong.append(Wrong(path, "value", says))
        return None

    def _key(self, field: Setting, hint: Any, given: Any, path: KeyPath) -> Any:
        before = len(self.wrong)
        if field.read is not None:
            try:
                given = field.read(given)
            except ValueError as error:
                self.wrong.append(Wrong(path, "rule", str(error)))
                return None
        value = self._value(hint, given, path, field.more)
        low, high = field.more.get("min_length", 0), field.more.get("max_length")
        if len(self.wrong) == before and value is not None and (low or high is not None):
            if len(value) < low:
                return self._refuse(path, "must not be empty" if low == 1 else f"must have {low} or more")
            if high is not None and len(value) > high:
                return self._refuse(path, f"must have at most {high} characters")
        return value

    def _value(self, hint: Any, given: Any, path: KeyPath, bounds: Mapping[str, Any] | None = None) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated and get_origin(arguments[0]) in (dict, list, tuple):
            return self._value(arguments[0], given, path)
        if origin in (Union, types.UnionType):
            others = [each for each in arguments if each is not type(None)]
            if given is None and len(others) < len(arguments):
                return None
            if len(others) > 1:
                return given if self._fits(others, given) else self._refuse(path, "has a type that is not allowed")
            return self._value(others[0], given, path, bounds)
        if hint is Any:
            return given
        if isinstance(hint, type) and issubclass(hint, Section):
            return self.table(hint, given, path)
        if origin is dict:
            return self._dict(arguments[1], given, path)
        if origin in (list, tuple):
            return self._list(origin, arguments[0], given, path)
        return self._scalar(hint, given, path, bounds or {})

    @staticmethod
    def _fits(hints: list[Any], given: Any) -> bool:
        return isinstance(given, tuple(get_origin(each) or each for each in hints))

    def _dict(self, hint: Any, given: Any, path: KeyPath) -> Any:
        if not isinstance(given, Mapping):
            return self._refuse(path, "must be a table")
        return {key: self._value(hint, value, (*path, key)) for key, value in given.items()}

    def _list(self, origin: Callable[[Any], Any], hint: Any, given: Any, path: KeyPath) -> Any:
        inner = section_in(hint)
        if not isinstance(given, list | tuple) or (
            inner is not None and not all(isinstance(each, Mapping | Section) for each in given)
        ):
            what = "a list" if inner is None else f"an array of tables: begin each of them with [[{path[-1]}]]"
            return self._refuse(path, f"must be {what}")
        return origin([self._value(hint, value, (*path, index)) for index, value in enumerate(given)])

    def _scalar(self, hint: Any, given: Any, path: KeyPath, bounds: Mapping[str, Any]) -> Any:
        if hint is SecretStr or hint is str or hint is Path:
            if isinstance(given, hint):
                return given
            return hint(given) if isinstance(given, str) else self._refuse(path, "must be a text")
        kind = kind_of(hint, **bounds)
        value = _number(kind.type, given)
        if isinstance(value, kind.type) and kind.allows(value):
            return value
        # The value is shown if it is a number: others may have a password in them.
        shown = f", not {given!r}" if isinstance(given, int | float) else ""
        return self._refuse(path, f"must be {kind.words(given)}{shown}")


def _number(wanted: type, given: Any) -> Any:
    """A number or truth value of the type `wanted`, if it means one; else as it is given."""
    if wanted is bool:
        return _TRUTHS.get(str(given).lower(), given) if isinstance(given, str | int) else given
    if wanted not in (int, float) or isinstance(given, bool):
        return given
    if wanted is int and isinstance(given, float) and given.is_integer():
        return int(given)
    if isinstance(given, str | int):
        try:
            return wanted(given)
        except (ValueError, OverflowError):
            return given
    return given


def parse_valid_tables(table: type[_Section], document: Mapping[str, Any], invalid: frozenset[str]) -> _Section:
    """The configuration `table` with defaults for the `invalid` tables, so that the others can be checked further.

    Rules about several tables are not checked. Raises InvalidValuesError if another table is invalid, too.
    """

    class WithoutRules(table):  # type: ignore[misc, valid-type]
        def rules(self) -> Iterator[str | Rule]:
            return iter(())

    group = {"group": {"id": "unknown", "topics": {"unknown": 1}}} if "group" in invalid else {}
    merged, _ = overridden(table, document)
    kept = {name: value for name, value in merged.items() if name not in invalid}
    return cast("_Section", table_of(WithoutRules, kept | group))
