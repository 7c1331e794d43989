"""A real ZooKeeper, child processes and a fault proxy on loopback: the demo's and the tests' outside world."""

from consumerd.embedded.children import Child
from consumerd.embedded.errors import ChildError, ZooKeeperStartError
from consumerd.embedded.ports import free_port, free_ports
from consumerd.embedded.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from consumerd.embedded.zookeeper_launch import ZooKeeperTls
from consumerd.java import JavaRuntime, MissingRuntimeError, find_java

__all__ = [
    "Child",
    "ChildError",
    "JavaRuntime",
    "MissingRuntimeError",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "ZooKeeperStartError",
    "ZooKeeperTls",
    "find_java",
    "free_port",
    "free_ports",
]
