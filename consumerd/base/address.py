"""`host:port`, parsed and formatted in one way for all settings and commands.

Strategy: an IPv6 address stands in brackets, since the port of a bare one would be ambiguous. ZooKeeper's connect
strings, whose port may be missing, have a grammar of their own (`consumerd.net.zk.connect_string`).
"""

from __future__ import annotations

from collections.abc import Iterable

from consumerd.base.errors import ConfigError

_PORT_DIGITS = 5
_PORTS = 1 << 16


def parse_address(text: str, name: str | None = None, *, lowest: int = 1) -> tuple[str, int]:
    """Parse `host:port` or `[ipv6]:port`; the host is without brackets. Raises ConfigError, which begins with `name`.

    `lowest` is 0 for an address to listen on: the system then chooses a free port.
    """
    host, _, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    fits = len(bare) == len(host) - (2 if ":" in bare else 0)
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS else -1
    if not (bare and fits and lowest <= number < _PORTS):
        before = "" if name is None else f"{name}: "
        raise ConfigError(f"{before}{text.strip()!r} is not of the form host:port, such as kafka1:9092 or [::1]:9092.")
    return bare, number


def parse_addresses(texts: Iterable[str], name: str | None = None) -> list[tuple[str, int]]:
    """Parse a list of addresses. Raises ConfigError, also for a text in place of a list."""
    if isinstance(texts, str):
        raise ConfigError(f'{name or "it"} must be a list of brokers: put a single one into brackets, ["{texts}"].')
    return [parse_address(text, name) for text in texts]


def split_addresses(texts: Iterable[str]) -> list[str]:
    """Return the pieces of `host:port,host:port` texts."""
    return [piece.strip() for text in texts for piece in text.split(",")]


def format_address(host: str, port: int) -> str:
    """Return the text that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
