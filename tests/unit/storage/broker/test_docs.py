"""docs/broker.md tells the defaults of the code, and every property."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

from consumerd.base.settings.properties import properties_of
from consumerd.storage.broker.config import WITHOUT_EFFECT, BrokerConfig

PAGE = Path(__file__).parents[4] / "docs" / "broker.md"
#: The words that the page uses where a default is not a number.
WORDS = {
    "hostname": "the address listened on",
    "log.dir": "-",
    "log.default.flush.interval.ms": "the scheduler's interval",
    "log.retention.hours": "none",
    "num.threads": "Python's default",
    "socket.send.buffer": "left to the system",
    "socket.receive.buffer": "left to the system",
    "zk.connect": "-",
    "zk.connectiontimeout.ms": "the session timeout",
    "log.delete.policies": "none",
    "health.listen": "none",
    "telemetry.otlp.endpoint": "none",
}


def told() -> dict[str, str]:
    """The tables of the page: property -> default. Values by topic have none, and none is listed."""
    found: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        if not line.startswith("| `"):
            continue
        names, default, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
        properties = re.findall("`([^`]+)`", names)
        single = [name for name in properties if not name.startswith("topic.")]
        values = [value.strip(" *") for value in default.split(", ")] if default else []
        if set(single) <= WITHOUT_EFFECT.keys():
            values = [""] * len(single)
        assert len(values) == len(single), line
        found |= dict.fromkeys(properties, "") | dict(zip(single, values, strict=True))
    return found


def test_documents_every_property() -> None:
    assert told().keys() == properties_of(BrokerConfig).keys() | WITHOUT_EFFECT.keys()


def test_documents_the_defaults_of_the_code() -> None:
    defaults = {item.name: item.default for item in fields(BrokerConfig)}
    page = told()
    filled = properties_of(BrokerConfig)
    assert len(filled) >= 40
    for name, ((field, _),) in filled.items():
        if name.startswith("topic."):
            continue
        value = defaults[field]
        if name in WORDS:
            assert value in (None, 0, (), MISSING), f"{name} has a default in the code that has to be told: {value}"
            assert page[name] == WORDS[name]
        else:
            assert page[name] == (str(value).lower() if isinstance(value, bool) else str(value)), name
