"""The values that a setting may have: one check, one form of words, one reader of texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from consumerd.base.settings.kind import Ge, Gt, Le, Lt, Unit, ValueKind, check_fields, checked, kind_of
from consumerd.base.settings.setting import Bytes, Seconds, SecondsOrZero

NAN, INF = float("nan"), float("inf")


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


@pytest.mark.parametrize(
    ("hint", "good", "bad", "words"),
    [
        (Seconds, [1, 0.5], [0, -1, NAN, "1", True, None], "a positive number of seconds"),
        (Seconds, [1_000_000_000], [INF, 1e10], "a positive number of seconds up to 1000000000"),
        (SecondsOrZero, [0, 1.5], [-0.5], "0 or a positive number of seconds"),
        (SecondsOrZero | None, [None, 0], [-1], "0 or a positive number of seconds"),
        (Bytes, [1], [0, 1.5, True], "a positive whole number of bytes"),
        (Annotated[int, Ge(1), Le(9)], [1, 9], [0, 10], "a positive whole number up to 9"),
        (Annotated[int, Ge(2)], [2], [1], "a whole number from 2"),
        (
            Annotated[float, Unit("seconds"), Ge(0.01), Le(60)],
            [0.01, 60],
            [0, 61],
            "a number of seconds from 0.01 to 60",
        ),
        (Annotated[int, Gt(0), Lt(1 << 31)], [1], [1 << 31], "a positive whole number below 2147483648"),
        (Literal["a", "b"], ["a"], ["c", 1, None], "a or b"),
        (Literal["a", "b", 3] | None, ["a", 3, None], ["c"], "one of a, b, 3"),
        (bool, [True], [1, "true", None], "true or false"),
        (Level, ["low", Level.HIGH], ["middle", 1], "low or high"),
    ],
)
def test_one_sentence_tells_of_a_bad_value(hint: Any, good: list[Any], bad: list[Any], words: str) -> None:
    kind = kind_of(hint)
    assert [kind.problem("key", value) for value in good] == [None] * len(good)
    assert [kind.problem("key", value) for value in bad] == [f"key must be {words}, not {value!r}" for value in bad]


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (Bytes, "12", 12),
        (Annotated[int, Ge(-1)], "-1", -1),
        (Literal["range", "roundrobin"], "range", "range"),
        (bool, "false", False),
        (str | None, "x", "x"),
        (Path, "/log", Path("/log")),
        (Level, "low", Level.LOW),
    ],
)
def test_reads_texts_of_property_files(hint: Any, text: str, value: object) -> None:
    assert kind_of(hint).read(text) == value


def test_reads_milliseconds_as_seconds() -> None:
    assert kind_of(Seconds).read("1500", milliseconds=True) == 1.5
    assert repr(kind_of(Seconds).read("2000", milliseconds=True)) == "2"
    with pytest.raises(ValueError, match=r"^a positive whole number of milliseconds$"):
        kind_of(Seconds).read("0.5", milliseconds=True)


@pytest.mark.parametrize("text", ["", "1_0", "1.0", " 1", "0x1", "9" * 20, "ten"])
def test_rejects_texts_that_are_not_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="a positive whole number of bytes"):
        kind_of(Bytes).read(text)


def test_limits_of_different_kinds_are_never_equal() -> None:
    """`typing` looks types up by equality: a tuple's would give one type the limits of another one."""
    assert len({Gt(0), Ge(0), Lt(0), Le(0)}) == 4
    assert kind_of(Annotated[int, Ge(0)] | None) != kind_of(Annotated[int, Gt(0)] | None)
    assert kind_of(Annotated[int, Ge(0)] | None) == ValueKind(int, optional=True, bounds=(Ge(0),))


@dataclass(frozen=True)
class Pool:
    size: Annotated[int, Ge(1)] = 4
    #: Neither is judged: no type says what is allowed.
    name: str | Path = "a"
    made: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@checked
def pool(size: Annotated[int, Ge(1)], /, *, mode: Literal["a", "b"] = "a", limit: Seconds | None = None) -> str:
    """Make one."""
    return f"{size}{mode}{limit}"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pool(size=0), "size must be a positive whole number, not 0"),
        (lambda: pool(0), "size must be a positive whole number, not 0"),
        (lambda: pool(1, mode="c"), "mode must be a or b, not 'c'"),  # type: ignore[arg-type]
        (lambda: pool(1, limit=NAN), "limit must be a positive number of seconds, not nan"),
    ],
)
def test_types_judge_arguments_and_fields(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        make()


def test_what_types_allow_is_passed_on() -> None:
    assert (pool(1, limit=None), pool(2, mode="b", limit=0.5)) == ("1aNone", "2b0.5")
    assert Pool(3, Path("x")) == Pool(3, Path("x"), None)
    assert str(signature(pool)).startswith("(size: ")
