"""The programs in docs/producer.md do what the page says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from consumerd.demo.processes import BrokerProcess
from consumerd.storage.log.dump import read_segment
from consumerd.testing.brokers import segments_of

PAGE = Path(__file__).parents[2] / "docs" / "producer.md"
#: Those of brokers of 0.8 and later are run on one (tests/interop/test_library.py, test_transactions.py).
PROGRAMS = [
    (name, text)
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    if name not in ("cluster.py", "transfer.py")
]

WRITTEN = {"produce.py": [b"one", b"two"], "background.py": [b"event %d" % n for n in range(1000)]}


@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
async def test_runs_a_program_of_the_page(tmp_path: Path, name: str, text: str) -> None:
    async with BrokerProcess(tmp_path, None, settings={"log.flush.interval": 1}) as broker:
        assert "9092" in text
        program = tmp_path / name
        program.write_text(text.replace("9092", str(broker.port)), "utf-8")
        process = await asyncio.create_subprocess_exec(sys.executable, str(program), stderr=asyncio.subprocess.PIPE)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, errors) == (0, b"")
    segments = segments_of(broker.log_directory / "events-0")
    assert [p for path, start in segments for e in read_segment(path, start) for p in e.payloads] == WRITTEN[name]


def test_page_has_all_programs() -> None:
    assert {name for name, _ in PROGRAMS} == set(WRITTEN)
