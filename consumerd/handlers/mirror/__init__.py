"""Copying topics from one cluster to another: the handler, the placement of messages, and the detection of loops.

In: batches of a member. Out: the messages in a 0.7 cluster, on partitions that keep their order.

Files in reading order: handler, placing, topics, circles.
"""

from consumerd.handlers.mirror.circles import (
    CircleError,
    find_reverse_mirrors,
    is_subscribed,
    mirror_host,
    refuse_same_cluster,
    refuse_same_place,
    resolve_address,
)
from consumerd.handlers.mirror.handler import MirrorHandler
from consumerd.handlers.mirror.placing import KeepingPartitioner, PlacedRouter, SourceCounts, SourcePartition
from consumerd.handlers.mirror.topics import MirrorTopics

__all__ = [
    "CircleError",
    "KeepingPartitioner",
    "MirrorHandler",
    "MirrorTopics",
    "PlacedRouter",
    "SourceCounts",
    "SourcePartition",
    "find_reverse_mirrors",
    "is_subscribed",
    "mirror_host",
    "refuse_same_cluster",
    "refuse_same_place",
    "resolve_address",
]
