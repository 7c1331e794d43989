"""Parts of a producer that users name: by entry point, or as module:attribute."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from consumerd.base.errors import reason_of
from consumerd.producer.errors import PluginError


def load_plugin(kind: str, group: str, name: str) -> object:
    """The object that `name` refers to. `kind` names it in errors. Raises PluginError."""
    if ":" not in name:
        found = {point.value: point for point in entry_points(group=group) if point.name == name}
        if len(found) != 1:
            known = ", ".join(sorted({point.name for point in entry_points(group=group)})) or "none"
            what = "several packages provide" if found else "no package provides"
            raise PluginError(f"{what} the {kind} {name!r} (entry points {group}: {known}); or give module:attribute.")
        name = next(iter(found))
    module, _, attribute = name.partition(":")
    try:
        value: object = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:
        raise PluginError(f"the {kind} {name!r} cannot be loaded ({reason_of(error)}).") from error
    return value


def load_instance(kind: str, group: str, name: str) -> object:
    """Load a plugin as `load_plugin`, and make an instance if it is a class. Raises PluginError."""
    value = load_plugin(kind, group, name)
    if not isinstance(value, type):
        return value
    try:
        return value()
    except Exception as error:
        raise PluginError(f"the {kind} {name!r} cannot be made ({reason_of(error)}).") from error
