"""Each default stands in one place: in the declaration of its setting."""

import ast
import inspect
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.settings.group import CommitSection, GroupSection, RebalanceSection
from consumerd.base.settings.kind import kind_of
from consumerd.base.settings.processing import FetchSection, HandlerSection
from consumerd.base.settings.servers import KafkaSection
from consumerd.base.settings.setting import Section
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.group.membership_tables import MembershipSettings
from consumerd.handlers import FileDeadLetters, RetryPolicy
from consumerd.member.consumer.config import ConsumerConfig
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.offsets.choice import OffsetSettings
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connection import ConnectionSettings
from consumerd.producer import ProducerConfig
from consumerd.service.config.build import build_connection_settings, build_offset_settings, build_settings
from consumerd.service.config.model import Config, parse
from consumerd.wire.registry.subscription import StaticSubscription

ROOT = Path(__file__).parents[4]


def test_every_keyword_of_the_library_refers_to_its_key() -> None:
    """A number that is written there again would stay behind when the default changes."""
    tree = ast.parse(Path(inspect.getfile(ConsumerConfig)).read_text("utf-8"))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ConsumerConfig")
    said = {ast.unparse(each.target): each.value for each in body if isinstance(each, ast.AnnAssign)}
    declared = [
        ([f"{each.__name__}.{setting.name}" for each in table.__mro__], setting)
        for table in Config.tables().values()
        for setting in table.fields.values()
        if setting.names.keyword is not None
    ]
    assert len(declared) >= 30
    for keys, setting in declared:
        default = said[setting.names.keyword or ""]
        shown = None if default is None else ast.unparse(default)
        expected = [None] if setting.required else ["None"] if setting.default is None else keys
        assert shown in expected, f"{setting.names.keyword} of ConsumerConfig does not have the default of {keys[0]}"


def test_settings_of_a_client_refer_to_the_keys() -> None:
    """As the keywords: a value that is written twice would differ after a change of one."""
    room, table = ClientSettings, KafkaSection
    tree = ast.parse(Path(inspect.getfile(room)).read_text("utf-8"))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == room.__name__)
    said = {ast.unparse(each.target): each.value for each in body if isinstance(each, ast.AnnAssign)}
    shared = [(name, said[name]) for name in table.fields if name in said and table.fields[name].value() is not None]
    assert shared
    for name, default in shared:
        assert default is not None
        assert f"{table.__name__}.{name}" in ast.unparse(default), name


@pytest.mark.parametrize(
    ("room", "tables"),
    [
        (FetchSettings, [FetchSection]),
        (RetryPolicy, [HandlerSection]),
        (MembershipSettings, [RebalanceSection]),
        (CoordinationSettings, [GroupSection, RebalanceSection]),
        (OffsetSettings, [CommitSection]),
    ],
)
def test_settings_of_rooms_have_the_declared_keys(room: type[Section], tables: list[type[Section]]) -> None:
    declared = {name: field for table in tables for name, field in table.fields.items()}
    assert room.fields
    assert all(declared[name] is field for name, field in room.fields.items())
    assert room.tuned.isdisjoint(declared)


#: What a program sees of a changed default.
CHANGED = """
import json
from consumerd.base.settings.group import CommitSection as table
table.interval = table.fields["interval"] = table.fields["interval"]._replace(default=7.5)

from consumerd.service.config.example import example_toml
from consumerd.service.config.model import Config, parse
from consumerd.service.config.schema import config_schema
from consumerd.member.consumer.config import ConsumerConfig
from consumerd.member.consumer.settings import ConsumerSettings
from tests.unit.test_site import module_of_docs
docs = module_of_docs("defaults")

seen = {
    "toml": parse({"group": {"id": "g", "topics": {"t": 1}}}, "x", environment=False).commit.interval,
    "keyword": ConsumerConfig(group="g").commit_interval,
    "settings": ConsumerSettings("g", "g_1", None).commit.interval,
    "schema": config_schema({})["definitions"]["CommitSection"]["properties"]["interval"]["default"],
    "example": "# interval = 7.5" in example_toml(),
    "documents": [each for each in docs.DOCUMENTS if docs.rewritten(each) != docs.read(each)],
}
print(json.dumps(seen))
"""


def test_a_default_that_changes_is_changed_everywhere() -> None:
    ended = subprocess.run([sys.executable, "-c", CHANGED], capture_output=True, text=True, check=True, cwd=ROOT)
    seen = json.loads(ended.stdout)
    assert len(seen.pop("documents")) >= 6
    assert seen == {"toml": 7.5, "keyword": 7.5, "settings": 7.5, "schema": 7.5, "example": True}


def test_shortest_configuration_equals_the_default_settings() -> None:
    clock, rng = SystemClock(), random.Random(1)
    by_zookeeper = parse({"group": {"id": "g", "topics": {"t": 1}}}, "a test", environment=False)
    built = build_settings(by_zookeeper, clock=clock, rng=rng)
    assert built == ConsumerSettings("g", built.consumer_id, StaticSubscription({"t": 1}))
    # What is read of a file is what the member has: a new key needs its declaration and its use, and nothing between.
    assert built.fetch is by_zookeeper.fetch
    assert built.commit is by_zookeeper.commit
    assert built.handler is by_zookeeper.handler
    assert built.membership is by_zookeeper.rebalance
    assert build_connection_settings(by_zookeeper) == ConnectionSettings()
    by_kafka = parse({"group": {"id": "g", "topics": {"t": 1}, "coordination": "kafka"}}, "a test", environment=False)
    assert CoordinationSettings.of(by_kafka.group, by_kafka.rebalance) == CoordinationSettings()
    assert build_offset_settings(by_kafka) == OffsetSettings()
    assert by_kafka.handler.dead_letter_max_size == inspect.signature(FileDeadLetters).parameters["max_size"].default
    assert by_kafka.handler.dead_letter_file_size == inspect.signature(FileDeadLetters).parameters["file_size"].default


def test_shortest_library_configuration_equals_the_default_settings() -> None:
    config = ConsumerConfig(group="g", bootstrap=["h:1"])
    built = config.settings(StaticSubscription({"t": 1}), clock=SystemClock(), rng=random.Random(1))
    assert built == ConsumerSettings("g", built.consumer_id, StaticSubscription({"t": 1}))
    assert (config.coordination_settings(), config.offset_settings()) == (CoordinationSettings(), OffsetSettings())
    assert config.connection_settings() == ConnectionSettings()
    assert ProducerConfig(bootstrap=["h:1"]).session_timeout == config.session_timeout


def test_keywords_have_the_choices_of_their_keys() -> None:
    """A choice that is added to a key and not here is one that the library's users cannot name, or that fails late."""
    hints = get_type_hints(ConsumerConfig)
    kinds = {
        setting.names.keyword: table.kinds()[name]
        for table in Config.tables().values()
        for name, setting in table.fields.items()
    }
    compared = {name: kind_of(hints[name]).choices for name, kind in kinds.items() if kind.choices and name in hints}
    assert len(compared) == 8
    assert compared == {name: kinds[name].choices for name in compared}
