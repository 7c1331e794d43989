"""Names that are imported when something first uses them (PEP 562), and former names, whose use is deprecated.

Strategy: a daemon speaks one dialect, and knows which one once it has read ZooKeeper. Rooms that serve both export the
names of the other one with `lazy_names`, so that its modules take neither memory nor time of a start. Type checkers
read the imports of such a package from its `if TYPE_CHECKING:` block; `tests/unit/base/test_lazy.py` compares the two.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType


def lazy_names(
    package: str, modules: Mapping[str, str], deprecated: Mapping[str, str] = MappingProxyType({})
) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`: module -> the names that it defines, with spaces between them.

    It warns of `deprecated` names (old -> new), and raises AttributeError for any other name.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name in deprecated:
            new = deprecated[name]
            _warn(f"{package}.{name}", f"{package}.{new}")
            return getattr(sys.modules[package], new)
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)  # found there the next time
        return value

    return get


class FormerModules:
    """Finds modules by their former names (old -> new), as an entry of `sys.meta_path`."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of a module with a former name."""
        return ModuleSpec(name, self) if name in self._names else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in its place."""
        present = self._names[module.__name__]
        _warn(module.__name__, present)
        sys.modules[module.__name__] = import_module(present)


def _warn(former: str, present: str) -> None:
    warnings.warn(f"{former} is deprecated: use {present}.", DeprecationWarning, stacklevel=3)
