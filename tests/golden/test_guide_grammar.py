"""Every API, version and field of the protocol guide is in the schemas, in its order, with its type."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

from consumerd.wire.v08 import APIS, ERRORS, Field, FieldType, RequestHeader, ResponseHeader

_TITLE = re.compile(r"^(\w+) API \(Key: (\d+)\):$")
_MESSAGE = re.compile(r"^(\w+) (Request|Response) \(Version: (\d+)\) => ?(.*)$")
_PRODUCTION = re.compile(r"^( *)(\w+) => (.*)$")
_ERROR = re.compile(r"^([A-Z_]+?)(-?\d+)(True|False)(.*)$")
_KEY = re.compile(r"^([A-Za-z]+)(\d+)$")


#: The names of fields that Kafka's schemas changed since: theirs, with the path to it -> the guide's. `outer.inner`:
#: there it is in a structure of its own, also as the element of an array. Nothing: there is no structure there.
GUIDE_NAMES = {
    "Produce request": "timeout_ms=timeout topic_data.name=topic topic_data.partition_data=data "
    "topic_data.partition_data.index=partition topic_data.partition_data.records=record_set",
    "Produce response": "responses.name=topic responses.partition_responses.index=partition "
    "responses.partition_responses.log_append_time_ms=timestamp",
    "Fetch request": "max_wait_ms=max_wait_time topics.partitions.partition_max_bytes=max_bytes",
    "Fetch response": "responses.partitions=partition_responses responses.partitions.partition_index=partition "
    "responses.partitions.records=record_set",
    "ListOffsets request": "topics.name=topic topics.partitions.partition_index=partition",
    "ListOffsets response": "topics=responses topics.name=topic topics.partitions=partition_responses "
    "topics.partitions.partition_index=partition topics.partitions.old_style_offsets=offsets",
    "Metadata request": "topics.name=",
    "Metadata response": "topics=topic_metadata topics.error_code=topic_error_code topics.name=topic "
    "topics.partitions=partition_metadata topics.partitions.error_code=partition_error_code "
    "topics.partitions.partition_index=partition_id topics.partitions.leader_id=leader "
    "topics.partitions.replica_nodes=replicas topics.partitions.isr_nodes=isr",
    "OffsetCommit request": "topics.name=topic topics.partitions.partition_index=partition "
    "topics.partitions.committed_offset=offset topics.partitions.committed_metadata=metadata "
    "generation_id_or_member_epoch=group_generation_id topics.partitions.commit_timestamp=timestamp "
    "retention_time_ms=retention_time",
    "OffsetCommit response": "topics=responses topics.name=topic topics.partitions=partition_responses "
    "topics.partitions.partition_index=partition",
    "OffsetFetch request": "topics.name=topic topics.partition_indexes=partitions.partition",
    "OffsetFetch response": "topics=responses topics.name=topic topics.partitions=partition_responses "
    "topics.partitions.partition_index=partition topics.partitions.committed_offset=offset",
    "FindCoordinator request": "key=group_id",
    "FindCoordinator response": "node_id=coordinator.node_id host=coordinator.host port=coordinator.port",
    "JoinGroup request": "session_timeout_ms=session_timeout rebalance_timeout_ms=rebalance_timeout "
    "protocols=group_protocols protocols.name=protocol_name protocols.metadata=protocol_metadata",
    "JoinGroup response": "protocol_name=group_protocol leader=leader_id members.metadata=member_metadata",
    "Heartbeat request": "generation_id=group_generation_id",
    "SyncGroup request": "assignments=group_assignment assignments.assignment=member_assignment",
    "SyncGroup response": "assignment=member_assignment",
    "DescribeGroups request": "groups=group_ids",
    "DescribeGroups response": "groups.group_state=state groups.protocol_data=protocol",
    "SaslHandshake response": "mechanisms=enabled_mechanisms",
    "ApiVersions response": "api_keys=api_versions",
    "CreateTopics request": "topics=create_topic_requests topics.name=topic topics.assignments=replica_assignment "
    "topics.assignments.partition_index=partition_id topics.assignments.broker_ids=replicas "
    "topics.configs.name=config_key topics.configs.value=config_value timeout_ms=timeout",
    "CreateTopics response": "topics=topic_error_codes topics.name=topic",
    "DeleteTopics request": "topic_names=topics timeout_ms=timeout",
    "DeleteTopics response": "responses=topic_error_codes responses.name=topic",
}


@dataclass
class Node:
    """A symbol of the grammar: [array] or not, a type's word or the symbols of a structure."""

    name: str
    array: bool
    word: str | None = None
    parts: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        content = self.word or "(" + " ".join(map(str, self.parts)) + ")"
        return f"{self.name}={f'[{content}]' if self.array else content}"


def symbols(text: str) -> list[Node]:
    return [Node(word.strip("[]"), word.startswith("[")) for word in text.split()]


