"""The demo as a newcomer runs it: whole, on awkward input, interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import aiohttp
import psutil
import pytest

from consumerd.base.java import JavaRuntime
from consumerd.demo.children import Child
from consumerd.demo.processes import clean_environment, consumerd_command

pytestmark = [pytest.mark.zookeeper, pytest.mark.kill]


def demo(tmp_path: Path, *arguments: str) -> Child:
    (tmp_path / "tmp").mkdir()
    environ = clean_environment() | {"TMPDIR": str(tmp_path / "tmp")}
    command = consumerd_command("demo", *arguments)
    return Child(command, log=tmp_path / "demo.log", stdout=tmp_path / "demo.out", env=environ, name="demo")


@pytest.mark.spark
@pytest.mark.timeout(400)
async def test_counts_every_message_by_identity(java: JavaRuntime, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    repeated = [b"the same line"] * 6_000 + [b""] * 1_000
    awkward = [b"\xff\xfe not text \x00", b"x" * 2_500_000, os.urandom(1_500_000).replace(b"\n", b"_"), b"\r", b"{}"]
    (folder / "1").write_bytes(b"\n".join(repeated + awkward) + b"\n")
    (folder / "2").write_bytes(b"\n".join(b"%d" % number for number in range(20_000)))
    report = tmp_path / "report.html"
    async with demo(tmp_path, "--input", str(folder), "--seconds", "4", "--report", str(report)) as child:
        assert await child.wait(340) == 0, child.output()
    result = json.loads((tmp_path / "demo.out").read_text().splitlines()[-1])
    assert result["produced"] == result["distinct"] == 27_005
    assert result["handled"] == result["distinct"] + result["duplicated"]
    assert [result[name] for name in ("lost", "out_of_order", "corrupted", "overlapping")] == [0, 0, 0, 0]
    assert result["rebalances"] >= 4
    assert result["rows_landed"] == 27_005
    # Lines that do not begin with a word: empty ones, numbers, bytes.
    assert result["rows_quarantined"] == 1_000 + 20_000 + len(awkward) - 1
    assert (result["gaps"], result["duplicates"]) == (0, 0)
    assert result["report"] == str(report)
    assert "<html" in report.read_text()
    assert "refine" in child.output()
    assert result["seconds"] > 4
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_ends_all_child_processes(java: JavaRuntime, tmp_path: Path, number: signal.Signals) -> None:
    async with demo(tmp_path) as child:
        await child.wait_for_line(lambda line: "brokers listen" in line, 60)
        family = psutil.Process(child.pid).children(recursive=True)
        servers = [process for process in family if process.name() not in ("sh", "dash", "bash")]
        assert len(servers) >= 3  # a ZooKeeper and two brokers
        child.signal(number)
        status = await child.wait(60)
        await asyncio.to_thread(psutil.wait_procs, family, 60)
        assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    if number is not signal.SIGKILL:
        assert status == 130
        assert f"ended by {number.name}, and all its processes with it" in child.output()
        assert "Traceback" not in child.output()
        assert list((tmp_path / "tmp").iterdir()) == []


async def test_keep_serves_status_pages_until_stopped(java: JavaRuntime, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"".join(b"line %d\n" % number for number in range(5_000)))
    arguments = ("--input", str(tmp_path / "input"), "--seconds", "2", "--no-spark", "--keep")
    async with demo(tmp_path, *arguments) as child:
        await child.wait_for_line(lambda line: "the demo goes on" in line, 200)
        result = json.loads((tmp_path / "demo.out").read_text())
        assert result["distinct"] == result["produced"] == 5_000
        urls = re.findall(r"daemon-\d: (http://\S+)", child.output())
        assert len(urls) == 3
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session, asyncio.timeout(120):
            for url in urls:
                async with session.get(url) as page:
                    assert page.status == 200
            while True:
                async with session.get(f"{urls[0]}status.json") as answer:
                    status = await answer.json()
                if (
                    status["totals"]["messages"]
                    and sum(each["partitions"] for each in status["members"]["live"] or ()) == 8
                ):
                    break
                await asyncio.sleep(0.2)
        assert len(status["members"]["live"]) == 3
        child.signal(signal.SIGTERM)
        assert await child.wait(60) == 0
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_reports_a_missing_input(tmp_path: Path) -> None:
    async with demo(tmp_path, "--input", str(tmp_path / "no")) as child:
        assert await child.wait(60) == 8
    assert child.output() == f"consumerd: the input {tmp_path}/no does not exist: name a file or a folder with text\n"
    assert (tmp_path / "demo.out").read_text() == ""
