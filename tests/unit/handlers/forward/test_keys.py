from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.handlers.forward.keys import key_extractor


@pytest.mark.parametrize(
    ("options", "payload", "key"),
    [
        ({"json": "id"}, b'{"id": "\xc3\xa9"}', "é".encode()),
        ({"json": "user.id"}, b'{"user": {"id": 17}}', b"17"),
        ({"json": "items.1.sku"}, b'{"items": [{}, {"sku": "x"}]}', b"x"),
        ({"json": "a"}, b'{"a": {"b": [1, true]}}', b'{"b":[1,true]}'),
        ({"json": "a"}, b'{"a": null}', None),
        ({"json": "a"}, b'{"b": 1}', None),
        ({"json": "a"}, '{"a": ["é"]}'.encode(), '["é"]'.encode()),
        ({"json": "a.b"}, b'{"a": "text"}', None),
        ({"json": "a.0"}, b'{"a": "text"}', None),
        ({"json": "a.0"}, b'{"a": 5}', None),
        ({"json": "a.9"}, b'{"a": []}', None),
        ({"json": "a"}, b"not json", None),
        ({"json": "a"}, b"\xff\xfe", None),
        ({"json": "a"}, b'{"a": "\\ud800"}', None),
        ({"json": "a"}, b"[" * 100_000, None),
        ({"regex": "id=(\\d+)"}, b"x id=42;", b"42"),
        ({"regex": "(?:a|b)=(?P<key>.)(.)?"}, b"b=12", b"1"),
        ({"regex": "id=(\\d*)"}, b"id=", None),
        ({"regex": "id=(\\d+)"}, b"nothing", None),
        ({"column": [2, 6]}, b"ab 12 rest", b"12"),
        ({"column": (0, 4)}, b"    rest", None),
        ({"column": [0, 4]}, b"abc", None),
        ({"column": [0, 3]}, b"abc", b"abc"),
    ],
)
def test_extracts_keys(options: dict[str, Any], payload: bytes, key: bytes | None) -> None:
    assert key_extractor(options)(payload) == key


@pytest.mark.parametrize("options", [{"json": "a.0.b"}, {"regex": "(.)"}, {"column": [1, 3]}])
@given(payload=st.binary(max_size=60))
def test_extracts_keys_from_any_payload(options: dict[str, Any], payload: bytes) -> None:
    key = key_extractor(options)(payload)
    assert key is None or key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of"),
        ({"json": "a", "regex": "(b)"}, "exactly one of"),
        ({"xml": "a"}, "unknown key option key.xml"),
        ({"json": ""}, "key.json = '' is invalid"),
        ({"json": 3}, "is invalid"),
        ({"regex": 3}, "is invalid"),
        ({"regex": "("}, "key.regex"),
        ({"regex": "no group"}, "has no group"),
        ({"column": [3, 3]}, "is invalid"),
        ({"column": [1]}, "is invalid"),
        ({"column": [True, 2]}, "is invalid"),
        ({"column": "0-8"}, "is invalid"),
    ],
)
def test_rejects_invalid_key_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        key_extractor(options)
