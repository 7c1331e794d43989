"""No name from a socket, a segment or a znode leads out of the directory that it is stored in.

Each place that makes a path of a topic's name gets the same hostile names. Either the name is rejected, or it is one
folder right below the directory, spelled as it is; everything else of the test's folder stays as it was.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, FileDeadLetters, HandlerContext, Letter, Message, load_handler
from consumerd.handlers.sparse_content import SparseContent
from consumerd.net.connect import connect
from consumerd.storage.archives.outputs import is_output
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.storage.log.archive_names import ArchiveLayout, MisnamedSegmentError
from consumerd.wire.registry.errors import NameRefusedError
from consumerd.wire.registry.paths import id_path, offset_path, topic_path
from consumerd.wire.v07 import LATEST, OffsetsRequest, ProduceRequest, encode_message_set
from tests.support.object_store import PROTOCOL

CLOCK = SystemClock()
#: Names that no path may be made of.
REJECTED = [
    "",
    ".",
    "..",
    "../outside",
    "../../outside",
    "a/../../outside",
    "/outside",
    "a/b",
    "nul\0",
    "line\nfeed",
    "\x1b[2J",
    "\udcff",
    "x" * 256,
    "\U0001f600" * 128,
]
#: Names that mean something elsewhere (other systems, shells, URLs), and are plain names of folders here.
PLAIN = [
    "..\\outside",
    "C:\\outside",
    "CON",
    "nul.txt",
    "trailing.",
    "~root",
    "$HOME",
    "`id`",
    "-rf",
    "*",
    "%2e%2e%2foutside",
    "..%c0%afoutside",
    "file:outside",
    "s3:outside",
    "a\u202eb",
    "\uff0e\uff0e\uff0foutside",
    "...",
    "a:b",
    "{topic}",
]


def batch(topic: str) -> Batch:
    partition = TopicPartition(topic, 0, 0)
    return Batch(partition, SparseContent([Message(partition, 0, 0, 9, b"x")]))


def everything(folder: Path) -> set[str]:
    return {os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names}


async def into_files(directory: Path, topic: str) -> None:
    await _store("files", {"directory": str(directory)}, topic)


async def into_parquet(directory: Path, topic: str) -> None:
    await _store("parquet", {"directory": str(directory)}, topic)


async def into_objects(directory: Path, topic: str) -> None:
    directory.mkdir()
    await _store("parquet", {"directory": f"{PROTOCOL}://{directory}"}, topic)


async def _store(name: str, options: dict[str, Any], topic: str) -> None:
    handler = load_handler(name, options)
    await handler.start(HandlerContext("g", "g_1", CLOCK))
    try:
        await handler.handle(batch(topic))
    finally:
        await handler.stop()


async def into_a_broker(directory: Path, topic: str) -> None:
    """A log of the broker, made by a request of a client."""
    config = BrokerConfig(log_dir=directory, broker_id=0, port=0, flush_messages=1)
    async with Broker(config, clock=CLOCK, rng=random.Random(1)) as broker:
        connection = await connect("127.0.0.1", broker.port)
        try:
            await connection.send(ProduceRequest(topic, 0, encode_message_set([b"x"])).encode())
            await connection.request(OffsetsRequest(topic, 0, LATEST, 1).encode())  # the broker closes it, or answers
        finally:
            await connection.close()


@pytest.mark.parametrize("store", [into_files, into_parquet, into_objects, into_a_broker])
@pytest.mark.parametrize("topic", REJECTED)
async def test_rejects_topics_that_are_not_the_name_of_a_folder(tmp_path: Path, store: Any, topic: str) -> None:
    (tmp_path / "bystander").write_text("data")
    with pytest.raises((ConsumerdError, UnicodeEncodeError)):
        await store(tmp_path / "inside", topic)
    assert {name for name in everything(tmp_path) if not name.startswith("inside/.")} == {"bystander"}


@pytest.mark.parametrize(("store", "suffix"), [(into_files, "/0-0"), (into_parquet, "/0-0"), (into_objects, "/0-0")])
@pytest.mark.parametrize("topic", PLAIN)
async def test_other_names_are_one_folder_of_that_name(tmp_path: Path, store: Any, suffix: str, topic: str) -> None:
    (tmp_path / "bystander").write_text("data")
    await store(tmp_path / "inside", topic)
    made = everything(tmp_path) - {"bystander"}
    assert {os.path.dirname(name) for name in made} == {f"inside/{topic}{suffix}"}
    assert os.listdir(tmp_path / "inside") == [topic]


async def test_log_folders_of_a_broker_stay_in_its_directory(tmp_path: Path) -> None:
    config = BrokerConfig(log_dir=tmp_path / "inside", broker_id=0, port=0, flush_messages=1)
    async with Broker(config, clock=CLOCK, rng=random.Random(1)) as broker:
        for topic in PLAIN:
            connection = await connect("127.0.0.1", broker.port)
            try:
                await connection.send(ProduceRequest(topic, 0, encode_message_set([b"x"])).encode())
                await connection.request(OffsetsRequest(topic, 0, LATEST, 1).encode())
            except ConsumerdError:  # no new topic is made under a name that begins with a dot, or cannot be seen
                assert topic.startswith(".") or "\u202e" in topic
            finally:
                await connection.close()
    assert os.listdir(tmp_path) == ["inside"]
    folders = {name for name in os.listdir(tmp_path / "inside") if not name.startswith(".")}
    assert folders == {f"{topic}-0" for topic in PLAIN if not topic.startswith(".") and "\u202e" not in topic}


@pytest.mark.parametrize("topic", [*REJECTED, *PLAIN])
async def test_a_dead_letter_is_one_line_of_its_file_whatever_its_topic(tmp_path: Path, topic: str) -> None:
    letters = FileDeadLetters(tmp_path / "inside" / "letters.ndjson", clock=CLOCK)
    await letters.start()
    partition = TopicPartition(topic, 0, 0)
    message = Message(partition, 0, 0, 9, b"x")
    await letters.write([Letter(message, ValueError(topic), 1)])
    await letters.stop()
    assert everything(tmp_path) == {"inside/letters.ndjson"}
    (line,) = (tmp_path / "inside" / "letters.ndjson").read_bytes().splitlines()
    assert json.loads(line)["topic"] == topic


names = st.one_of(
    st.sampled_from([*REJECTED, *PLAIN]),
    st.text(),
    st.text(st.sampled_from("./\\\0:~-0aé")),
)


@given(names, names)
def test_segments_of_an_archive_name_a_folder_of_two_levels(topic: str, above: str) -> None:
    path = f"{above}/{topic}-0/{0:020}.kafka"
    try:
        folder = ArchiveLayout().name(path).folder
    except MisnamedSegmentError:
        return
    parts = folder.split("/")
    assert len(parts) == 2
    assert not {"", ".", ".."} & {*parts}
    assert "\0" not in folder


@given(st.one_of(names, st.builds("{}/0-0/{}".format, names, names)))
def test_names_of_exported_files_lie_in_their_folder(name: str) -> None:
    if is_output(name):
        assert os.path.normpath(f"/inside/{name}") == f"/inside/{name}"
        assert "\0" not in name


@given(names)
@pytest.mark.parametrize(
    "path",
    [
        topic_path,
        lambda name: id_path("g", name),
        lambda name: id_path(name, "member"),
        lambda name: offset_path("g", TopicPartition(name, 0, 0)),
    ],
)
def test_names_of_nodes_stay_one_element_of_their_path(path: Callable[[str], str], name: str) -> None:
    """A group called `..` or `a/b` would be a node of another group."""
    try:
        found = path(name)
    except NameRefusedError:
        return
    assert found.count("/") == path("name").count("/")
    assert not {"", ".", ".."} & {*found.split("/")[1:]}
