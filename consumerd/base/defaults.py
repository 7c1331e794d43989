"""Defaults are defined once, in the settings of the room that uses them. All other code reads them here.

The configuration's tables, the library's keywords and `--help` say `default_of(FetchSettings, "max_wait")` where they
would otherwise repeat the value.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def default_of(settings: Callable[..., Any], name: str) -> Any:
    """Return the default of the field or keyword `name` of `settings`: a dataclass, or another class or function.

    Raises LookupError where there is none, or one that is created for each instance.
    """
    found = _defaults(settings).get(name, MISSING)
    if found is MISSING or found is Parameter.empty:
        raise LookupError(f"{settings.__name__} has no default for {name}")
    return found


@cache  # a table of the configuration asks for each of its keys, at every start
def _defaults(settings: Callable[..., Any]) -> dict[str, Any]:
    if is_dataclass(settings):
        return {field.name: field.default for field in fields(settings)}
    return {key: keyword.default for key, keyword in signature(settings).parameters.items()}
