"""A daemon whose memory the system limits (RLIMIT_AS): what it cannot take is neither lost nor committed."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.wire.v07 import Codec

pytestmark = [
    pytest.mark.long,
    pytest.mark.zookeeper,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prlimit is Linux's"),
]

MIB = 1 << 20
#: Of 7 kB each: 28 MB in one compressed message.
MESSAGES = 4000
TP = TopicPartition("t", 0, 0)


def address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


async def test_batch_that_does_not_fit_into_memory_is_delivered_when_there_is_memory(
    world: Any, tmp_path: Path
) -> None:
    await world.broker()
    first = await world.append(TP, b"first")
    out = tmp_path / "out"
    tables = {"handler": {"name": "files", "options": {"directory": str(out)}}, "commit": {"interval": 0.1}}
    daemon = await world.daemon(**tables)

    async def committed_to(offset: int) -> bool:
        return bool(await world.offset(TP) == offset)

    await world.until(lambda: committed_to(first))
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (address_space(daemon.pid) + 2 * MIB, hard))
    end = await world.append(TP, *(b"%07d" % number * 1000 for number in range(MESSAGES)), codec=Codec.GZIP)
    assert await daemon.wait(60) == ExitCode.INTERNAL
    assert "consumerd: no memory is left" in daemon.child.tail(1)
    assert await committed_to(first)

    await daemon.start(60)
    await world.until(lambda: committed_to(end))
    lines = b"".join(path.read_bytes() for path in sorted(out.rglob("[0-9]*.ndjson"))).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["payload"][:7] for row in rows] == ["first", *(f"{number:07d}" for number in range(MESSAGES))]
