"""Copying topics from one cluster to another: the handler, where messages are placed, and what would go in circles."""

from consumerd.mirror.circles import (
    CircleError,
    find_reverse_mirrors,
    is_subscribed,
    mirror_host,
    refuse_same_cluster,
    refuse_same_place,
    resolve_address,
)
from consumerd.mirror.handler import MirrorHandler
from consumerd.mirror.placing import KeepingPartitioner, PlacedRouter, SourceCounts, SourcePartition
from consumerd.mirror.topics import TargetTopics

__all__ = [
    "CircleError",
    "KeepingPartitioner",
    "MirrorHandler",
    "PlacedRouter",
    "SourceCounts",
    "SourcePartition",
    "TargetTopics",
    "find_reverse_mirrors",
    "is_subscribed",
    "mirror_host",
    "refuse_same_cluster",
    "refuse_same_place",
    "resolve_address",
]
