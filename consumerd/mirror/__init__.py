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

__all__ = [
    "CircleError",
    "KeepingPartitioner",
    "MirrorHandler",
    "PlacedRouter",
    "Source",
    "SourceCounts",
    "find_reverse_mirrors",
    "mirror_host",
    "refuse_same_cluster",
    "refuse_same_place",
]
