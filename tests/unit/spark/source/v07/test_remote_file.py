"""Segments behind URLs, on the file systems that fsspec brings along."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from consumerd.spark.source.errors import DataLossError, FileReadError
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import FileRange, V07Split
from consumerd.spark.source.v07.reading import read_split
from consumerd.spark.source.v07.segment_file import RemoteFile, is_remote
from consumerd.wire.v07 import encode_message_set

DATA = encode_message_set([b"%d" % number for number in range(2000)])


def values(split: V07Split, **arguments: Any) -> list[bytes]:
    return [
        value
        for batch in read_split(split, ReadRequest(("offset", "value"), **arguments))
        for value in batch.column("value").to_pylist()
    ]


def split_of(url: str, size: int = len(DATA)) -> V07Split:
    return V07Split("events", 0, 1, 70, 70 + size, FileRange(url, 70))


@pytest.fixture
def bucket() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()


def test_reads_a_url(bucket: Any) -> None:
    bucket.pipe_file("/logs/x.kafka", DATA)
    bucket.pipe_file("/logs/x.kafka.gz", gzip.compress(DATA))
    expected = [b"%d" % number for number in range(2000)]
    assert values(split_of("memory://logs/x.kafka")) == expected
    assert values(split_of("memory://logs/x.kafka.gz")) == expected


def test_reports_a_missing_url(bucket: Any) -> None:
    split = split_of("memory://logs/none.kafka")
    with pytest.raises(DataLossError, match=r"memory://logs/none\.kafka: the file was deleted"):
        values(split)
    assert values(split, fail_on_data_loss=False) == []


def test_reports_a_url_shorter_than_planned(bucket: Any) -> None:
    bucket.pipe_file("/logs/x.kafka", DATA[:100])
    split = split_of("memory://logs/x.kafka")
    with pytest.raises(DataLossError):
        values(split)
    kept = values(split, fail_on_data_loss=False)
    assert kept == [b"%d" % number for number in range(len(kept))]
    assert len(kept) > 5


def test_reports_fsspec_errors_in_one_sentence() -> None:
    with pytest.raises(FileReadError, match=r"cannot read nosuchscheme://x/y\.kafka: ValueError"):
        RemoteFile("nosuchscheme://x/y.kafka", 0)


def test_rejects_a_server_without_range_requests(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pipe_file("/x.kafka", DATA)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *_, **__: DATA)
    with pytest.raises(FileReadError, match="its server ignores range requests"):
        RemoteFile("memory://x.kafka", 0).fetch(10, 20)


def test_reports_any_store_error_in_one_sentence(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> bytes:
        raise RuntimeError("out of order")

    bucket.pipe_file("/x.kafka", DATA)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", broken)
    with pytest.raises(FileReadError, match=r"cannot read memory://x\.kafka: RuntimeError: out of order"):
        RemoteFile("memory://x.kafka", 0).fetch(10, 20)


def test_distinguishes_paths_and_urls() -> None:
    assert not is_remote("/var/log/kafka/x.kafka")
    assert is_remote("s3://bucket/x.kafka")
    assert is_remote("zip::s3://bucket/x.zip")
