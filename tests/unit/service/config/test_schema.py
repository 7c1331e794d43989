"""The JSON Schema of configurations accepts what the model accepts, and names what it does not."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from consumerd.cli.main import run
from consumerd.service.config.model import Config, SparkTable
from consumerd.service.config.schema import config_schema
from consumerd.spark.spec_example import whole_example
from consumerd.spark.spec_model import SparkSection

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    made = config_schema({"spark": SparkSection})
    Draft7Validator.check_schema(made)
    return made


def errors(schema: dict[str, Any], text: str) -> list[str]:
    """The place at which the schema rejects a document, and the keyword that does."""
    found = Draft7Validator(schema).iter_errors(tomllib.loads(text))
    return sorted(f"{'.'.join(map(str, error.path))}: {error.validator}" for error in found)


def snippets() -> list[Any]:
    """The configurations in the documents, parts included."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for match in re.finditer(r"^( *)```toml\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL):
            text = re.sub(rf"^{match[1]}", "", match[2], flags=re.MULTILINE)
            if set(tomllib.loads(text)) & Config.fields.keys():
                line = path.read_text()[: match.start()].count("\n") + 1
                found.append(pytest.param(text, id=f"{path.name}:{line}"))
    return found


def test_accepts_the_example_with_every_key(schema: dict[str, Any]) -> None:
    text = (ROOT / "config.example.toml").read_text()
    assert errors(schema, text) == []
    every = re.sub(r"^# (?=\[|[a-z_]+ = |\"[a-z.]+\" = )", "", text, flags=re.MULTILINE)
    document = tomllib.loads(every)
    assert document["kafka"]["sasl"]["password_file"]
    # Keys without default and example show an empty text, whatever their type; required keys are there.
    shown_empty = {"group", "kafka", "spark", "zookeeper"}
    assert {each.split(".")[0].rstrip(":") for each in errors(schema, every)} <= shown_empty
    assert not any("additionalProperties" in each for each in errors(schema, every))


@pytest.mark.parametrize("text", snippets())
def test_accepts_documented_configurations(schema: dict[str, Any], text: str) -> None:
    # A part of a file leaves out what other parts of it show.
    assert [each for each in errors(schema, text) if not each.endswith(": required")] == []


def test_finds_the_documented_configurations() -> None:
    assert len(snippets()) > 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[fetch]\nsize = 0", "fetch.size: exclusiveMinimum"),
        ("[fetch]\nsise = 1", "fetch: additionalProperties"),
        ("[fecth]", ": additionalProperties"),
        ('[log]\nlevel = "loud"', "log.level: enum"),
        ('[kafka]\nbootstrap = "h:1"', "kafka.bootstrap: type"),
        ("[kafka.sasl]\npassword = 1", "kafka.sasl.password: type"),
        ("[spark.pipelines.p.source]\na = 1\n[spark.pipelines.p.refine]\nx = 1", "spark.pipelines.p.refine"),
        ("[group]\ntopics = { t = 0 }", "group.topics.t: minimum"),
        ('[[subscriptions]]\nname = "a"\nhandler = { max_rte = 1 }', "subscriptions.0.handler: additionalProperties"),
        ('[[subscriptions]]\nname = "a"\ntopics = { t = 1 }', "subscriptions.0: required"),
    ],
)
def test_rejects_what_the_model_rejects(schema: dict[str, Any], text: str, expected: str) -> None:
    assert any(each.startswith(expected) for each in errors(schema, text)), errors(schema, text)


def test_describes_every_key_and_marks_secrets(schema: dict[str, Any]) -> None:
    tables = {name: table for name, table in schema["definitions"].items() if "properties" in table}
    assert len(tables) > 10
    for name, table in tables.items():
        assert table["description"], name
        for key, each in table["properties"].items():
            assert "description" in each or "$ref" in each, (name, key)
            assert "null" not in json.dumps(each.get("type", "")), (name, key)
    secrets = {
        f"{name}.{key}"
        for name, table in tables.items()
        for key, each in table["properties"].items()
        if '"writeOnly": true' in json.dumps(each)
    }
    assert secrets == {
        "SaslSection.password",
        "ZooKeeperSaslSection.password",
        "ZooKeeperSection.auth",
        "HealthSection.token",
        "TlsSection.key_password",
        "HealthTlsSection.key_password",
    }


def test_has_a_schema_for_each_table() -> None:
    # A table that the daemon leaves untyped must come from the room that reads it.
    tables = {name: Config.inner(name) for name in Config.fields}
    assert None not in tables.values()
    assert {name for name, table in tables.items() if table is SparkTable} == {"spark"}


def test_commands_print_schema_and_example(capsys: pytest.CaptureFixture[str], schema: dict[str, Any]) -> None:
    assert run(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema
    assert run(["config", "example"]) == 0
    out = capsys.readouterr().out
    assert out == whole_example() == (ROOT / "config.example.toml").read_text()
