"""Settings and headers: the configuration, property files, topic filters, addresses, HTTP, identities in headers."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from consumerd.base.address import format_address, parse_address
from consumerd.base.errors import ConfigError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.handlers.builtin.http import retry_after
from consumerd.handlers.forward.identity import SourceMark, read_identity
from consumerd.net.http.access import Access, AccessRefusedError
from consumerd.net.zk.acl import parse_acl, split_acl
from consumerd.net.zk.connect_string import parse_connect_string
from consumerd.service.config.convert import convert
from consumerd.service.config.model import parse
from consumerd.service.config.problems import ConfigProblemsError, read_document
from consumerd.service.config.properties import format_properties, parse_properties
from consumerd.service.daemon.checks import check_daemon
from consumerd.storage.broker.config import BrokerConfig
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from tests.fuzz.targets.target import Target, check_sentence

# -- configuration


@cache
def _folder() -> TemporaryDirectory[str]:
    """Of one file, written again for each input."""
    return TemporaryDirectory()


def _check_config(data: bytes) -> None:
    """A configuration, or ConfigError with at least one problem, each on one line."""
    path = Path(_folder().name) / "config.toml"
    path.write_bytes(data)
    try:
        document = read_document(path)
    except ConfigError:
        return
    try:
        if _loads_code(document):  # a handler named by the fuzzer is not to be imported
            parse(document, "file")
            return
        problems = check_daemon(document, "file").problems
    except ConfigProblemsError as error:
        problems = error.problems
        assert problems
    for problem in problems:
        assert problem.format("file").strip()
        assert "\n" not in problem.format("file")


def _loads_code(tables: dict[str, Any]) -> bool:
    texts = [str(tables.get(name, "")) for name in ("handler", "subscriptions")]
    return any(":" in text.replace("': ", "") for text in texts)


def _configs() -> dict[str, bytes]:
    member = """\
[group]
id = "g"
topics = { events = 2 }
[zookeeper]
connect = "zk1:2181,[::1]:2181/kafka"
[handler]
name = "print"
batch = 'x'
[fetch]
size = 1_000
initial = "latest"
"""
    several = """\
group.id = "g"
group.whitelist = "a.*|b"
[[subscriptions]]
name = "one"
blacklist = "x"
[subscriptions.handler]
name = "null"
[[subscriptions]]
name = "two"
topics.events = 1
[health]
listen = "127.0.0.1:0"
[rebalance]
retry_interval = 0.2
"""
    v08 = """\
[group]
id = "g"
coordination = "kafka"
topics = { "a b" = 1 }
[kafka]
bootstrap = ["k1:9092", "k2:9092"]
[commit]
interval = 1e1
"""
    return {
        "member": member.encode(),
        "several": several.encode(),
        "v08": v08.encode(),
    }


def _check_properties(data: bytes) -> None:
    """Keys and values that are read again from what is written for them; their meaning, or ConfigError."""
    with suppress(ConfigError):
        found = parse_properties(data, "file")
        assert parse_properties(format_properties(found).encode("ascii"), "again") == found
        for kind in ("consumer", "producer", "server"):
            with suppress(ConfigError):
                convert(found, kind, "file")
        BrokerConfig.from_properties(found)


def _properties() -> dict[str, bytes]:
    texts = {
        "server": "brokerid=1\nlog.dir=/logs\nzk.connect=zk:2181\nport:9092\ntopic.flush.intervals.ms=a:1,b:2\n",
        "consumer": "groupid = g\\u00e9\nzk.connect=zk:2181\nautooffset.reset=smallest\nfetch.size=\\\n  1000\n",
        "producer": "broker.list=0:h:9092\nproducer.type=async\n# comment\n! comment\nserializer.class=x\n",
    }
    return {name: text.encode("latin-1") for name, text in texts.items()}


# -- texts


def _check_filter(data: bytes) -> None:
    """The first byte: which of the topics' names is matched. A verdict, or RegistryError."""
    text = data[1:].decode(errors="replace")
    topic = ("events", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "a-b_c.d", "x" * 249)[data[0] % 4 if data else 0]
    try:
        included, excluded = (TopicFilter(kind, text) for kind in (FilterKind.WHITELIST, FilterKind.BLACKLIST))
        assert included.matches(topic) is not excluded.matches(topic)
    except RegistryError as error:
        check_sentence(error)


