from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.builtin.console import ConsoleHandler, EnoughError, parse_form
from consumerd.wire.v08.records import decode_records, encode_record_batch

MakeBatch = Callable[..., Batch]


@pytest.mark.asyncio
async def test_prints_payloads_as_lines_or_json_with_the_identity(tmp_path: Path, make_batch: MakeBatch) -> None:
    with (tmp_path / "out").open("wb") as out:
        await ConsoleHandler(descriptor=out.fileno()).handle(make_batch(b"one", b"\xff"))
        await ConsoleHandler(as_json=True, descriptor=out.fileno()).handle(make_batch(b"two", start=7))
    lines = (tmp_path / "out").read_bytes().splitlines()
    assert lines[:2] == [b"one", b"\xff"]
    assert json.loads(lines[2])["offset"] == 7


@pytest.mark.asyncio
async def test_prints_keys_before_payloads_if_asked(tmp_path: Path, make_batch: MakeBatch) -> None:
    data = encode_record_batch([b"one", None, b"three"], keys=[b"k", b"gone", None])
    keyed = Batch(TopicPartition.numbered("t", 0), decode_records(data, 0))
    with (tmp_path / "out").open("wb") as out:
        handler = ConsoleHandler(key_separator=b": ", descriptor=out.fileno())
        await handler.handle(keyed)
        await handler.handle(make_batch(b"of 0.7"))
        await handler.handle(Batch(TopicPartition.numbered("t", 0), decode_records(data, 0), first=1))
    lines = [b"k: one", b"gone: ", b": three", b": of 0.7", b"gone: ", b": three"]
    assert (tmp_path / "out").read_bytes().splitlines() == lines


@pytest.mark.asyncio
async def test_prints_exactly_the_maximum_from_concurrent_partitions(tmp_path: Path, make_batch: MakeBatch) -> None:
    with (tmp_path / "out").open("wb") as out:
        handler = ConsoleHandler(max_messages=5, descriptor=out.fileno())
        batches = [make_batch(b"a", b"b", partition=p) for p in range(4)]
        results = await asyncio.gather(*[handler.handle(batch) for batch in batches], return_exceptions=True)
    assert (tmp_path / "out").read_bytes().count(b"\n") == 5
    assert [batch.handled for batch in batches] == [2, 2, 1, 0]
    assert isinstance(results[2], EnoughError)
    assert isinstance(results[3], EnoughError)
    assert results[2].exit_code is ExitCode.OK


@pytest.mark.asyncio
async def test_prints_what_a_format_of_kcat_says(tmp_path: Path, make_batch: MakeBatch) -> None:
    data = encode_record_batch([b"one", None], keys=[b"k", None], timestamps=7, headers={0: (("h", b"1"), ("i", None))})
    keyed = Batch(TopicPartition.numbered("t", 3), decode_records(data, 0))
    with (tmp_path / "out").open("wb") as out:
        form = parse_form(r"%t/%p@%o %T %k:%K %s:%S [%h] 100%%\x21\t\n")
        await ConsoleHandler(form=form, descriptor=out.fileno()).handle(keyed)
        await ConsoleHandler(form=parse_form("%p %s %K "), descriptor=out.fileno()).handle(make_batch(b"of 0.7"))
    assert (tmp_path / "out").read_bytes() == (
        b"t/3@0 7 k:1 one:3 [h=1,i=] 100%!\t\nt/3@1 7 :-1 :-1 [] 100%!\t\n0-0 of 0.7 -1 "
    )


@pytest.mark.parametrize("text", ["%", "%x", "\\", r"\xg", r"\q"])
def test_rejects_formats_that_kcat_does_not_have(text: str) -> None:
    with pytest.raises(ValueError, match="must consist of %s"):
        parse_form(text)


@pytest.mark.asyncio
async def test_begins_at_the_given_offset() -> None:
    partition = TopicPartition.numbered("t", 3)
    assert await ConsoleHandler(starts={partition: 5}).position(partition) == 5
    assert await ConsoleHandler().position(partition) is None
