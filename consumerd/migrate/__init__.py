"""Leaving an old cluster (ring 1): comparing what was copied with what is there."""

from consumerd.migrate.archive_source import ArchiveSource
from consumerd.migrate.cluster_source import ClusterSource
from consumerd.migrate.cluster_source_v08 import V08ClusterSource
from consumerd.migrate.findings import Counts, PartitionReport, RangeReport, Report
from consumerd.migrate.message_source import MessageSource, SourceMessage, Unreadable
from consumerd.migrate.verify import Comparison

__all__ = [
    "ArchiveSource",
    "ClusterSource",
    "Comparison",
    "Counts",
    "MessageSource",
    "PartitionReport",
    "RangeReport",
    "Report",
    "SourceMessage",
    "Unreadable",
    "V08ClusterSource",
]
