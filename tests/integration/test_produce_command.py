"""`consumerd produce` as a process: what comes in on standard input is in the broker when it ends with 0."""

from __future__ import annotations

import asyncio
import os
import pty
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.base.ports import ZooKeeper
from consumerd.demo.ports import free_port
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.producer import key_index
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.wire.v07 import FetchRequest, OuterMessage, decode_batch, decode_fetch_response, iter_outer


def make_broker(log_dir: Path, zookeeper: ZooKeeper | None = None, **settings: Any) -> Broker:
    values = {"log_dir": log_dir, "port": 0, "use_zookeeper": False, "flush_messages": 1, "partitions": 2, **settings}
    return Broker(BrokerConfig(**values), clock=SystemClock(), rng=random.Random(1), zookeeper=zookeeper)


async def start(*arguments: str, **pipes: Any) -> asyncio.subprocess.Process:
    pipes.setdefault("stdin", subprocess.PIPE)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumerd", "produce", *arguments, stderr=subprocess.PIPE, **pipes
    )


async def produce(data: bytes, *arguments: str) -> tuple[int | None, str]:
    process = await start(*arguments)
    _, errors = await process.communicate(data)
    return process.returncode, errors.decode()


async def fetched(port: int, topic: str, partition: int) -> bytes:
    connection = await connect("127.0.0.1", port)
    try:
        answer = decode_fetch_response(await connection.request(FetchRequest(topic, partition, 0, 50_000_000).encode()))
    finally:
        await connection.close()
    return answer.data


async def stored(port: int, topic: str, partition: int) -> list[bytes]:
    return list(decode_batch(await fetched(port, topic, partition), 0).payloads)


async def outer(port: int, topic: str, partition: int) -> list[OuterMessage]:
    return list(iter_outer(await fetched(port, topic, partition)))


