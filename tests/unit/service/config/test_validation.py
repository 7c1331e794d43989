"""Values of files and of the environment, as the declared types have them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from consumerd.base.settings.kind import Ge
from consumerd.base.settings.setting import Field, Seconds, SecretStr, Section
from consumerd.service.config.validation import InvalidValuesError, overridden, table_of


class Inner(Section):
    """A table within another one, which a text may stand for."""

    short = "word"

    word: str = Field(min_length=2, max_length=3)


class Whole(Section):
    """A table of every type."""

    number: int = 1
    seconds: Seconds = 1.0
    truth: bool = False
    choice: Literal["a", "b"] = "a"
    version: Literal[0, 1] | None = None
    secret: SecretStr | None = None
    secret_file: Path | None = None
    path: Path | None = None
    texts: tuple[str, ...] = ()
    counts: dict[str, Annotated[int, Ge(1)]] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    mixed: int | str = 0
    within: Inner | None = None
    several: tuple[Inner, ...] = ()
    renamed: str = Field("x", alias="from")


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("number", "12", 12),
        ("number", 12.0, 12),
        ("seconds", "0.5", 0.5),
        ("seconds", 2, 2.0),
        ("truth", "True", True),
        ("truth", "off", False),
        ("truth", 1, True),
        ("version", "1", 1),
        ("secret", "hush", SecretStr("hush")),
        ("path", "/a", Path("/a")),
        ("texts", ["a"], ("a",)),
        ("counts", {"t": "2"}, {"t": 2}),
        ("options", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ("mixed", "x", "x"),
        ("within", {"word": "abc"}, Inner(word="abc")),
        ("within", "ab", Inner(word="ab")),
        ("several", [{"word": "ab"}], (Inner(word="ab"),)),
    ],
)
def test_makes_the_declared_type_of_a_value(key: str, given: Any, value: Any) -> None:
    made = getattr(table_of(Whole, {key: given}), key)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("key", "given", "says"),
    [
        ("number", True, "number: must be a whole number, not True"),
        ("number", 1.5, "number: must be a whole number, not 1.5"),
        ("number", "x", "number: must be a whole number"),
        ("seconds", "nan", "seconds: must be a positive number of seconds"),
        ("truth", "maybe", "truth: must be true or false"),
        ("truth", 2, "truth: must be true or false, not 2"),
        ("choice", "c", "choice: must be a or b"),
        ("secret", 1, "secret: must be a text"),
        ("path", ["a"], "path: must be a text"),
        ("texts", "a", "texts: must be a list"),
        ("texts", [1], "texts.0: must be a text"),
        ("counts", {"t": 0}, "counts.t: must be a positive whole number, not 0"),
        ("counts", [1], "counts: must be a table"),
        ("mixed", [1], "mixed: has a type that is not allowed"),
        ("within", 1, "within: must be a table"),
        ("within", {}, "within.word: missing"),
        ("within", {"word": "a"}, "within.word: must have 2 or more"),
        ("within", {"word": "abcd"}, "within.word: must have at most 3 characters"),
        ("several", {"word": "ab"}, "several: must be an array of tables: begin each of them with [[several]]"),
        ("renamed", "x", "renamed: unknown"),
    ],
)
def test_says_what_is_allowed(key: str, given: Any, says: str) -> None:
    with pytest.raises(InvalidValuesError) as raised:
        table_of(Whole, {key: given})
    assert str(raised.value) == says


def test_names_every_wrong_value_at_once() -> None:
    with pytest.raises(InvalidValuesError) as raised:
        table_of(Whole, {"number": "x", "within": {"wrd": "ab"}, "from": "y"})
    assert [(each.path, each.kind) for each in raised.value.wrong] == [
        (("number",), "value"), (("within", "wrd"), "unknown"), (("within", "word"), "missing"),
    ]  # fmt: skip


class Root(Section):
    """A document."""

    whole: Whole = Field(default_factory=Whole)


def test_variables_are_merged_with_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "CONSUMERD_WHOLE": '{"number": 2, "truth": true}',
        "consumerd_whole__number": "3",
        "CONSUMERD_WHOLE__COUNTS": '{"t": 4}',
        "CONSUMERD_WHOLE__COUNTS__U": "5",
        "CONSUMERD_WHOLE__OPTIONS__A": "[6]",
        "CONSUMERD_WHOLE__OPTIONS__B": "[7",
        "CONSUMERD_WHOLE__FROM": "8",
        "CONSUMERD_OTHER__NUMBER": "9",
        "CONSUMERD_WHOLE__TEXTS": "not JSON",
    }.items():
        monkeypatch.setenv(name, text)
    merged, unreadable = overridden(Root, {"whole": {"number": 0, "counts": {"t": 0, "v": 1}}})
    assert merged == {
        "whole": {
            "number": "3", "truth": True, "counts": {"t": 4, "v": 1, "u": "5"}, "options": {"a": [6], "b": "[7"},
            "from": "8",
        }
    }  # fmt: skip
    assert unreadable == ["CONSUMERD_WHOLE__TEXTS"]
    made = table_of(Root, merged).whole
    assert (made.number, made.counts, made.renamed) == (3, {"t": 4, "v": 1, "u": 5}, "8")
