"""`python -m tests.support.status_pictures docs/images`: the pictures of the status page in the documentation.

Strategy: the page as an operator sees it: a real ZooKeeper, a broker with two topics, two members that have run for a
while, one of whose partitions is behind, one paused and a few messages skipped. Needs Java and Chromium.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from selenium.webdriver.common.by import By

from consumerd.base.java import find_java
from consumerd.demo.processes import BrokerProcess, DaemonProcess
from consumerd.demo.zookeeper import ZooKeeperServer
from tests.kill.mirrors import producers
from tests.support.browser import open_browser

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

GROUP: Final = "shop"
TOPICS: Final = {"clicks": 1, "orders": 1}
PARTITIONS: Final = 6
TOKEN: Final = "0123456789abcdef"
HANDLER: Final = """
import asyncio
from consumerd.handlers import Handler

class Indexer(Handler):
    async def handle(self, batch):
        slow = batch.partition.name == "0-1" and batch.partition.topic == "clicks"
        for message in batch.messages():
            if message.payload.startswith(b"!"):
                message.payload.decode("ascii").partition(":")[2].index("customer")
        await asyncio.sleep(0.4 if slow else 0.002)
"""
#: Seconds for which messages are sent while pictures are taken.
TAKING: Final = 45.0
#: The pictures: their names, whether they are dark, and the width of the window in pixels.
PICTURES: Final = (("light", False, 1200), ("dark", True, 1200), ("narrow", False, 480))


async def produce(port: int, until: float) -> None:
    """Send messages at a rate that goes up and down."""
    rng = random.Random(7)
    async with producers(port) as (producer, *_):
        while (left := until - time.monotonic()) > 0:
            for topic, most in (("clicks", 60), ("orders", 20)):
                number = max(1, int(rng.random() * most * (1 + (int(left) // 10) % 3)))
                lines = [rng.randbytes(40).hex().encode() for _ in range(number)]
                if topic == "orders" and rng.random() < 0.01:
                    lines[0] = b"!an order without its fields"
                await producer.send(topic, lines, partition=rng.randrange(PARTITIONS))
            await asyncio.sleep(0.05)


async def run(folder: Path, directory: Path, seconds: float) -> None:
    """Start everything, wait, and take the pictures."""
    (directory / "indexing.py").write_text(HANDLER)
    os.environ["PYTHONPATH"] = str(directory)
    async with AsyncExitStack() as stack:
        java = await asyncio.to_thread(find_java)
        zookeeper = await stack.enter_async_context(ZooKeeperServer(directory / "zookeeper", java=java))
        broker = BrokerProcess(directory / "broker", f"{zookeeper.connect}/kafka", partitions=PARTITIONS)
        await stack.enter_async_context(broker)
        until = time.monotonic() + seconds
        producing = asyncio.create_task(produce(broker.port, until))
        tables: dict[str, Any] = {
            "group": {"id": GROUP, "topics": TOPICS},
            "zookeeper": {"connect": f"{zookeeper.connect}/kafka"},
            "fetch": {"idle_backoff": 0.1, "size": 4096},
            "commit": {"interval": 1.0},
            "handler": {"name": "indexing:Indexer", "on_failure": "skip", "max_attempts": 1},
            "health": {"listen": "127.0.0.1:0", "token": TOKEN},
            "metrics": {"lag_interval": 1.0},
        }
        await asyncio.sleep(2.0)  # the topics are registered
        daemons = [DaemonProcess(directory, tables, name=f"member-{number}") for number in range(2)]
        for daemon in daemons:
            await stack.enter_async_context(daemon)
        await asyncio.sleep(until - time.monotonic() - TAKING)
        page = next(event["url"] for event in daemons[0].events() if event["event"] == "http_listening")
        url = str(page).replace("//", f"//operator:{TOKEN}@")
        await asyncio.to_thread(take, url, folder, directory)
        await producing


def take(url: str, folder: Path, directory: Path) -> None:
    """Pause a partition, and take each picture."""
    for name, dark, width in PICTURES:
        with open_browser(directory / name, dark=dark) as driver:
            driver.get(url)
            if name == PICTURES[0][0]:
                pause(driver)
                time.sleep(10.0)  # its lag grows
                driver.get(url)
            driver.set_window_size(width, 1000)
            height = driver.execute_script("return document.documentElement.scrollHeight")
            driver.set_window_size(width, height + 160)
            driver.save_screenshot(str(folder / f"status-{name}.png"))


def pause(driver: Chrome) -> None:
    """Click on the last button of a partition."""
    buttons = [each for each in driver.find_elements(By.TAG_NAME, "button") if each.accessible_name.startswith("Pause")]
    buttons[-1].click()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(run(Path(sys.argv[1]), Path(made), float(sys.argv[2]) if len(sys.argv) > 2 else 120.0))
