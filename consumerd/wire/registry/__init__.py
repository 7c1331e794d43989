"""The names and values of Kafka's znodes, in both dialects: that of 0.7, and the JSON of 0.8 and later.

Parse leniently what peers write, format exactly as 0.7.2 and 0.8.2 do.

In: texts of znodes. Out: values, or a `RegistryError`; and the paths and texts of our own nodes.

Files in reading order: paths, values, text, subscription, topic_filter, dialect, spoken, other_clients, nudge, errors.

Easy to miss:

- A node of the wrong dialect breaks every JVM member's rebalance: the dialect is detected before anything is
  registered.
"""

from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.nudge import NUDGE_VALUE, NUDGE_VALUE_V08, nudge_operations
from consumerd.wire.registry.other_clients import OwnerClaim, claimant, other_client
from consumerd.wire.registry.paths import (
    broker_ids_path,
    broker_path,
    check_name,
    consumers_path,
    group_path,
    id_path,
    ids_path,
    offset_path,
    offsets_path,
    offsets_root,
    owner_path,
    owners_path,
    owners_root,
    topic_broker_path,
    topic_path,
    topics_path,
)
from consumerd.wire.registry.spoken import agreed_dialect, broker_dialect, member_dialect, offset_dialect
from consumerd.wire.registry.subscription import (
    MAX_STREAMS,
    FilterSubscription,
    StaticSubscription,
    Subscription,
    parse_subscription,
)
from consumerd.wire.registry.topic_filter import MAX_FILTER_LENGTH, Blacklist, FilterKind, TopicFilter, Whitelist
from consumerd.wire.registry.v08.broker import (
    BrokerNode,
    Endpoint,
    parse_broker_node,
)
from consumerd.wire.registry.v08.paths import (
    delete_topic_path,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_config_path,
)
from consumerd.wire.registry.v08.subscription import (
    format_subscription_v08,
    parse_subscription_v08,
)
from consumerd.wire.registry.v08.topic import (
    INTERNAL_TOPICS,
    NO_LEADER,
    PartitionState,
    format_topic_assignment,
    format_topic_config,
    parse_partition_state,
    parse_topic_assignment,
)
from consumerd.wire.registry.values import (
    MAX_OFFSET,
    MAX_PARTITIONS,
    RegisteredBroker,
    configured_consumer_id,
    format_broker,
    format_offset,
    format_owner,
    format_partition_count,
    make_consumer_id,
    make_creator_id,
    parse_broker,
    parse_broker_id,
    parse_offset,
    parse_owner,
    parse_partition_count,
)

__all__ = [
    "INTERNAL_TOPICS",
    "MAX_FILTER_LENGTH",
    "MAX_OFFSET",
    "MAX_PARTITIONS",
    "MAX_STREAMS",
    "NO_LEADER",
    "NUDGE_VALUE",
    "NUDGE_VALUE_V08",
    "Blacklist",
    "BrokerNode",
    "Dialect",
    "DialectError",
    "Endpoint",
    "FilterKind",
    "FilterSubscription",
    "OwnerClaim",
    "PartitionState",
    "RegisteredBroker",
    "RegistryError",
    "StaticSubscription",
    "Subscription",
    "TopicFilter",
    "Whitelist",
    "agreed_dialect",
    "broker_dialect",
    "broker_ids_path",
    "broker_path",
    "check_name",
    "claimant",
    "configured_consumer_id",
    "consumers_path",
    "delete_topic_path",
    "format_broker",
    "format_offset",
    "format_owner",
    "format_partition_count",
    "format_subscription_v08",
    "format_topic_assignment",
    "format_topic_config",
    "group_path",
    "id_path",
    "ids_path",
    "make_consumer_id",
    "make_creator_id",
    "member_dialect",
    "nudge_operations",
    "offset_dialect",
    "offset_path",
    "offsets_path",
    "offsets_root",
    "other_client",
    "owner_path",
    "owners_path",
    "owners_root",
    "parse_broker",
    "parse_broker_id",
    "parse_broker_node",
    "parse_offset",
    "parse_owner",
    "parse_partition_count",
    "parse_partition_state",
    "parse_subscription",
    "parse_subscription_v08",
    "parse_topic_assignment",
    "partition_path",
    "partition_state_path",
    "partitions_path",
    "topic_broker_path",
    "topic_config_path",
    "topic_path",
    "topics_path",
]
