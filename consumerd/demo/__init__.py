"""The demo, and its servers on loopback: a real ZooKeeper and consumerd's processes. The pytest plugin uses both.

In: a command line. Out: servers and processes of ours on loopback, and an account of every message.

Files in reading order: server, zookeeper, zookeeper_launch, processes, children, ports, corpus, recorder, ledger,
audit, errors.
"""

from consumerd.base.java import JavaRuntime, MissingRuntimeError, find_java
from consumerd.demo.children import Child
from consumerd.demo.errors import ChildError, ZooKeeperStartError
from consumerd.demo.ports import free_port, free_ports
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.demo.zookeeper_launch import ZooKeeperTls

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
