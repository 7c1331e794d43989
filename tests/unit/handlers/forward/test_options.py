from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import HandlerLoadError
from consumerd.handlers import load_handler, plain_handler
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.settings import ForwardSettings
from consumerd.service.config.model import parse

DOCUMENT = (Path(__file__).parents[4] / "docs" / "handlers.md").read_text("utf-8")
GOOD: dict[str, Any] = {"bootstrap": ["127.0.0.1:9092"]}


def test_finds_the_handler_by_name() -> None:
    made = load_handler("forward", {
        **GOOD, "tls": {"check_hostname": True}, "sasl": {"mechanism": "PLAIN", "user": "me", "password": "secret"},
        "topics": {"a": "b"}, "key": {"json": "id"}, "codec": "zstd", "partitions": 3, "delivery_timeout": 5,
    })  # fmt: skip
    assert isinstance(plain_handler(made), ForwardHandler)
    load_handler("forward", {**GOOD, "partitions": {"a": 4, "b": 2}})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "requires the option 'bootstrap'"),
        ({"bootstrap": []}, "'bootstrap' must not be empty"),
        ({"bootstrap": ["nowhere"]}, "'nowhere' is not of the form host:port"),
        ({**GOOD, "topik": "x"}, "did you mean 'topic'"),
        ({**GOOD, "placing": "random"}, "placing must be one of keep, key, any, round_robin"),
        ({**GOOD, "codec": "brotli"}, "not 'brotli'"),
        ({**GOOD, "resume": "source"}, "resume must be committed or target"),
        ({**GOOD, "resume": "target", "headers": False}, "needs headers = true"),
        ({**GOOD, "resume": "target", "key": {"json": "id"}}, "requires placing"),
        ({**GOOD, "timestamp": "never"}, "timestamp must be source or now"),
        ({**GOOD, "key_missing": "skip"}, "key_missing must be null or fail"),
        ({**GOOD, "key": "id"}, "key must be a table"),
        ({"bootstrap": 9092}, "bootstrap must be a list of host:port, not 9092"),
        ({**GOOD, "topic": 5}, "topic must be text, not 5"),
        ({**GOOD, "topics": ["a"]}, "topics must be a table"),
        ({**GOOD, "partitions": 0}, "partitions must be a positive whole number, not 0"),
        ({**GOOD, "partitions": {"a": 4, "b": 0}}, "partitions.b must be a positive whole number, not 0"),
        ({**GOOD, "max_message_bytes": True}, "max_message_bytes must be a positive whole number of bytes, not True"),
        ({**GOOD, "delivery_timeout": float("nan")}, "delivery_timeout must be a positive number of seconds, not nan"),
        ({**GOOD, "headers": "no"}, "headers must be true or false, not 'no'"),
        ({**GOOD, "source": ""}, "source must be a non-empty name"),
        ({**GOOD, "tls": {"cert": "x"}}, "tls.cert"),
        ({**GOOD, "sasl": {"user": "me"}}, "exactly one of password and password_file"),
    ],
)
def test_names_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError) as failed:
        load_handler("forward", options)
    assert words in str(failed.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_message_bytes": 0}, "max_message_bytes must be a positive whole number of bytes, not 0"),
        ({"chunk_bytes": 0}, "chunk_bytes must be a positive whole number of bytes, not 0"),
        ({"replication_factor": 0}, "replication_factor must be a positive whole number, not 0"),
        ({"partitions": 0}, "partitions must be a positive whole number, not 0"),
        ({"partitions": {"a": 1, "b": 0}}, "partitions.b must be a positive whole number, not 0"),
    ],
)
def test_the_least_of_each_number_is_one(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ForwardSettings(**settings)
    numbers: dict[str, Any] = {key: {"a": 1} if isinstance(value, dict) else 1 for key, value in settings.items()}
    assert ForwardSettings(**numbers) != ForwardSettings()


def test_defaults_are_those_of_the_documentation() -> None:
    text = DOCUMENT.split("### forward\n", 1)[1].split("\n### ", 1)[0]
    told = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`?(?:,.*?)? \|", text, re.MULTILINE))
    settings = ForwardSettings()
    assert {name: told[name] for name in ("max_message_bytes", "chunk_bytes", "headers", "resume", "timestamp")} == {
        "max_message_bytes": str(settings.max_message_bytes),
        "chunk_bytes": str(settings.chunk_bytes),
        "headers": str(settings.headers).lower(),
        "resume": settings.resume,
        "timestamp": "source" if settings.keep_timestamps else "now",
    }
    assert f"| `delivery_timeout`, `request_timeout` | {settings.delivery_timeout:.0f}, 30 |" in text


def test_loads_the_example_of_the_documentation() -> None:
    example = DOCUMENT.split("### forward\n\n```toml\n", 1)[1].split("```", 1)[0]
    config = parse({"group": {"id": "g", "topics": {"t": 1}}, **tomllib.loads(example)}, "docs/handlers.md")
    assert isinstance(plain_handler(load_handler(config.handler.name, config.handler.options)), ForwardHandler)
