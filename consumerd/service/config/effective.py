"""The effective configuration, and the origin of each value: the file, the environment, or a default.

A secret is known by its type: `SecretStr` in the model, `Secret` in the signature of the handler. The tables of
other rooms are not typed here; of them, and of any other text, the passwords that can be recognised are left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from consumerd.base.plugins import DECODER, MIDDLEWARE, TOKEN_PROVIDER
from consumerd.base.settings.processing import HandlerSection
from consumerd.base.settings.servers import SaslSection
from consumerd.base.settings.setting import SecretStr, Section, as_json
from consumerd.handlers.secrets import HIDDEN, shown_options, without_passwords
from consumerd.service.config.model import Config, parse
from consumerd.service.config.problems import read_document
from consumerd.service.config.subscriptions import SubscriptionSection
from consumerd.service.config.validation import DELIMITER, PREFIX

#: Tables that this model does not type, and that may hold credentials.
_UNTYPED = {("spark", "config")}


class Effective(NamedTuple):
    """One key with its value, as JSON would have it."""

    table: str
    key: str
    value: Any
    origin: str


def effective_values(path: Path) -> list[Effective]:
    """All keys of the configuration at `path`, in the order of the model. Raises ConfigError."""
    document = read_document(path)
    config = parse(document, str(path))
    names = {name.upper() for name in os.environ}
    values = []
    for table in Config.fields:
        if table == "subscriptions":
            whole = f"{PREFIX}{table}".upper() in names
            for number, each in enumerate(config.subscriptions):
                given = {} if whole else document[table][number]
                values += _of_subscription(each, given, "environment" if whole else "file")
            continue
        section = getattr(config, table)
        whole = f"{PREFIX}{table}".upper() in names
        plain = as_json(section)
        for key, value in plain.items():
            named = f"{PREFIX}{table}{DELIMITER}{key}".upper()
            if whole or named in names or any(name.startswith(f"{named}{DELIMITER}") for name in names):
                origin = "environment"
            elif key in document.get(table, {}):
                origin = "file"
            else:
                origin = "default"
            shown = HIDDEN if value and (table, key) in _UNTYPED else _shown(section, key, value)
            values.append(Effective(table, key, shown, origin))
    return values


def _of_subscription(section: SubscriptionSection, given: Mapping[str, Any], origin: str) -> list[Effective]:
    """The keys of one of `[[subscriptions]]`, in tables that are called by its name; `given` are those of the file."""
    table, values = f"subscriptions.{section.name}", []
    everything = origin == "environment"
    for key, value in as_json(section).items():
        inner = getattr(section, key)
        if not isinstance(inner, Section):
            values.append(Effective(table, key, value, origin if everything or key in given else "default"))
            continue
        for name, plain in value.items():
            there = origin if everything or name in given.get(key, {}) else "default"
            values.append(Effective(f"{table}.{key}", name, _shown(inner, name, plain), there))
    return values


def _shown(section: Any, key: str, value: Any) -> Any:
    if not value:
        return value
    if isinstance(section, HandlerSection):
        if key == "options":
            return shown_options(section.name, value)
        if key == "decoder_options":
            return shown_options(section.decoder, value, DECODER)
        if key == "middleware_options":
            return {name: shown_options(name, options, MIDDLEWARE) for name, options in value.items()}
    if isinstance(section, SaslSection) and key == "token_options":
        return shown_options(section.token_provider or "", value, TOKEN_PROVIDER)
    return without_passwords(_without_secrets(getattr(section, key, None), value))


def _without_secrets(typed: Any, plain: Any) -> Any:
    """`plain`, which is `typed` as JSON would have it, with HIDDEN for all that is of a secret type."""
    if isinstance(typed, SecretStr):
        return HIDDEN
    if isinstance(typed, Section):
        return {name: _shown(typed, name, inner) for name, inner in plain.items()}
    if isinstance(typed, tuple | list) and any(isinstance(inner, SecretStr) for inner in typed):
        return HIDDEN
    return plain
