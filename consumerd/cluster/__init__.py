"""The live view of the cluster: which brokers there are, which topics they have, what groups do with them."""

from consumerd.cluster.directory import BrokerDirectory
from consumerd.cluster.errors import BrokerNotRegisteredError
from consumerd.cluster.view import ClusterView, GroupView, Member

__all__ = ["BrokerDirectory", "BrokerNotRegisteredError", "ClusterView", "GroupView", "Member"]