LINES = [b"", b"one", b"\xff\x00\r", b"", b"one", "привет".encode(), b"x" * 200_000, *[b"%d" % n for n in range(2000)]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
@pytest.mark.parametrize("magic", ["0", "1"])
async def test_sends_all_lines_in_order_with_any_bytes(tmp_path: Path, codec: str, magic: str) -> None:
    async with make_broker(tmp_path) as broker:
        address = f"127.0.0.1:{broker.port}"
        for data in (b"\n".join(LINES), b"last\n"):  # without and with a newline at the end
            code, errors = await produce(
                data, "--broker", address, "--topic", "t", "--partition", "1", "--codec", codec, "--magic", magic
            )
            assert (code, errors) == (0, "")
        assert await stored(broker.port, "t", 1) == [*LINES, b"last"]
        found = await outer(broker.port, "t", 1)
        assert {m.codec.name.lower() for m in found if m.codec is not None} == {codec}
        if codec == "none":
            assert {m.magic for m in found} == {int(magic)}


async def test_sends_nothing_for_empty_input(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker:
        assert await produce(b"", "--broker", f"127.0.0.1:{broker.port}", "--topic", "t") == (0, "")
        assert await stored(broker.port, "t", 0) == []


async def test_sends_batches_of_the_given_size(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker:
        address = f"127.0.0.1:{broker.port}"
        code, _ = await produce(
            b"a\n" * 10, "--broker", address, "--topic", "t", "--partition", "0", "--codec", "gzip", "--batch-size", "4"
        )
        assert code == 0
        data = await fetched(broker.port, "t", 0)
        assert [len(decode_batch(data[m.offset : m.next_offset], 0)) for m in iter_outer(data)] == [4, 4, 2]


async def test_sends_a_line_as_soon_as_it_is_read(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker:
        process = await start("--broker", f"127.0.0.1:{broker.port}", "--topic", "t", "--partition", "0")
        assert process.stdin is not None
        process.stdin.write(b"first\nhalf of the sec")
        async with asyncio.timeout(60):
            while await stored(broker.port, "t", 0) != [b"first"]:  # the other process sends no event
                await asyncio.sleep(0.05)
        process.stdin.write(b"ond")
        process.stdin.close()
        assert await process.wait() == 0
        assert await stored(broker.port, "t", 0) == [b"first", b"half of the second"]


async def test_keys_choose_the_partition_in_zookeeper(zk_root: str, tmp_path: Path) -> None:
    async with (
        Session(zk_root, clock=SystemClock(), rng=random.Random()) as zk,
        make_broker(tmp_path, zk, use_zookeeper=True, partitions=3) as broker,
    ):
        arguments = ("--zookeeper", zk_root, "--topic", "t", "--key-separator", "\\t", "--codec", "gzip")
        assert await produce(b"any\tfirst\n", *arguments) == (0, "")
        async with asyncio.timeout(60):
            while await zk.exists("/brokers/topics/t/0") is None:  # registered in the background
                await asyncio.sleep(0.02)
        keys = ["", "a", "hello", "ключ", "polygenelubricants", *map(str, range(100))]
        lines = "".join(f"{key}\tvalue\tof {key}\n" for key in keys).encode()
        assert await produce(lines + b"\xff\tbytes\n", *arguments) == (0, "")
        expected: list[list[bytes]] = [[b"first"], [], []]
        for key in keys:
            expected[key_index(key, 3)].append(f"value\tof {key}".encode())
        expected[key_index("\ufffd", 3)].append(b"bytes")
        assert [await stored(broker.port, "t", p) for p in range(3)] == expected
        # The lines of one partition travel in one compressed message.
        assert [len(await outer(broker.port, "t", p)) for p in range(3)] == [2, 1, 1]
        code, errors = await produce(b"a\tx\nno key\n", *arguments)
        assert code == ExitCode.USAGE
        assert "line 2 has no key separator '\\\\t'" in errors


async def test_reports_errors_in_one_sentence_with_an_exit_code(zk_root: str, tmp_path: Path) -> None:
    dead = free_port()
    async with Session(zk_root, clock=SystemClock(), rng=random.Random()) as zk, make_broker(tmp_path) as broker:
        await zk.ensure("/brokers/ids")
        address = f"127.0.0.1:{broker.port}"
        cases = [
            (b"x\n", ("--broker", f"127.0.0.1:{dead}", "--topic", "t"), ExitCode.BROKER, "cannot connect to broker"),
            (
                b"x\n",
                ("--broker", address, "--topic", "t", "--partition", "9"),
                ExitCode.BROKER,
                "closed the connection",
            ),
            (
                b"x" * 1_000_001,
                ("--broker", address, "--topic", "t"),
                ExitCode.USAGE,
                "has 1000001 bytes",
            ),
            (
                b"x\n",
                ("--zookeeper", f"127.0.0.1:{dead}", "--timeout", "1", "--topic", "t"),
                ExitCode.ZOOKEEPER,
                f"127.0.0.1:{dead}",
            ),
            (b"x\n", ("--zookeeper", zk_root, "--topic", "t"), ExitCode.BROKER, "no live broker is registered"),
            (b"x\n", ("--zookeeper", f"{zk_root}/no", "--topic", "t"), ExitCode.NOT_FOUND, "/no does not exist"),
        ]
        outcomes = await asyncio.gather(*[produce(data, *arguments) for data, arguments, _, _ in cases])
        for (code, errors), (_, _, expected, words) in zip(outcomes, cases, strict=True):
            last = errors.splitlines()[-1]
            assert last.startswith("consumerd: ")
            assert words in last
            assert "Traceback" not in errors
            assert code == expected


async def test_warns_about_keys_without_zookeeper(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker:
        code, errors = await produce(
            b"k:v\n", "--broker", f"127.0.0.1:{broker.port}", "--topic", "t", "--key-separator", ":"
        )
        assert code == 0
        assert errors == "consumerd: keys have no influence with --broker; give --zookeeper to place by key.\n"
        assert await stored(broker.port, "t", 0) + await stored(broker.port, "t", 1) == [b"v"]


async def test_ctrl_c_ends_a_wait_for_input(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker:
        process = await start("--broker", f"127.0.0.1:{broker.port}", "--topic", "t", "--partition", "0")
        assert process.stdin is not None
        process.stdin.write(b"sent\n")
        async with asyncio.timeout(60):
            while await stored(broker.port, "t", 0) != [b"sent"]:
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == ExitCode.INTERRUPTED
        assert errors.strip() == b"consumerd: interrupted"


async def test_prints_a_summary_on_a_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    async with make_broker(tmp_path) as broker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "consumerd", "produce", "--broker", f"127.0.0.1:{broker.port}", "--topic", "t",
            stdin=subprocess.PIPE, stderr=terminal,
        )  # fmt: skip
        os.close(terminal)
        await process.communicate(b"one\ntwo\n")
        assert process.returncode == 0
    assert os.read(controller, 1000).startswith(b"2 messages (6 bytes) sent to t in ")
    os.close(controller)


async def test_sends_in_the_background(tmp_path: Path) -> None:
    async with make_broker(tmp_path, flush_messages=1) as broker:
        address = f"127.0.0.1:{broker.port}"
        more = ("--batch-size", "50", "--queue-size", "120", "--queue-time", "0.01", "--codec", "gzip")
        code, errors = await produce(
            b"\n".join(LINES), "--broker", address, "--topic", "t", "--partition", "1", "--async", *more
        )
        assert (code, errors) == (0, "")
        assert await stored(broker.port, "t", 1) == LINES
        await broker.stop()
        code, errors = await produce(b"a\nb\n", "--broker", address, "--topic", "t", "--async")
        assert code == ExitCode.BROKER
        assert "consumerd: 2 queued messages were not sent or not confirmed; first error: cannot" in errors
        assert "Traceback" not in errors


async def test_sends_an_unfinished_batch_before_the_end_of_input(tmp_path: Path) -> None:
    async with make_broker(tmp_path) as broker:
        process = await start(
            "--broker", f"127.0.0.1:{broker.port}", "--topic", "t", "--partition", "0", "--async", "--queue-time", "0.1"
        )
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        async with asyncio.timeout(60):
            while await stored(broker.port, "t", 0) != [b"one"]:
                await asyncio.sleep(0.05)
        process.stdin.write(b"two")
        process.stdin.close()
        assert await process.wait() == 0
        assert await stored(broker.port, "t", 0) == [b"one", b"two"]


@pytest.mark.parametrize("queued", [(), ("--async",)])
async def test_verifies_what_was_sent(tmp_path: Path, queued: tuple[str, ...]) -> None:
    """A broker drops messages above its limit silently: only reading back detects it."""
    async with make_broker(tmp_path, max_message_bytes=1000) as broker:
        arguments = ("--broker", f"127.0.0.1:{broker.port}", "--topic", "t", "--verify", *queued)
        code, errors = await produce(b"\n".join(LINES[:6]) + b"\n", *arguments)
        assert (code, errors) == (0, "")
        both = await stored(broker.port, "t", 0) + await stored(broker.port, "t", 1)
        assert both == LINES[:6]
        code, errors = await produce(b"x" * 1001 + b"\n", *arguments, "--verify-timeout", "0.5")
        assert code == (ExitCode.BROKER if queued else ExitCode.CHECK_FAILED)
        assert "could not be read back within 0.5 s (1 in t-" in errors
