"""Settings of a group member, as plain values; the room `config` builds them from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from consumerd.base.settings.group import CommitSection
from consumerd.base.settings.processing import FetchSection
from consumerd.group.membership_tables import MembershipSettings
from consumerd.handlers.batching import BatchSettings
from consumerd.member.fetch.settings import FetchSettings
from consumerd.net.connection import ConnectionSettings
from consumerd.wire.registry.subscription import Subscription

#: Seconds for one call of a rebalance listener.
LISTENER_TIMEOUT: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a member. Times in seconds; defaults as in 0.7.2 (golden notes, 8) unless said otherwise."""

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
    #: Start of a partition without a committed offset (autooffset.reset), and of those of single topics.
    initial: str = FetchSection.initial
    initial_by_topic: Mapping[str, str] | None = None
    #: Time between commits (autocommit.interval.ms). Only offsets that moved are written; 0.7.2 rewrites all.
    commit_interval: float = CommitSection.interval
    #: Whether offsets are committed on the interval and when a partition goes (autocommit.enable).
    auto_commit: bool = True
    #: Bytes of messages held in memory, by all partitions and by one.
    budget: int = FetchSection.budget
    partition_budget: int = FetchSection.partition_budget
    #: Limits of the batches that a handler receives.
    batching: BatchSettings = field(default_factory=BatchSettings)
    #: Messages per second that are delivered at most, of all partitions together; None: no limit.
    max_rate: float | None = None
    #: Seconds after its timestamp, or its failure, before which a message is not delivered; None: at once.
    delay: float | None = None
    #: Time before a possible expiry of our session at which delivery ends.
    lease_margin: float = 0.5
    #: Limit for one call of a rebalance listener; peers wait meanwhile.
    listener_timeout: float = LISTENER_TIMEOUT
    #: End by itself once every owned partition is handled up to where it ended when it was claimed.
    stop_at_end: bool = False


def make_fetch_settings(keys: FetchSection) -> FetchSettings:
    """Return the settings of fetching. Raises ValueError for values that contradict each other."""
    base = FetchSettings()
    same = {field.name: getattr(keys, field.name) for field in fields(FetchSettings) if field.name in keys.fields}
    made = {
        "poll_bytes": min(keys.size, base.poll_bytes),
        "max_size": max(keys.size, keys.max_size),
        "poll_backoff_min": min(keys.idle_backoff, base.poll_backoff_min),
        "read_committed": keys.isolation == "read_committed",
    }
    return FetchSettings(**same | made)


def make_connection_settings(keys: FetchSection) -> ConnectionSettings:
    """Return the settings of connections that fetch messages of up to `max_size` bytes."""
    return ConnectionSettings(
        connect_timeout=keys.connect_timeout,
        socket_timeout=keys.socket_timeout,
        max_frame_bytes=max(ConnectionSettings().max_frame_bytes, keys.max_size + (1 << 20)),
    )