def _filters() -> dict[str, bytes]:
    texts = (
        "events|other",
        "(a|b)*c+?[^d-f&&[a-z]]{2,3}",
        "(?=a)(?!b)(?<=c)(?>d)e++",
        r"\Qa.b\E\p{Lower}\x41\u0041",
        r"(?i:a)\bX$",
        "((a*)*)*b",
        "(a{1,30}){1,30}",
        r"[a-z&&[^b]]|\d\W",
    )
    return {text: b"\1" + text.encode() for text in texts}


def _check_addresses(data: bytes) -> None:
    """Addresses, connect strings and ACLs, or ConfigError."""
    text = data.decode(errors="replace")
    with suppress(ConfigError):
        address = parse_address(text)
        assert parse_address(format_address(*address)) == address
    with suppress(ConfigError):
        found = parse_connect_string(text)
        assert parse_connect_string(",".join(map(str, found.hosts)) + found.chroot) == found
    with suppress(ConfigError):
        assert parse_acl(split_acl(text))


def _addresses() -> dict[str, bytes]:
    texts = ("[::1]:9092", "kafka1:9092", "zk1:2181,[fe80::1]:2181,zk3/kafka/a", "digest:u:h=:cdrwa,world:anyone:r")
    return {text: text.encode() for text in texts}


#: No input may be believed to be it.
_TOKEN: Final = "a token that no fuzzer can guess"


def _check_http(data: bytes) -> None:
    """Two headers and the word of a form, a line each: a client without the token is refused."""
    first, _, rest = data.decode("utf-8", "surrogateescape").partition("\n")
    host, _, word = rest.partition("\n")
    headers = {"Authorization": first, "Host": host}
    for access in (Access("127.0.0.1", _TOKEN), Access("127.0.0.1"), Access("192.0.2.1")):
        for check in (access.check, lambda headers, access=access: access.check_change(headers, word)):
            with suppress(AccessRefusedError):
                check(headers)
                assert access.token is None
                assert check == access.check
                assert host.strip("[").startswith(("127.", "localhost", "::", "0"))
    pause = retry_after(first, 1_400_000_000.0)
    assert pause is None or pause >= 0


def _requests() -> dict[str, bytes]:
    texts = {
        "bearer": "Bearer token\n127.0.0.1:8080\nword",
        "basic": "Basic dTpw\nlocalhost\nword",
        "ipv6": "\n[::1]:80\n",
        "seconds": "120\n\n",
        "date": "Fri, 31 Dec 1999 23:59:59 GMT\n\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def _check_identity(data: bytes) -> None:
    """Headers, one of `name=value` on each line: an identity that its own headers tell again, or none."""
    headers: list[tuple[str, bytes | None]] = []
    for line in data.split(b"\n"):
        name, sign, value = line.partition(b"=")
        headers.append((name.decode(errors="replace"), value if sign else None))
    found = read_identity(tuple(headers))
    if found is not None:
        mark = SourceMark(found.partition, found.cluster)
        mark.read_from(found.log)
        again = read_identity(mark.headers(found.offset, found.index, None))
        assert again == found._replace(crc=None)


def _identities() -> dict[str, bytes]:
    mark = SourceMark(TopicPartition("events", 0, 1), "old")
    mark.read_from(LogId(b"\x07" * 16, 5))
    lines = [name.encode() + b"=" + (value or b"") for name, value in mark.headers(1000, 2, b"payload")]
    return {"one": b"\n".join(lines), "two": b"\n".join([b"own=header", *lines, *lines[1:]])}


TARGETS: Final = (
    Target("config", "A configuration, or problems of one line each.", _check_config, _configs, None, 8192),
    Target("properties", "Keys and values, or ConfigError.", _check_properties, _properties, None, 2048),
    Target("topic-filter", "A verdict in bounded steps, or RegistryError.", _check_filter, _filters, None, 300),
    Target("addresses", "Addresses that are read again from their text, or ConfigError.", _check_addresses, _addresses),
    Target("http", "Nobody without the token is let in.", _check_http, _requests, None, 512),
    Target("source-identity", "An identity that its own headers tell again, or none.", _check_identity, _identities),
)  # fmt: skip
