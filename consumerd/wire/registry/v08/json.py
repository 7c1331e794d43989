"""The JSON in the znodes of Kafka 0.8 and later: from hostile data to checked values, and text as 0.8.2 writes it.

Ring 0. Any JSON object is read, with its keys in any order. JSON is written without blanks, and strings with the
escapes of 0.8.2: the solidus and the C1 control codes are escaped too, other characters beyond ASCII are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from consumerd.wire.registry.errors import RegistryError, shown
from consumerd.wire.registry.text import text_of

MAX_INT32 = (1 << 31) - 1

_ESCAPES = {
    **{chr(code): f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_TABLE = str.maketrans(_ESCAPES)


def object_of(data: bytes | str | None, what: str) -> dict[str, Any]:
    """Return the JSON object that a node holds. Raises RegistryError for anything else."""
    text = text_of(data, what)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RegistryError(f"{what} is {shown(text)}: expected JSON") from None
    if not isinstance(value, dict):
        raise RegistryError(f"{what} is {shown(text)}: expected a JSON object")
    return value


def member_of(found: Mapping[str, Any], key: str, what: str) -> dict[str, Any]:
    """Return the object that `found` holds under `key`. Raises RegistryError where there is none."""
    value = found.get(key)
    if not isinstance(value, dict):
        raise RegistryError(f"{what} has no object {key!r}")
    return value


def whole(value: object, what: str, *, least: int = 0, most: int = MAX_INT32) -> int:
    """Return a whole number. Raises RegistryError for anything else, also for one outside of `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RegistryError(f"{what} is {shown_value(value)}: expected a number from {least} to {most}")
    return value


def broker_list(value: object, what: str) -> tuple[int, ...]:
    """Return the broker ids in their order. Raises RegistryError for anything but a list of them."""
    if not isinstance(value, list):
        raise RegistryError(f"{what} are {shown_value(value)}: expected a list of broker ids")
    return tuple(whole(broker, f"a broker of {what}") for broker in value)


def shown_value(value: object) -> str:
    """Return a JSON value's text for an error; lists and objects by their kind, as they may be nested without end."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return shown(value if isinstance(value, str) else str(value))


def quoted(text: str) -> str:
    """Return `text` as a JSON string with the escapes of 0.8.2."""
    return f'"{text.translate(_TABLE)}"'
