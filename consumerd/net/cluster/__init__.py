"""The live view of the cluster: its brokers, their topics, and the groups that consume them.

In: a session. Out: brokers, addresses, topics and groups, kept up to date by watches.

Files in reading order: view, view_v08, watched, directory, following, names, reading, topic_nodes, dialects, entry,
groups.

Easy to miss:

- A misspelled chroot that a session creates looks like a cluster without topics. `cluster.entry` lets a session create
  its chroot only once brokers or consumers were found there, or with `zookeeper.allow_empty`; a wiped ensemble is then
  filled again.
"""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names

if TYPE_CHECKING:
    from consumerd.net.cluster.dialects import look_for_dialect, read_dialect, wait_for_dialect
    from consumerd.net.cluster.directory import BrokerDirectory, V08BrokerDirectory
    from consumerd.net.cluster.groups import GroupReader, GroupView, LiveMember
    from consumerd.net.cluster.names import TreeName
    from consumerd.net.cluster.topic_nodes import TopicNodes
    from consumerd.net.cluster.view import ClusterView
    from consumerd.net.cluster.view_v08 import PartitionView, V08ClusterView, V08Topics
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.net.cluster.dialects": "look_for_dialect read_dialect wait_for_dialect",
            "consumerd.net.cluster.directory": "BrokerDirectory V08BrokerDirectory",
            "consumerd.net.cluster.groups": "GroupReader GroupView LiveMember",
            "consumerd.net.cluster.names": "TreeName",
            "consumerd.net.cluster.topic_nodes": "TopicNodes",
            "consumerd.net.cluster.view": "ClusterView",
            "consumerd.net.cluster.view_v08": "PartitionView V08ClusterView V08Topics",
        },
    )

__all__ = [
    "BrokerDirectory",
    "ClusterView",
    "GroupReader",
    "GroupView",
    "LiveMember",
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
