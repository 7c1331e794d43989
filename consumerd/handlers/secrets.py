"""Options of handlers that are secret: declared by their type, so that nothing has to be guessed from their names.

Strategy: an option `x` of the type `Secret` can be given as `x_file`, too, by the rule of all secrets
(`consumerd.base.credentials`); the handler gets `x` in either case. One that has an option `x_file` itself reads it
itself. Where options are shown, secrets are not.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from consumerd.base.credentials import read_secret
from consumerd.base.errors import HandlerLoadError
from consumerd.base.plugins import HANDLER, PluginKind, find

_T = TypeVar("_T")

_MARK: Final = object()

#: The type of an option that is never shown: `def __init__(self, dsn: Secret[str])`. The handler gets the plain value.
Secret = Annotated[_T, _MARK]

#: The text that is shown in place of a secret.
HIDDEN: Final = "(not shown)"

#: Passwords within a text: of `scheme://user:password@host`, and of `key=value` pairs as in a DSN of libpq.
_IN_URL: Final = re.compile(r"(?<=://)([^/?#@\s:]*):[^/?#\s]*@")
_IN_PAIR: Final = re.compile(r"(?i)\b(pass(?:word|wd)?|pwd|secret|token|api_?key)(\s*=\s*)('[^']*'|[^\s;&]+)")
_TELLING: Final = re.compile(r"(?i)(password|passwd|secret|token|api_?key)$")


def with_secret_files(name: str, plugin: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` for the handler `name`, with the content of files in place of the options that name them.

    Raises HandlerLoadError, ConfigError.
    """
    read = dict(options)
    secrets = declared_secrets(plugin) if any(option.endswith("_file") for option in options) else set()
    for secret in sorted(secrets):
        option = f"{secret}_file"
        if option not in read or option in _parameters(plugin):
            continue
        if secret in read:
            raise HandlerLoadError(f"handler {name!r}: give exactly one of the options {secret!r} and {option!r}.")
        path = read.pop(option)
        if not isinstance(path, str):
            raise HandlerLoadError(f"handler {name!r}: the option {option!r} must be a path.")
        read[secret] = read_secret(Path(path), f"handler.options.{option}")
    return read


def _parameters(plugin: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(plugin).parameters


def declared_secrets(plugin: Any) -> set[str]:
    """The options of a class or factory that have a `Secret` type."""
    target = plugin.__init__ if inspect.isclass(plugin) else plugin
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name that only type checkers import: every text that has the word will do
        hints = getattr(target, "__annotations__", {})
    return {name for name, hint in hints.items() if _is_secret(hint)}


def _is_secret(hint: Any) -> bool:
    if isinstance(hint, str):
        return re.search(r"\bSecret\[", hint) is not None
    return _MARK in getattr(hint, "__metadata__", ()) or any(_is_secret(part) for part in typing.get_args(hint))


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
