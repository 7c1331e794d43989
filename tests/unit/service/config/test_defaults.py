"""Each default stands in one place: in the settings of the room that uses it."""

import ast
import dataclasses
import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.defaults import default_of
from consumerd.group import MembershipSettings
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.handlers import FileDeadLetters, RetryPolicy
from consumerd.member.consumer import ConsumerConfig, ConsumerSettings
from consumerd.member.consumer import config as consumer_config
from consumerd.member.fetch import FetchSettings
from consumerd.member.offsets import OffsetSettings
from consumerd.net import ConnectionSettings
from consumerd.net.client import ClientSettings
from consumerd.net.zk import Session
from consumerd.producer import ProducerConfig
from consumerd.service.config import model, processing
from consumerd.service.config.build import build_connection_settings, build_offset_settings, build_settings
from consumerd.service.config.build_v08 import build_coordination
from consumerd.service.config.model import parse
from consumerd.service.settings import group, servers, work
from consumerd.service.settings.setting import Section
from consumerd.wire.registry import StaticSubscription

SETTINGS = (
    ConsumerSettings,
    FetchSettings,
    MembershipSettings,
    CoordinationSettings,
    ConnectionSettings,
    ClientSettings,
    OffsetSettings,
    RetryPolicy,
)
#: Defaults that are written in a table of the configuration, or in ConsumerConfig, because no settings have them.
OWN = {
    "GroupSection.coordination",
    "GroupSection.streams",
    "GroupSection.roundrobin_as",
    "TlsSection.check_hostname",
    "SaslSection.mechanism",
    "SaslSection.service",
    "ZooKeeperSaslSection.mechanism",
    "ZooKeeperSaslSection.service",
    "ZooKeeperSection.connection_timeout",  # a service waits for longer than a library's caller
    "KafkaSection.bootstrap",
    "KafkaSection.connection_timeout",
    "HandlerSection.name",
    "HandlerSection.decoder",
    "HandlerSection.concurrency",
    "HandlerSection.dead_letter_as",
    "HandlerSection.order",
    "DaemonSection.stall_warning",
    "DaemonSection.loop",
    "LogSection.level",
    "LogSection.format",
    "ConsumerConfig.zookeeper",
    "ConsumerConfig.stop_timeout",
    "ConsumerConfig.connection_timeout",
    "ConsumerConfig.dialect",
    "ConsumerConfig.assignor",
    "ConsumerConfig.isolation",
}


def written_defaults(text: str) -> Iterator[tuple[str, ast.expr]]:
    """`Class.field` of each field in `text` that has a default, and the expression of the default."""
    for owner in (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)):
        for field in owner.body:
            if not isinstance(field, ast.AnnAssign) or field.value is None:
                continue
            assert isinstance(field.target, ast.Name)
            default = field.value
            if (
                isinstance(default, ast.Call)
                and isinstance(default.func, ast.Name)
                and default.func.id.lower() == "field"
            ):
                given = [each.value for each in default.keywords if each.arg == "default"]
                if not (given or default.args):
                    continue
                default = (given or default.args)[0]
            yield f"{owner.name}.{field.target.id}", default


def is_referred(default: ast.expr) -> bool:
    """Whether the expression says nothing by itself: `default_of(...)`, or that there is no value."""
    if isinstance(default, ast.Attribute) and default.attr == "value":
        default = default.value
    if isinstance(default, ast.Call):
        return isinstance(default.func, ast.Name) and default.func.id == "default_of"
    if isinstance(default, ast.Tuple):
        return not default.elts
    return isinstance(default, ast.Constant) and default.value in (None, False, "")


def repeated(text: str) -> set[str]:
    return {name for name, default in written_defaults(text) if not is_referred(default)}


def sections() -> Iterator[tuple[str, type[Section]]]:
    for module in (group, servers, processing):
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, Section) and found.__module__ == module.__name__:
                yield found.__name__, found


def test_tables_and_keywords_refer_to_the_settings() -> None:
    files = [Path(inspect.getfile(module)) for module in (group, servers, processing, model, consumer_config)]
    assert set().union(*(repeated(file.read_text("utf-8")) for file in files)) == OWN


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ("10.0", True),
        ("1 << 20", True),
        ("Field(10.0, description='x')", True),
        ("Field(default=10.0)", True),
        ("'earliest'", True),
        ("_INTERVAL", True),
        ("default_of(ConsumerSettings, 'commit_interval')", False),
        ("Field(default_of(FetchSettings, 'on_corrupt').value)", False),
        ("Field(default_factory=dict)", False),
        ("Field(ge=1)", False),
        ("None", False),
    ],
)
def test_finds_a_repeated_default(default: str, expected: bool) -> None:
    assert bool(repeated(f"class A:\n    interval: float = {default}\n")) is expected


def test_own_defaults_stand_in_no_settings() -> None:
    values: dict[str, list[Any]] = {}
    for settings in (*SETTINGS, ConsumerConfig):
        for field in dataclasses.fields(settings):
            values.setdefault(field.name, []).append(field.default)
    seen = set()
    for name, section in sections():
        for key, info in section.fields.items():
            if f"{name}.{key}" in OWN:
                seen.add(f"{name}.{key}")
                assert not info.required
                assert info.default not in values.get(key, []), f"{name}.{key}"
    assert seen == {each for each in OWN if not each.startswith("ConsumerConfig.")}


def test_shortest_configuration_equals_the_default_settings() -> None:
    clock, rng = SystemClock(), random.Random(1)
    by_zookeeper = parse({"group": {"id": "g", "topics": {"t": 1}}}, "a test", environment=False)
    built = build_settings(by_zookeeper, clock=clock, rng=rng)
    assert built == ConsumerSettings("g", built.consumer_id, StaticSubscription({"t": 1}))
    assert build_connection_settings(by_zookeeper) == ConnectionSettings()
    by_kafka = parse({"group": {"id": "g", "topics": {"t": 1}, "coordination": "kafka"}}, "a test", environment=False)
    assert build_coordination(by_kafka) == CoordinationSettings()
    assert build_offset_settings(by_kafka) == OffsetSettings()
    assert by_kafka.handler.dead_letter_max_size == default_of(FileDeadLetters, "max_size")
    assert by_kafka.handler.dead_letter_file_size == default_of(FileDeadLetters, "file_size")


def test_shortest_library_configuration_equals_the_default_settings() -> None:
    config = ConsumerConfig(group="g", bootstrap=["h:1"])
    built = config.settings(StaticSubscription({"t": 1}), clock=SystemClock(), rng=random.Random(1))
    assert built == ConsumerSettings("g", built.consumer_id, StaticSubscription({"t": 1}))
    assert (config.coordination_settings(), config.offset_settings()) == (CoordinationSettings(), OffsetSettings())
    assert config.connection_settings() == ConnectionSettings()
    assert ProducerConfig(bootstrap=["h:1"]).session_timeout == config.session_timeout


def test_rejects_an_unknown_default() -> None:
    assert default_of(Session, "session_timeout") == 6.0
    for settings, name in (
        (FetchSettings, "max_wiat"),
        (FetchSettings, "limits"),
        (ConsumerSettings, "group"),
        (Session, "connect"),
    ):
        with pytest.raises(LookupError, match=f"{settings.__name__} has no default for {name}"):
            default_of(settings, name)
