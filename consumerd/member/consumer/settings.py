"""Settings of a group member: the tables of the configuration, and what only a program sets."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from random import Random
from typing import Final

from consumerd.base.errors import ConfigError
from consumerd.base.ports import Clock
from consumerd.base.settings.group import CommitSection
from consumerd.base.settings.processing import FetchSection, HandlerSection
from consumerd.group.membership_tables import MembershipSettings
from consumerd.member.fetch.settings import FetchSettings
from consumerd.net.connection import ConnectionSettings
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import check_name
from consumerd.wire.registry.subscription import Subscription
from consumerd.wire.registry.values import configured_consumer_id, make_consumer_id

#: Seconds for one call of a rebalance listener.
LISTENER_TIMEOUT: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a member. Times in seconds."""

    group: str
    #: The whole id, `group_...`.
    consumer_id: str
    subscription: Subscription
    #: The id was configured, so a node of the same name may be that of our own former process, or of a twin.
    fixed_id: bool = False
    #: Ids of other members of the group in this process: they share the session, so it does not identify the owner.
    siblings: frozenset[str] = frozenset()
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    fetch: FetchSettings = field(default_factory=FetchSettings)
    #: Only offsets that moved are written; 0.7.2 rewrites all.
    commit: CommitSection = field(default_factory=CommitSection)
    #: Whether offsets are committed on the interval and when a partition goes (autocommit.enable).
    auto_commit: bool = True
    #: The table of the handler, which is already wrapped by its stages: sizes of batches and rates are the member's.
    handler: HandlerSection = field(default_factory=HandlerSection)
    #: Time before a possible expiry of our session at which delivery ends.
    lease_margin: float = 0.5
    #: Limit for one call of a rebalance listener; peers wait meanwhile.
    listener_timeout: float = LISTENER_TIMEOUT
    #: End by itself once every owned partition is handled up to where it ended when it was claimed.
    stop_at_end: bool = False


def member_id(group: str, configured: str | None, *, clock: Clock, rng: Random) -> str:
    """The id of a member: the configured one, or one of host name, time and random digits. Raises ConfigError."""
    try:
        check_name("group", group)
        if configured is not None:
            return configured_consumer_id(group, configured)
        return make_consumer_id(group, socket.gethostname(), int(clock.wall() * 1000), rng.getrandbits(64))
    except RegistryError as error:
        raise ConfigError(f"{error}.") from error


def make_connection_settings(keys: FetchSection) -> ConnectionSettings:
    """Return the settings of connections that fetch messages of up to `max_size` bytes."""
    return ConnectionSettings(
        connect_timeout=keys.connect_timeout,
        socket_timeout=keys.socket_timeout,
        max_frame_bytes=max(ConnectionSettings().max_frame_bytes, keys.max_size + (1 << 20)),
    )
