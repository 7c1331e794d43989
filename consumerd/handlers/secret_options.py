"""Options of handlers that are secret: declared by their type, so that nothing has to be guessed from their names.

Strategy: an option `x` of the type `Secret` can be given as `x_file`, too, by the rule of all secrets
(`consumerd.base.credentials`); the handler gets `x` in either case. One that has an option `x_file` itself reads it
itself.
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

_T = TypeVar("_T")

_MARK: Final = object()

#: The type of an option that is never shown: `def __init__(self, dsn: Secret[str])`. The handler gets the plain value.
Secret = Annotated[_T, _MARK]


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
