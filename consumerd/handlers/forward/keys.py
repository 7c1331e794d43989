"""Keys from payloads: a field of JSON, a group of a regular expression, a column of fixed width.

Strategy: an extractor is a function from a payload to a key, or None where the payload has none; it never raises,
for any bytes. The caller handles a missing key. Text becomes a key as UTF-8, as Java's
StringSerializer writes it, so that other producers' messages of the same key lie in the same partition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

#: A payload -> its key, or None.
KeyExtractor = Callable[[bytes], bytes | None]

#: Start and end of a column.
_BOUNDS = 2


def key_extractor(options: Mapping[str, Any]) -> KeyExtractor:
    """The extractor for the options, of which exactly one must be given. Raises ValueError.

    - `json`: a path of names and list positions with dots in between (`user.id`, `items.0.sku`). Text is taken as it
      is; numbers, booleans, lists and objects as compact JSON.
    - `regex`: the first group, or the group called `key`, of the first match anywhere in the payload.
    - `column`: [start, end), in bytes, of a fixed format; blanks around it are left out.
    """
    if len(options) != 1:
        raise ValueError("key must have exactly one of json, regex and column")
    ((kind, value),) = options.items()
    match kind:
        case "json" if isinstance(value, str) and value:
            return partial(_json_field, tuple(value.split(".")))
        case "regex" if isinstance(value, str):
            return _regex(value)
        case "column" if _is_column(value):
            return partial(_column, *value)
        case "json" | "regex" | "column":
            raise ValueError(f"key.{kind} = {value!r} is invalid")
    raise ValueError(f"unknown key option key.{kind}: use json, regex or column")


def _is_column(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == _BOUNDS
        and all(type(bound) is int for bound in value)
        and 0 <= value[0] < value[1]
    )


def _json_field(path: tuple[str, ...], payload: bytes) -> bytes | None:
    try:
        found: Any = json.loads(payload)
        for step in path:
            if isinstance(found, dict):
                found = found[step]
            elif isinstance(found, list):
                found = found[int(step)]
            else:
                return None
        if found is None:
            return None
        text = found if isinstance(found, str) else json.dumps(found, separators=(",", ":"), ensure_ascii=False)
        return text.encode()
    except (ValueError, LookupError, RecursionError):  # not JSON, not in it, or no text that UTF-8 can hold
        return None


def _regex(text: str) -> KeyExtractor:
    try:
        pattern = re.compile(text.encode())
    except (re.error, UnicodeEncodeError) as error:
        raise ValueError(f"key.regex = {text!r}: {error}") from error
    if not pattern.groups:
        raise ValueError(f"key.regex = {text!r} has no group: put parentheses around the key")
    return partial(_match, pattern, pattern.groupindex.get("key", 1))


def _match(pattern: re.Pattern[bytes], group: int, payload: bytes) -> bytes | None:
    found = pattern.search(payload)
    return None if found is None else found[group] or None


def _column(start: int, end: int, payload: bytes) -> bytes | None:
    return payload[start:end].strip() or None if len(payload) >= end else None
