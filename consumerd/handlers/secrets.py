"""Options of handlers that are secret: declared by their type, so that nothing has to be guessed from their names."""

from __future__ import annotations

import inspect
import re
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from consumerd.errors import HandlerLoadError
from consumerd.handlers.plugins import HANDLER, PluginKind, find

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")

#: What is shown in place of a secret.
HIDDEN: Final = "(not shown)"
_MARK: Final = object()

#: The type of an option that is never shown: `def __init__(self, dsn: Secret[str])`. The handler gets the plain value.
Secret = Annotated[_T, _MARK]

#: Passwords within a text: of `scheme://user:password@host`, and of `key=value` pairs as in a DSN of libpq.
_IN_URL: Final = re.compile(r"(?<=://)([^/?#@\s:]*):[^/?#\s]*@")
_IN_PAIR: Final = re.compile(r"(?i)\b(pass(?:word|wd)?|pwd|secret|token|api_?key)(\s*=\s*)('[^']*'|[^\s;&]+)")
_TELLING: Final = re.compile(r"(?i)(password|passwd|secret|token|api_?key)$")


def shown_options(name: str, options: Mapping[str, Any], kind: PluginKind = HANDLER) -> dict[str, Any]:
    """The options of the plugin `name` as they may be shown: without secrets, and without passwords within others.

    What a plugin that cannot be imported would call secret is not known; nothing of its options is shown then.
    """
    try:
        secret = _declared(find(kind, name))
    except HandlerLoadError:
        return {option: HIDDEN if value else value for option, value in options.items()}
    return {
        option: HIDDEN if value and option in secret else without_passwords({option: value})[option]
        for option, value in options.items()
    }


def _declared(plugin: Any) -> set[str]:
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


def without_passwords(value: Any) -> Any:
    """A value of a configuration without the passwords that can be told in it, whoever declared nothing of them."""
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
