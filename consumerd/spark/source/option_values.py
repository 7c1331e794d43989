"""The values of options, frozen and light: where the messages are, which partitions, and everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from consumerd.storage.log.archive_names import DEFAULT_LAYOUT

#: The size at which a split is cut by default (option `maxSplitBytes`): bytes of the log.
DEFAULT_SPLIT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class PathLocation:
    """Segment files. `paths`: folders, files or URLs; `layout` and `broker` as in `consumerd log export`."""

    paths: tuple[str, ...]
    layout: str = DEFAULT_LAYOUT
    broker: int | None = None


@dataclass(frozen=True, slots=True)
class ZooKeeperLocation:
    """Live brokers, found in ZooKeeper."""

    connect: str


@dataclass(frozen=True, slots=True)
class BrokersLocation:
    """Live brokers by id -> (host, port). `partitions`: how many each of them has of a topic, None if not said."""

    brokers: Mapping[int, tuple[str, int]]
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to brokers. PEM files, on every machine that reads; `ca`: whom to trust, the system's authorities if None."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where tokens of OAUTHBEARER come from: an endpoint with its scope and authorities, or a file on every machine."""

    endpoint: str | None = None
    scope: str | None = None
    ca: str | None = None
    file: str | None = None
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Login:
    """User and password, or client id and secret. `password_file` is read where the query is planned.

    `mechanism`: PLAIN, one of SCRAM, or OAUTHBEARER, which has `tokens`.
    """

    user: str
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    mechanism: str = "PLAIN"
    tokens: TokenSource | None = None


@dataclass(frozen=True, slots=True)
class BootstrapLocation:
    """Brokers of 0.8 and later. `servers`: the bootstrap servers as (host, port). Offsets count messages."""

    servers: tuple[tuple[str, int], ...]
    #: Leave out what transactions did not commit.
    read_committed: bool = False
    tls: Tls | None = None
    login: Login | None = None


@dataclass(frozen=True, slots=True)
class FilesLocation:
    """Output of the daemon's `files` handler."""

    directory: str


Location: TypeAlias = PathLocation | ZooKeeperLocation | BrokersLocation | BootstrapLocation | FilesLocation


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions and no others: topic -> names such as `0-2`."""

    partitions: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches, by the rules of topic filters."""

    pattern: str
