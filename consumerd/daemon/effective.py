"""What a configuration comes to, and where each value comes from: the file, the environment, or a default."""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

from consumerd.daemon.config import Config, load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HIDDEN = "(not shown)"
_PREFIX, _DELIMITER = "CONSUMERD_", "__"
#: Keys whose values are nobody's business.
_SECRETS = {("zookeeper", "auth"), ("kafka", "sasl"), ("spark", "config")}


class Effective(NamedTuple):
    """One key with its value, as JSON would have it."""

    table: str
    key: str
    value: Any
    origin: str


def effective_values(path: Path, environ: Mapping[str, str] | None = None) -> list[Effective]:
    """All keys of the configuration at `path`, in the order of the model. Raises ConfigError."""
    config = load(path)
    document = tomllib.loads(path.read_text("utf-8"))
    names = {name.upper() for name in (os.environ if environ is None else environ)}
    values = []
    for table in Config.model_fields:
        section = getattr(config, table)
        whole = f"{_PREFIX}{table}".upper() in names
        for key, value in section.model_dump(mode="json").items():
            named = f"{_PREFIX}{table}{_DELIMITER}{key}".upper()
            if whole or named in names or any(name.startswith(f"{named}{_DELIMITER}") for name in names):
                origin = "environment"
            elif key in document.get(table, {}):
                origin = "file"
            else:
                origin = "default"
            if (table, key) in _SECRETS and value:
                value = HIDDEN
            values.append(Effective(table, key, _without_passwords(value), origin))
    return values


def _without_passwords(value: Any) -> Any:
    """The value without what tables within it call a password (options of Spark's pipelines may have one)."""
    if not isinstance(value, dict):
        return value
    return {
        name: HIDDEN if name.lower().endswith("password") and inner else _without_passwords(inner)
        for name, inner in value.items()
    }
