"""Connect strings: `host[:port][,host[:port]...][/chroot]`, the form of every ZooKeeper client.

Strategy: cut at the first `/`, then at the commas; an error names the piece and its problem. IPv6 addresses stand
in brackets, since the last part of a bare one could be a port. Nothing is resolved here.
"""

from __future__ import annotations

from typing import NamedTuple

from consumerd.base.address import format_address
from consumerd.base.errors import ConfigError
from consumerd.wire.registry.errors import NameRefusedError
from consumerd.wire.registry.paths import check_name

DEFAULT_PORT = 2181


class ZooKeeperHost(NamedTuple):
    """One server of an ensemble; `name` without brackets."""

    name: str
    port: int

    def __str__(self) -> str:
        return format_address(self.name, self.port)


class ConnectString(NamedTuple):
    """The servers in the order given, and the chroot: `""` or a path such as `/kafka` without a slash at its end."""

    hosts: tuple[ZooKeeperHost, ...]
    chroot: str


def parse_connect_string(text: str) -> ConnectString:
    """Read a connect string. Raises ConfigError that names the piece that is wrong."""
    servers, slash, rest = text.strip().partition("/")
    if servers.endswith(":") and rest.startswith("/"):
        raise ConfigError(f"{text!r} looks like a URL; write host:port,host:port/chroot without a scheme")
    hosts = tuple(_parse_host(piece.strip(), text) for piece in servers.split(","))
    return ConnectString(hosts, _parse_chroot(slash + rest, text))


def _parse_host(piece: str, text: str) -> ZooKeeperHost:
    if not piece:
        raise ConfigError(f"the ZooKeeper connect string {text!r} has an empty host; write host:port,host:port/chroot")
    if piece.startswith("["):
        name, bracket, tail = piece[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ConfigError(f"{piece!r} in {text!r} is not an IPv6 address in brackets such as [::1]:2181")
        colon, port = tail[:1], tail[1:]
    else:
        name, colon, port = piece.partition(":")
        if ":" in port:
            raise ConfigError(f"write the IPv6 address in {piece!r} in brackets, such as [::1]:2181")
    return ZooKeeperHost(_check_name(name, text), _parse_port(port, piece) if colon else DEFAULT_PORT)


def _check_name(name: str, text: str) -> str:
    try:
        name.encode("idna")
    except UnicodeError as error:
        raise ConfigError(f"{name!r} in the ZooKeeper connect string {text!r} is not a host name") from error
    if not name or any(char.isspace() or not char.isprintable() for char in name):
        raise ConfigError(f"{name!r} in the ZooKeeper connect string {text!r} is not a host name")
    return name


def _parse_port(port: str, piece: str) -> int:
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigError(f"{port!r} in {piece!r} is not a port between 1 and 65535")
    return int(port)


def _parse_chroot(chroot: str, text: str) -> str:
    if chroot in ("", "/"):
        return ""
    if "," in chroot:
        raise ConfigError(f"the chroot of {text!r} stands once, after the last host: h1:2181,h2:2181/chroot")
    parts = chroot[1:].split("/")
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise ConfigError(
            f"{chroot!r} in {text!r} is not a chroot such as /kafka: no empty parts, no `.`, no slash at the end"
        )
    try:
        for part in parts:
            check_name("chroot", part)
    except NameRefusedError as error:
        raise ConfigError(str(error)) from error
    return chroot
