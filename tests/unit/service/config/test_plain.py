"""What is validated without pydantic, and what is left to it. That both agree, `tests/property` has."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from consumerd.base.settings.kind import StartText
from consumerd.base.settings.setting import Bytes, Field, Seconds, SecretStr, Section
from consumerd.service.config.model import Config
from consumerd.service.config.plain import parse_plainly


class Inner(Section):
    text: str = "x"


class Free(Section):
    extra = True


class Whole(Section):
    required: str
    text: str = Field("", min_length=2, max_length=3)
    odd: str = Field("", pattern="a+")
    number: Seconds = 1.0
    size: Bytes | None = None
    bounded: int = Field(1, ge=1, le=9)
    flag: bool = False
    choice: Literal["a", "b", 1] = "a"
    start: Annotated[str, StartText()] = "latest"
    path: Path | None = None
    secret: SecretStr | None = None
    secret_file: Path | None = None
    words: tuple[str, ...] = ()
    several: str | int = ""
    pair: tuple[int, int] = (1, 2)
    names: list[str] = Field(default_factory=list, min_length=1)
    counts: dict[str, Bytes] = Field(default_factory=dict)
    numbered: dict[int, int] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    table: Inner | None = None
    free: Free | None = None

    def rules(self) -> Any:
        if self.flag and self.choice == "b":
            yield "flag and choice do not go together"


@pytest.mark.parametrize(
    ("key", "value", "becomes"),
    [
        ("text", "abc", "abc"),
        ("number", 2, 2.0),
        ("number", 0.5, 0.5),
        ("size", 1 << 60, 1 << 60),
        ("bounded", 9, 9),
        ("flag", True, True),
        ("choice", 1, 1),
        ("start", "earliest", "earliest"),
        ("path", "/var", Path("/var")),
        ("secret", "hush", SecretStr("hush")),
        ("words", ["a"], ("a",)),
        ("names", ["a", "b"], ["a", "b"]),
        ("counts", {"a": 1}, {"a": 1}),
        ("options", {"a": [{"b": math.inf}]}, {"a": [{"b": math.inf}]}),
        ("table", {"text": "y"}, Inner(text="y")),
        ("free", {"self": 1}, Free(self=1)),
    ],
)
def test_takes_a_value_of_the_type_that_its_key_has_in_a_file(key: str, value: Any, becomes: Any) -> None:
    found = parse_plainly(Whole, {"required": "r", key: value})
    assert found is not None
    assert (getattr(found, key), type(getattr(found, key))) == (becomes, type(becomes))
    assert found.given == {"required", key}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", "a"), ("text", "abcd"), ("text", 5), ("odd", "a"), ("number", 0), ("number", "1"), ("number", True),
        ("number", math.nan), ("number", math.inf), ("number", 10**400), ("size", 1.0), ("size", True), ("size", None),
        ("bounded", 0), ("bounded", 10), ("flag", 1), ("flag", "true"), ("choice", "c"), ("choice", True),
        ("choice", 1.0), ("start", "soon"), ("path", ""), ("path", 1), ("secret", ""), ("secret", 1), ("words", "a"),
        ("words", [1]), ("several", "a"), ("pair", [1, 2]), ("names", []), ("names", "ab"), ("names", [1]),
        ("counts", {"a": 0}), ("counts", [1]), ("numbered", {"1": 1}), ("options", []), ("table", {"text": 1}),
        ("table", {"txt": "y"}), ("table", []), ("free", "x"), ("unknown", 1),
    ],
)  # fmt: skip
def test_leaves_every_other_value_to_pydantic(key: str, value: Any) -> None:
    assert parse_plainly(Whole, {"required": "r", key: value}) is None


@pytest.mark.parametrize(
    "document",
    [{}, {"required": "r", "flag": True, "choice": "b"}, {"required": "r", "secret": "a", "secret_file": "/f"}],
    ids=["missing", "rule", "ambiguous"],
)
def test_leaves_what_breaks_a_rule_to_pydantic(document: dict[str, Any]) -> None:
    assert parse_plainly(Whole, document) is None


def test_takes_the_example() -> None:
    example = Path(__file__).parents[4] / "config.example.toml"
    assert parse_plainly(Config, tomllib.loads(example.read_text("utf-8"))) is not None
