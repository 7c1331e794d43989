"""Partitioners, encoders, and how they are found by name."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from consumerd.base import plugins
from consumerd.base.plugins import PluginKind, find_instance
from consumerd.producer import (
    DefaultEncoder,
    EncodingError,
    HashPartitioner,
    Partitioner,
    PartitionerError,
    PluginError,
    key_index,
    load_partitioner,
)
from consumerd.producer.encoders import encode_all
from consumerd.producer.partitioners import checked_index

ENCODER = PluginKind("encoder", "consumerd.encoders", PluginError)


def test_default_partitioner_hashes_as_0_7_2() -> None:
    for key in ("a", "hello", "polygenelubricants", b"\xff", ""):
        for count in (1, 2, 7):
            assert HashPartitioner().partition(key, count) == key_index(key, count)
    wrong: Any
    for wrong in (17, ("a",), 1.5):
        with pytest.raises(PartitionerError, match=f"must be text or bytes, not {type(wrong).__name__}"):
            HashPartitioner().partition(wrong, 2)


@pytest.mark.parametrize("wrong", [-1, 3, 1.0, "0", None])
def test_rejects_an_invalid_partition_of_a_partitioner(wrong: Any) -> None:
    with pytest.raises(PartitionerError, match="must return a number from 0 to 2"):
        checked_index(load_partitioner(lambda key, count: wrong), "a", 3)


class Longest(Partitioner):
    def partition(self, key: Any, count: int, /) -> int:
        return count - 1


def by_length(key: Any, count: int) -> int:
    return len(key) % count


made = Longest()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """This module as one that can be imported, and the names of it that a package provides."""
    this = ModuleType("my_partitioners")
    this.__dict__.update(Longest=Longest, by_length=by_length, made=made, number=17, cracked=Cracked)
    monkeypatch.setitem(sys.modules, "my_partitioners", this)

    def entry_points(group: str) -> list[EntryPoint]:
        names = {"longest": "Longest", "length": "by_length", "twice": "made"}
        points = [EntryPoint(name, f"my_partitioners:{value}", group) for name, value in names.items()]
        return [*points, EntryPoint("twice", "elsewhere:x", group)] if group == "consumerd.partitioners" else []

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    return this


class Cracked:
    def __init__(self) -> None:
        raise ValueError("cannot be")


@pytest.mark.parametrize(
    ("given", "index"),
    [
        (None, key_index("abcd", 3)),
        (Longest(), 2),
        (by_length, 1),
        (lambda key, count: 0, 0),
        ("longest", 2),
        ("length", 1),
        ("my_partitioners:made", 2),
        ("my_partitioners:Longest", 2),
        ("my_partitioners:by_length", 1),
    ],
)
def test_accepts_a_partitioner_as_object_function_or_name(module: ModuleType, given: Any, index: int) -> None:
    assert checked_index(load_partitioner(given), "abcd", 3) == index


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody", "unknown partitioner 'nobody'. There are length, longest, twice."),
        ("twice", "partitioner 'twice' is provided by several packages .*or name yours as module:attribute"),
        ("nowhere.at.all:x", "partitioner 'nowhere.at.all:x': no module named 'nowhere'"),
        ("my_partitioners:nothing", "'my_partitioners' has no attribute 'nothing'"),
        ("my_partitioners:number", "must be callable or have a method `partition`"),
    ],
)
def test_rejects_unknown_names(module: ModuleType, name: str, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        load_partitioner(name)


def test_reports_a_class_that_cannot_be_instantiated(module: ModuleType) -> None:
    with pytest.raises(
        PluginError, match=r"^encoder 'my_partitioners:cracked' cannot be created: ValueError: cannot be.$"
    ):
        find_instance(ENCODER, "my_partitioners:cracked")
    assert find_instance(ENCODER, "my_partitioners:made") is made
    with pytest.raises(PluginError, match=r"unknown encoder 'x'. There is none."):
        find_instance(ENCODER, "x")


@pytest.mark.usefixtures("either_codec")
def test_default_encoder_encodes_text_and_bytes() -> None:
    given = [b"a", bytearray(b"b"), memoryview(b"c"), "д", ""]
    assert encode_all(DefaultEncoder(), given) == [b"a", b"b", b"c", "д".encode(), b""]
    assert all(type(payload) is bytes for payload in encode_all(DefaultEncoder(), given))
    with pytest.raises(EncodingError, match="must be bytes or text, not int"):
        encode_all(DefaultEncoder(), [1])
    with pytest.raises(EncodingError, match="UTF-8"):
        encode_all(DefaultEncoder(), ["\ud800"])


@pytest.mark.usefixtures("either_codec")
def test_default_encoder_takes_bytes_without_a_call_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    def encode(self: DefaultEncoder, message: Any) -> bytes:
        encoded.append(message)
        return b""

    monkeypatch.setattr(DefaultEncoder, "encode", encode)
    assert encode_all(DefaultEncoder(), [b"a", b""]) == [b"a", b""]
    assert encode_all(DefaultEncoder(), [b"a", "text"]) == [b"a", b""]
    assert encoded == ["text"]
