"""Copying topics from one cluster to another: the handler, where messages are placed, and what would go in circles."""

from consumerd.mirror.circles import (
    CircleError,
    find_reverse_mirrors,
    mirror_host,
    refuse_same_cluster,
    refuse_same_place,
)
from consumerd.mirror.handler import MirrorHandler
from consumerd.mirror.placing import KeepingPartitioner, PlacedRouter, Source, SourceCounts
from consumerd.mirror.topics import TargetTopics

__all__ = [
    "CircleError",
    "KeepingPartitioner",
    "MirrorHandler",
    "PlacedRouter",
    "Source",
    "SourceCounts",
    "TargetTopics",
    "find_reverse_mirrors",
    "mirror_host",
    "refuse_same_cluster",
    "refuse_same_place",
]
