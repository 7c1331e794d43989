"""The table of features by broker in docs/which-brokers.md, as data for the tests that compare it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from consumerd.wire.v08.apis import APIS
from consumerd.wire.v08.schema import Api, Field

PAGE: Final = Path(__file__).parents[2] / "docs" / "which-brokers.md"
_ROW: Final = re.compile(r"^\| [^|]+ \| ([\d.]+) \| `(\w+)` (\d+)(?: `(\w+)`)? \|", re.MULTILINE)
_BY_NAME: Final = {api.name: api for api in APIS.values()}


class FeatureNeed(NamedTuple):
    """One row: the first broker, as numbers, and the first version of the request that it serves.

    `field`: what this version adds to the request or the response; empty where the row names none.
    """

    broker: tuple[int, ...]
    api: Api[Any, Any]
    version: int
    field: str


def feature_needs() -> list[FeatureNeed]:
    """The rows of the table, in its order."""
    rows = _ROW.findall(PAGE.read_text("utf-8"))
    return [
        FeatureNeed(tuple(map(int, broker.split("."))), _BY_NAME[name], int(version), field)
        for broker, name, version, field in rows
    ]


def field_names(api: Api[Any, Any], version: int) -> set[str]:
    """The names of all fields of a version, in requests and responses, at any depth."""

    def names(fields: tuple[Field, ...]) -> Iterator[str]:
        for field in fields:
            if field.in_version(version):
                yield field.name
                if isinstance(field.of, tuple):
                    yield from names(field.of)

    return {*names(api.request), *names(api.response)}
