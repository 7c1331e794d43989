"""Write Java property files (ZooKeeper's and Jafka's configuration)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def _escape(text: str, *, key: bool) -> str:
    escaped = []
    for index, char in enumerate(text):
        if char in "\\#!" or (char in " =:" and key) or (char == " " and index == 0):
            escaped.append("\\" + char)
        elif " " <= char <= "~":
            escaped.append(char)
        else:  # Java reads the file as Latin-1; \u counts UTF-16 code units
            units = char.encode("utf-16-be", "surrogatepass")
            escaped += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(escaped)


def format_properties(values: Mapping[str, str | int]) -> str:
    """`key=value` lines in ASCII that `java.util.Properties.load` reads back as `values`."""
    return "".join(f"{_escape(key, key=True)}={_escape(str(value), key=False)}\n" for key, value in values.items())
