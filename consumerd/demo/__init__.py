"""The demo, and its servers on loopback: a real ZooKeeper and consumerd's processes. The pytest plugin uses both."""

from consumerd.embedded.children import Child
from consumerd.embedded.errors import ChildError, ZooKeeperStartError
from consumerd.embedded.ports import free_port, free_ports
from consumerd.embedded.zookeeper import ZooKeeperServer
from consumerd.embedded.zookeeper_launch import ZooKeeperTls
from consumerd.java import JavaRuntime, MissingRuntimeError, find_java

__all__ = [
    "Child",
    "ChildError",
    "JavaRuntime",
    "MissingRuntimeError",
    "ZooKeeperServer",
    "ZooKeeperStartError",
    "ZooKeeperTls",
    "find_java",
    "free_port",
    "free_ports",
]
