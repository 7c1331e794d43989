"""Leaving an old cluster (ring 1): comparing the copied messages with the original ones.

In: two clusters, or an archive and a cluster. Out: the messages that differ, and translated offsets.

Files in reading order: verify, message_source, archive_source, cluster_source, ranges, sums, narrowing, findings,
offsets_plan, offsets_translation, offsets_move.
"""

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