def grammar(lines: list[str]) -> list[Node]:
    """The symbols of one message: those of its title, explained on the indented lines below it."""
    top = symbols(lines[0])
    open_levels: list[tuple[int, list[Node]]] = [(0, list(top))]
    for line in lines[1:]:
        found = _PRODUCTION.match(line)
        if found is None:
            break
        indent, name, text = len(found[1]), found[2], found[3].strip()
        while open_levels[-1][0] >= indent:
            open_levels.pop()
        waiting = open_levels[-1][1]
        node = waiting.pop(0)
        assert node.name == name, f"{name} where {node.name} is due"
        if text.isupper():
            node.word = text
        else:
            node.parts = symbols(text)
            open_levels.append((indent, list(node.parts)))
    return top


def described(fields: tuple[Field, ...], version: int, names: dict[str, str], within: str = "") -> list[Node]:
    """The schema's fields as symbols. `names`: those of the guide by their paths"""
    nodes: list[Node] = []
    for one in fields:
        if not one.in_version(version):
            continue
        path = within + one.name
        outer, _, inner = names.get(path, one.name).partition(".")
        node = Node(outer, one.type is FieldType.ARRAY)
        content = one.of if one.type in (FieldType.ARRAY, FieldType.STRUCT) else one.type
        if isinstance(content, FieldType):
            # The guide says of arrays neither, and of record sets and byte strings, that they may be null.
            nullable = content is FieldType.STRING and one.null_in(version) and not node.array
            word = "BYTES" if content is FieldType.RECORDS else content.value
            node.word = f"NULLABLE_{word}" if nullable else word
        else:
            node.parts = described(content, version, names, f"{path}.")
            if len(node.parts) == 1 and not node.parts[0].name:
                node.word, node.parts = node.parts[0].word, []
        if inner:
            node.word, node.parts = None, [Node(inner, False, node.word)]
        if inner and nodes and nodes[-1].name == outer:
            nodes[-1].parts += node.parts
        else:
            nodes.append(node)
    return nodes


@pytest.fixture(scope="module")
def guide(golden: Path, missing: Callable[[str], NoReturn]) -> list[str]:
    """The lines of the guide, which lies in `spec` beside the recordings."""
    folder = golden.parent / "spec"
    texts = [path.read_text(encoding="utf-8").splitlines() for path in sorted(folder.glob("*.txt"))]
    guides = [lines for lines in texts if lines[:1] == ["Kafka protocol guide"]]
    if not guides:
        missing(f"no Kafka protocol guide in {folder}")
    return guides[0]


@pytest.fixture(scope="module")
def messages(guide: list[str]) -> dict[tuple[int, str, int], list[Node]]:
    """The grammar of every message: (API key, "request" or "response", version) -> symbols."""
    found: dict[tuple[int, str, int], list[Node]] = {}
    key = -1
    for number, line in enumerate(guide):
        if title := _TITLE.match(line):
            key = int(title[2])
        elif message := _MESSAGE.match(line):
            found[key, message[2].lower(), int(message[3])] = grammar([message[4], *guide[number + 1 :]])
    return found


def test_every_message_has_the_fields_of_the_guide(messages: dict[tuple[int, str, int], list[Node]]) -> None:
    assert len(messages) == 70
    names = {key: dict(name.split("=") for name in text.split()) for key, text in GUIDE_NAMES.items()}
    for (key, direction, version), nodes in messages.items():
        api = APIS[key]
        fields = api.request if direction == "request" else api.response
        ours = described(fields, version, names.get(f"{api.name} {direction}", {}))
        assert list(map(str, ours)) == list(map(str, nodes)), f"{api.name} {direction} {version}"


def test_other_names_of_the_guide_are_of_fields() -> None:
    apis = {api.name: api for api in APIS.values()}
    strange = []
    for key, text in GUIDE_NAMES.items():
        name, direction = key.split()
        for pair in text.split():
            path, guide_name = pair.split("=")
            fields = getattr(apis[name], direction)
            *outer, last = path.split(".")
            for each in outer:
                fields = [part for field in fields if field.name == each for part in field.of]
            if last == guide_name or last not in {field.name for field in fields}:
                strange.append(f"{key}: {pair}")
    assert strange == []


def test_describes_every_version_of_the_guide(messages: dict[tuple[int, str, int], list[Node]]) -> None:
    assert {key for key, _, _ in messages} == set(range(21))
    for key, _, version in messages:
        assert APIS[key].versions[0] <= version <= APIS[key].versions[1]
        APIS[key].check(version)


def test_names_apis_as_the_guide(guide: list[str]) -> None:
    start = guide.index("Api Keys")
    named = {int(row[2]): row[1] for line in guide[start : start + 40] if (row := _KEY.match(line))}
    assert named == {key: api.alias or api.name for key, api in APIS.items() if key <= 20}


def test_headers_are_those_of_the_guide(guide: list[str]) -> None:
    for title, header in (("Request", RequestHeader), ("Response", ResponseHeader)):
        (line,) = [line for line in guide if line.startswith(f"{title} Header => ")]
        # Tagged fields came later.
        assert tuple(line.split("=>")[1].split()) == header._fields[:-1]


def test_error_codes_are_those_of_the_guide(guide: list[str]) -> None:
    rows = [row for line in guide if (row := _ERROR.match(line))]
    assert [int(row[2]) for row in rows] == list(range(-1, 44))
    for name, code, retriable, _ in (row.groups() for row in rows):
        known = ERRORS[int(code)]
        assert (known.name, known.retriable) == (name, retriable == "True")
        assert known.text
