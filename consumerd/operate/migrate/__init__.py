"""Leaving an old cluster (ring 1): comparing the copied messages with the original ones."""

from consumerd.operate.migrate.archive_source import ArchiveSource
from consumerd.operate.migrate.cluster_source import ClusterSource, V08ClusterSource
from consumerd.operate.migrate.findings import ComparisonReport, MessageCounts, PartitionReport, RangeReport
from consumerd.operate.migrate.message_source import MessageSource, SourceMessage, UnreadableStretch
from consumerd.operate.migrate.verify import Comparison

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
