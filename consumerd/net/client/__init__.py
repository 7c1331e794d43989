"""Client of brokers since 0.8 (ring 1): API versions per connection, metadata, leaders, coordinators, retries."""

from typing import TYPE_CHECKING

from consumerd.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.client.channel import Channel
    from consumerd.client.cluster import ClusterClient, topic_partitions
    from consumerd.client.epochs import EpochEnd, epoch_ends
    from consumerd.client.errors import (
        AuthenticationError,
        BrokerRefusedError,
        NoBrokerError,
        RequestTooLargeError,
        UnavailableError,
        error_of,
        topic_error,
    )
    from consumerd.client.fetching import FetchedPartition, FetchedPartitions, fetch_partitions
    from consumerd.client.making import find_broker, make_client
    from consumerd.client.metadata import ClusterMetadata, Node, PartitionMetadata
    from consumerd.client.offsets import ListedOffsets, list_offsets
    from consumerd.client.opening import ChannelOpener
    from consumerd.client.retrying import UnansweredAttempts, passes
    from consumerd.client.sasl import Plain, SaslAuthenticator, Scram
    from consumerd.client.settings import ClientSettings
    from consumerd.wire.v08.errors import UnsupportedApiError
    from consumerd.wire.v08.fetch_session import PartitionFetch
    from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.client.channel": "Channel",
            "consumerd.client.cluster": "ClusterClient topic_partitions",
            "consumerd.client.epochs": "EpochEnd epoch_ends",
            "consumerd.client.errors": (
                "AuthenticationError BrokerRefusedError NoBrokerError RequestTooLargeError UnavailableError error_of"
                " topic_error"
            ),
            "consumerd.client.fetching": "FetchedPartition FetchedPartitions fetch_partitions",
            "consumerd.client.making": "find_broker make_client",
            "consumerd.client.metadata": "ClusterMetadata Node PartitionMetadata",
            "consumerd.client.offsets": "ListedOffsets list_offsets",
            "consumerd.client.opening": "ChannelOpener",
            "consumerd.client.retrying": "UnansweredAttempts passes",
            "consumerd.client.sasl": "Plain SaslAuthenticator Scram",
            "consumerd.client.settings": "ClientSettings",
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
