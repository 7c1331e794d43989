"""The configurations in docs/handlers.md are valid, and name options that the handlers have."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.plugins import HANDLER
from consumerd.handlers import load_handler
from consumerd.service.config.model import parse

DOCUMENT = Path(__file__).parents[3] / "docs" / "handlers.md"
BUILT_IN = {point.name for point in entry_points(group=HANDLER.group) if point.value.startswith("consumerd.")}


def configurations() -> list[dict[str, Any]]:
    blocks = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return [tables for tables in map(tomllib.loads, blocks) if tables.get("handler", {}).get("name") in BUILT_IN]


@pytest.mark.parametrize("tables", configurations(), ids=lambda tables: tables["handler"]["name"])
def test_configurations_are_valid(tables: dict[str, Any]) -> None:
    group = {"id": "g", "topics": {"t": 1}}
    config = parse({"group": group, "zookeeper": {"connect": "127.0.0.1:2181"}, **tables}, "a test", environment=False)
    load_handler(config.handler.name, config.handler.options)


def test_every_handler_is_in_the_table() -> None:
    text = DOCUMENT.read_text().partition("\n## Built-in handlers\n")[2]
    assert set(re.findall(r"^\| `(\w+)` \| [a-zN0]", text.partition("\n###")[0], re.MULTILINE)) == BUILT_IN


def test_every_handler_with_options_of_its_own_has_an_example() -> None:
    assert {tables["handler"]["name"] for tables in configurations()} >= BUILT_IN - {"print", "null"}
