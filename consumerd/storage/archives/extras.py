"""The packages of the `archive` extra, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from consumerd.storage.archives.errors import MissingExtraError


def extra(module: str, purpose: str) -> Any:
    """Import `module`. Raises MissingExtraError, which says what `purpose` takes."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{purpose} needs the package {package}; install the archive extra: pip install 'consumerd[archive]'"
        ) from error
