"""Rules for every schema, on which the codec relies."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from consumerd.wire.v08 import APIS, Api, Field, FieldType, apis
from consumerd.wire.v08.structures import UNKNOWN_TAGS
from tests.support import message_types

#: The newest versions that brokers up to 4.1 serve; the oldest that 4.x still has is among them for each.
NEWEST = {0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5, 17: 1, 18: 4}
NEWEST |= {19: 7, 20: 6, 22: 6, 23: 4, 32: 4, 36: 2}


def structures(fields: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
    yield fields
    for field in fields:
        if isinstance(field.of, tuple) and field.of:
            yield from structures(field.of)


EVERY = [
    pytest.param(api, fields, id=f"{api.name}-{direction}-{number}")
    for api in APIS.values()
    for direction in ("request", "response")
    for number, fields in enumerate(structures(getattr(api, direction)))
]


def test_keys_and_versions_are_those_of_the_guide() -> None:
    assert set(range(21)) <= set(APIS)
    assert all(api.key == key for key, api in APIS.items())
    assert {key: APIS[key].versions[1] for key in NEWEST} == NEWEST
    assert all(api.versions[0] == 0 for api in APIS.values())


@pytest.mark.parametrize(("api", "fields"), EVERY)
def test_field_names_are_unique_in_each_version(api: Api[Any, Any], fields: tuple[Field, ...]) -> None:
    for version in range(api.versions[0], api.versions[1] + 1):
        names = [field.name for field in fields if field.in_version(version)]
        assert len(names) == len(set(names))
        assert UNKNOWN_TAGS not in names


@pytest.mark.parametrize(("api", "fields"), EVERY)
def test_fields_are_complete(api: Api[Any, Any], fields: tuple[Field, ...]) -> None:
    for field in fields:
        assert field.help, field.name
        assert field.help == field.help.strip()
        assert field.since <= (api.versions[1] if field.until is None else field.until) <= api.versions[1], field.name
        assert (field.of != ()) is (field.type in (FieldType.ARRAY, FieldType.STRUCT)), field.name
        assert not isinstance(field.default, list | dict), f"{field.name}: a default that can change"
        if field.of in (FieldType.ARRAY, FieldType.STRUCT):
            raise AssertionError(f"{field.name}: arrays hold simple types or fields")


@pytest.mark.parametrize(("api", "fields"), EVERY)
def test_tagged_fields_have_defaults_and_flexible_versions(api: Api[Any, Any], fields: tuple[Field, ...]) -> None:
    tagged = [field for field in fields if field.tag is not None]
    assert len({field.tag for field in tagged}) == len(tagged)
    for field in tagged:
        assert api.flexible is not None
        assert field.since >= api.flexible
        # Of a structure `None` says that it is not there, of an array `()`.
        assert (field.default is None) is (field.type is FieldType.STRUCT or field.null_in(field.since))
        assert (field.default == ()) is (field.type is FieldType.ARRAY)


def test_each_api_has_the_types_of_its_messages() -> None:
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(apis.__path__, f"{apis.__name__}."):
        found |= import_module(module.name).__annotations__
    types = [
        "Api[Any, Any]"
        if api.key in message_types.UNTYPED
        else f"Api[bodies.{api.name}Request, bodies.{api.name}Response]"
        for api in APIS.values()
    ]
    assert sorted(found.values()) == sorted(types)


def test_types_of_messages_are_those_of_the_schemas() -> None:
    written = message_types.MODULE.read_text(encoding="utf-8")
    assert written == message_types.source(), "run python -m tests.support.message_types"
