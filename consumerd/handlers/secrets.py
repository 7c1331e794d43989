"""Options of handlers as they may be shown: without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from consumerd.base.errors import HandlerLoadError
from consumerd.base.plugins import HANDLER, PluginKind, find
from consumerd.handlers.secret_options import declared_secrets

#: The text that is shown in place of a secret.
HIDDEN: Final = "(not shown)"

#: Passwords within a text: of `scheme://user:password@host`, and of `key=value` pairs as in a DSN of libpq.
_IN_URL: Final = re.compile(r"(?<=://)([^/?#@\s:]*):[^/?#\s]*@")
_IN_PAIR: Final = re.compile(r"(?i)\b(pass(?:word|wd)?|pwd|secret|token|api_?key)(\s*=\s*)('[^']*'|[^\s;&]+)")
_TELLING: Final = re.compile(r"(?i)(password|passwd|secret|token|api_?key)$")


def shown_options(name: str, options: Mapping[str, Any], kind: PluginKind = HANDLER) -> dict[str, Any]:
    """The options of the plugin `name` as they may be shown: without secrets, and without passwords within others.

    The secrets of a plugin that cannot be imported are unknown; none of its options is shown then.
    """
    try:
        secret = declared_secrets(find(kind, name))
    except HandlerLoadError:
        return {option: HIDDEN if value else value for option, value in options.items()}
    return {
        option: HIDDEN if value and option in secret else without_passwords({option: value})[option]
        for option, value in options.items()
    }


def without_passwords(value: Any) -> Any:
    """A value of a configuration without recognisable passwords, for settings that do not declare them."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if inner and _TELLING.search(str(name)) else without_passwords(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_passwords(inner) for inner in value]
    if isinstance(value, str):
        return _IN_PAIR.sub(rf"\1\2{HIDDEN}", _IN_URL.sub(rf"\1:{HIDDEN}@", value))
    return value
