"""Brokers of the 0.8+ protocol (ring 1): versions agreed on per connection, who leads what, when to ask again."""

from consumerd.client.channel import Channel
from consumerd.client.cluster import ClusterClient
from consumerd.client.errors import (
    BrokerRefusedError,
    NoBrokerError,
    RequestTooLargeError,
    UnsupportedApiError,
    error_of,
)
from consumerd.client.metadata import ClusterMetadata, Node, PartitionMetadata
from consumerd.client.opening import ChannelOpener
from consumerd.client.settings import ClientSettings
from consumerd.client.versions import BrokerVersions, Generation

__all__ = [
    "BrokerRefusedError",
    "BrokerVersions",
    "Channel",
    "ChannelOpener",
    "ClientSettings",
    "ClusterClient",
    "ClusterMetadata",
    "Generation",
    "NoBrokerError",
    "Node",
    "PartitionMetadata",
    "RequestTooLargeError",
    "UnsupportedApiError",
    "error_of",
]
