"""The live view of the cluster: its brokers, their topics, and the groups that consume them."""

from typing import TYPE_CHECKING

from consumerd.cluster.dialects import look_for_dialect, read_dialect, wait_for_dialect
from consumerd.cluster.directory import BrokerDirectory, V08BrokerDirectory
from consumerd.cluster.names import TreeName
from consumerd.cluster.topic_nodes import TopicNodes
from consumerd.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.cluster.groups import GroupReader, GroupView, Member
    from consumerd.cluster.view import ClusterView
    from consumerd.cluster.view_v08 import PartitionView, V08ClusterView, V08Topics
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.cluster.groups": "GroupReader GroupView Member",
            "consumerd.cluster.view": "ClusterView",
            "consumerd.cluster.view_v08": "PartitionView V08ClusterView V08Topics",
        },
    )

__all__ = [
    "BrokerDirectory",
    "ClusterView",
    "GroupReader",
    "GroupView",
    "Member",
    "PartitionView",
    "TopicNodes",
    "TreeName",
    "V08BrokerDirectory",
    "V08ClusterView",
    "V08Topics",
    "look_for_dialect",
    "read_dialect",
    "wait_for_dialect",
]
