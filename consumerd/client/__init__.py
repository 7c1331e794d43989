"""Brokers of the 0.8+ protocol (ring 1): versions agreed on per connection, who leads what, when to ask again."""

from consumerd.client.channel import Channel
from consumerd.client.cluster import ClusterClient
from consumerd.client.errors import (
    AuthenticationError,
    BrokerRefusedError,
    NoBrokerError,
    RequestTooLargeError,
    UnavailableError,
    error_of,
)
from consumerd.client.making import find_broker, make_client
from consumerd.client.metadata import ClusterMetadata, Node, PartitionMetadata
from consumerd.client.offsets import ListedOffsets, list_offsets
from consumerd.client.opening import ChannelOpener
from consumerd.client.sasl import Mechanism, Plain, SaslAuthenticator, Scram
from consumerd.client.settings import ClientSettings
from consumerd.client.topics import topic_partitions
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.versions import BrokerVersions, Generation

__all__ = [
    "AuthenticationError",
    "BrokerRefusedError",
    "BrokerVersions",
    "Channel",
    "ChannelOpener",
    "ClientSettings",
    "ClusterClient",
    "ClusterMetadata",
    "Generation",
    "ListedOffsets",
    "Mechanism",
    "NoBrokerError",
    "Node",
    "PartitionMetadata",
    "Plain",
    "RequestTooLargeError",
    "SaslAuthenticator",
    "Scram",
    "UnavailableError",
    "UnsupportedApiError",
    "error_of",
    "find_broker",
    "list_offsets",
    "make_client",
    "topic_partitions",
]
