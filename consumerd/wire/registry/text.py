"""From a znode's data to checked text and numbers.

Ring 0. ZooKeeper's data is hostile: it may be absent, not UTF-8, huge, or a number that no broker can have.
"""

from __future__ import annotations

from consumerd.wire.registry.errors import RegistryError, shown

#: Values are short; ZooKeeper itself caps a node at about 1 MB.
MAX_TEXT = 1 << 20


def text_of(data: bytes | str | None, what: str) -> str:
    """Return the text of a node's data. Raises RegistryError for null data, invalid UTF-8, and more than 1 MiB."""
    if data is None:
        raise RegistryError(f"{what} is empty: its znode has no data")
    if len(data) > MAX_TEXT:
        raise RegistryError(f"{what} is {len(data)} long: no peer writes more than {MAX_TEXT}")
    if isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RegistryError(f"{what} is not UTF-8 text: {data[:40]!r}") from None


def decimal(text: str, what: str, *, least: int, most: int) -> int:
    """Return a plain decimal number, as Java's `toString` writes it. Raises RegistryError for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
        raise RegistryError(f"{what} is {shown(text)}: expected a decimal number from {least} to {most}")
    return int(text)
