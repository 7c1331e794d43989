from __future__ import annotations

import pytest

from consumerd.base.errors import ConfigError
from consumerd.net.zk.connect_string import ConnectString, ZooKeeperHost, parse_connect_string


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("localhost", [("localhost", 2181)], ""),
        ("zk1:2182", [("zk1", 2182)], ""),
        ("zk1:2182/", [("zk1", 2182)], ""),
        ("zk1/kafka", [("zk1", 2181)], "/kafka"),
        ("zk1:1, zk2 ,10.0.0.3:65535/kafka/east", [("zk1", 1), ("zk2", 2181), ("10.0.0.3", 65535)], "/kafka/east"),
        ("[::1]", [("::1", 2181)], ""),
        ("[2001:db8::7]:2191,zk/x", [("2001:db8::7", 2191), ("zk", 2181)], "/x"),
        ("  zk1:1/a b  ", [("zk1", 1)], "/a b"),
    ],
)
def test_parses_connect_strings(text: str, hosts: list[tuple[str, int]], chroot: str) -> None:
    assert parse_connect_string(text) == ConnectString(tuple(ZooKeeperHost(*host) for host in hosts), chroot)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty host"),
        ("/kafka", "empty host"),
        ("zk1,,zk2", "empty host"),
        ("zk1,", "empty host"),
        ("zk1:", "not a port"),
        ("zk1:0", "not a port"),
        ("zk1:65536", "not a port"),
        ("zk1:002181", "not a port"),
        ("zk1:2181x", "not a port"),
        ("zk1:-1", "not a port"),
        ("zk1:\u0661", "not a port"),
        (":2181", "not a host name"),
        ("zk 1", "not a host name"),
        ("a" * 64 + ".com", "not a host name"),
        ("zk..com", "not a host name"),
        ("::1:2181", "in brackets"),
        ("2001:db8::7", "in brackets"),
        ("[::1", "not an IPv6 address in brackets"),
        ("[::1]2181", "not an IPv6 address in brackets"),
        ("[]:2181", "not a host name"),
        ("zookeeper://zk1:2181", "without a scheme"),
        ("zk1:2181/app,zk2:2181/app", "stands once, after the last host"),
        ("zk1/app/", "not a chroot"),
        ("zk1//app", "not a chroot"),
        ("zk1/a/../b", "not a chroot"),
        ("zk1/a\x00b", "not a chroot"),
        ("zk1/a/\U0001f600", "the chroot '\U0001f600' holds '\U0001f600', which no ZooKeeper node can have"),
    ],
)
def test_rejects_invalid_connect_strings(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_connect_string(text)


@pytest.mark.parametrize(
    ("host", "text"), [(ZooKeeperHost("zk1", 2181), "zk1:2181"), (ZooKeeperHost("::1", 1), "[::1]:1")]
)
def test_host_prints_as_it_is_written(host: ZooKeeperHost, text: str) -> None:
    assert str(host) == text
    assert parse_connect_string(text).hosts == (host,)
