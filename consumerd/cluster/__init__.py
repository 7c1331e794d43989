"""The live view of the cluster: which brokers there are, which topics they have, what groups do with them."""

from consumerd.cluster.dialects import look_for_dialect, read_dialect, wait_for_dialect
from consumerd.cluster.directory import BrokerDirectory, LogicalBrokerDirectory
from consumerd.cluster.errors import BrokerNotRegisteredError
from consumerd.cluster.groups import GroupReader, GroupView, Member
from consumerd.cluster.view import ClusterView
from consumerd.cluster.view_v08 import LogicalClusterView, LogicalTopics, PartitionView

__all__ = [
    "BrokerDirectory",
    "BrokerNotRegisteredError",
    "ClusterView",
    "GroupReader",
    "GroupView",
    "LogicalBrokerDirectory",
    "LogicalClusterView",
    "LogicalTopics",
    "Member",
    "PartitionView",
    "look_for_dialect",
    "read_dialect",
    "wait_for_dialect",
]
