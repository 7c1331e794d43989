"""Names of a package that are imported when something first uses them (PEP 562).

Strategy: a daemon speaks one dialect, and knows which one once it has read ZooKeeper. Rooms that serve both export the
names of the other one with `lazy_names`, so that its modules take neither memory nor time of a start. Type checkers
read the imports of such a package from its `if TYPE_CHECKING:` block; `tests/unit/base/test_lazy.py` compares the two.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType


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
            warnings.warn(f"{package}.{name} is deprecated: use {package}.{new}.", DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], new)
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)  # found there the next time
        return value

    return get
