"""Values as TOML: for configurations that are shown, converted or made for a process."""

from __future__ import annotations

import json
import re
from pathlib import Path

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(key: str) -> str:
    """A key, in quotes where it needs them."""
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def toml_value(value: object) -> str:
    """A string, path, number, boolean, or a list or inline table of those."""
    if isinstance(value, dict):
        entries = ", ".join(f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Path):
        value = str(value)
    # JSON's escapes are TOML's, but for DEL and surrogate pairs.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
