"""Client of brokers since 0.8 (ring 1): API versions per connection, metadata, leaders, coordinators, retries."""

from consumerd.client.channel import Channel
from consumerd.client.cluster import ClusterClient, topic_partitions
from consumerd.client.errors import (
    AuthenticationError,
    BrokerRefusedError,
    NoBrokerError,
    RequestTooLargeError,
    UnavailableError,
    error_of,
)
from consumerd.client.fetching import FetchedPartition, FetchedPartitions, PartitionFetch, fetch_partitions
from consumerd.client.making import find_broker, make_client
from consumerd.client.metadata import ClusterMetadata, Node, PartitionMetadata
from consumerd.client.offsets import ListedOffsets, list_offsets
from consumerd.client.opening import ChannelOpener
from consumerd.client.sasl import Plain, SaslAuthenticator, Scram
from consumerd.client.settings import ClientSettings
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

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
    "UnavailableError",
    "UnsupportedApiError",
    "error_of",
    "fetch_partitions",
    "find_broker",
    "list_offsets",
    "make_client",
    "topic_partitions",
]
