"""Leaving an old cluster (ring 1): comparing the copied messages with the original ones."""

from consumerd.migrate.archive_source import ArchiveSource
from consumerd.migrate.cluster_source import ClusterSource, V08ClusterSource
from consumerd.migrate.findings import ComparisonReport, MessageCounts, PartitionReport, RangeReport
from consumerd.migrate.message_source import MessageSource, SourceMessage, UnreadableStretch
from consumerd.migrate.verify import Comparison

__all__ = [
    "ArchiveSource",
    "ClusterSource",
    "Comparison",
    "ComparisonReport",
    "MessageCounts",
    "MessageSource",
    "PartitionReport",
    "RangeReport",
    "SourceMessage",
    "UnreadableStretch",
    "V08ClusterSource",
]
