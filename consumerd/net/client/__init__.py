"""Client of brokers since 0.8 (ring 1): API versions per connection, metadata, leaders, coordinators, retries."""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.net.client.channel import Channel
    from consumerd.net.client.cluster import ClusterClient, topic_partitions
    from consumerd.net.client.epochs import EpochEnd, epoch_ends
    from consumerd.net.client.errors import (
        AuthenticationError,
        BrokerRefusedError,
        NoBrokerError,
        NoBrokerReachedError,
        RequestTooLargeError,
        UnavailableError,
        error_of,
        topic_error,
    )
    from consumerd.net.client.factory import find_broker, make_client
    from consumerd.net.client.fetching import FetchedPartition, FetchedPartitions, fetch_partitions
    from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata
    from consumerd.net.client.offsets import ListedOffsets, list_offsets
    from consumerd.net.client.opening import ChannelOpener
    from consumerd.net.client.retrying import UnansweredAttempts, passes
    from consumerd.net.client.sasl import Plain, SaslAuthenticator, Scram
    from consumerd.net.client.settings import ClientSettings
    from consumerd.wire.v08.errors import UnsupportedApiError
    from consumerd.wire.v08.fetch_session import PartitionFetch
    from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.net.client.channel": "Channel",
            "consumerd.net.client.cluster": "ClusterClient topic_partitions",
            "consumerd.net.client.epochs": "EpochEnd epoch_ends",
            "consumerd.net.client.errors": (
                "AuthenticationError BrokerRefusedError NoBrokerError NoBrokerReachedError RequestTooLargeError"
                " UnavailableError error_of topic_error"
            ),
            "consumerd.net.client.fetching": "FetchedPartition FetchedPartitions fetch_partitions",
            "consumerd.net.client.factory": "find_broker make_client",
            "consumerd.net.client.metadata": "ClusterMetadata Node PartitionMetadata",
            "consumerd.net.client.offsets": "ListedOffsets list_offsets",
            "consumerd.net.client.opening": "ChannelOpener",
            "consumerd.net.client.retrying": "UnansweredAttempts passes",
            "consumerd.net.client.sasl": "Plain SaslAuthenticator Scram",
            "consumerd.net.client.settings": "ClientSettings",
            "consumerd.wire.v08.errors": "UnsupportedApiError",
            "consumerd.wire.v08.fetch_session": "PartitionFetch",
            "consumerd.wire.v08.versions": "BrokerRelease BrokerVersions",
        },
    )

__all__ = [
    "AuthenticationError",
    "BrokerRefusedError",
    "BrokerRelease",
    "BrokerVersions",
    "Channel",
    "ChannelOpener",
    "ClientSettings",
    "ClusterClient",
    "ClusterMetadata",
    "EpochEnd",
    "FetchedPartition",
    "FetchedPartitions",
    "ListedOffsets",
    "NoBrokerError",
    "NoBrokerReachedError",
    "Node",
    "PartitionFetch",
    "PartitionMetadata",
    "Plain",
    "RequestTooLargeError",
    "SaslAuthenticator",
    "Scram",
    "UnansweredAttempts",
    "UnavailableError",
    "UnsupportedApiError",
    "epoch_ends",
    "error_of",
    "fetch_partitions",
    "find_broker",
    "list_offsets",
    "make_client",
    "passes",
    "topic_error",
    "topic_partitions",
]
