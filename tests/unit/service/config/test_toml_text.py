from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from consumerd.service.config.toml_text import toml_key, toml_value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"t": 1, "a.b": 2}, '{ t = 1, "a.b" = 2 }'),
        (["x", 1.5, True], '["x", 1.5, true]'),
        (Path("/a b"), '"/a b"'),
        ('\x7f"\\\n\u00e9\U0001f600', '"\\u007f\\"\\\\\\n\u00e9\U0001f600"'),
    ],
)
def test_formats_values(value: object, text: str) -> None:
    assert toml_value(value) == text
    assert tomllib.loads(f"key = {text}")["key"] == (str(value) if isinstance(value, Path) else value)


@pytest.mark.parametrize(("key", "text"), [("a-b_1", "a-b_1"), ("", '""'), ("a b", '"a b"'), ("\u00e9", '"\u00e9"')])
def test_quotes_keys(key: str, text: str) -> None:
    assert toml_key(key) == text
    assert tomllib.loads(f"{text} = 1") == {key: 1}
