"""The status page in a real browser: clicks, keys, no script, and members that die while it is open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import DaemonProcess
from tests.support.browser import find_browser, open_browser

pytestmark = [pytest.mark.zookeeper]

TOKEN = "0123456789abcdef"
HEALTH = {"listen": "127.0.0.1:0", "metrics": True, "token": TOKEN}
OFTEN = {"lag_interval": 0.2}


@pytest.fixture(autouse=True)
def _browser() -> None:
    if find_browser() is None:
        reason = "needs Chromium and its driver (Debian: chromium, chromium-driver)"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"{reason} (CI=true: nothing is skipped)", pytrace=False)
        pytest.skip(reason)


def address(daemon: DaemonProcess, token: str = TOKEN) -> str:
    url = str([event["url"] for event in daemon.events() if event["event"] == "http_listening"][-1])
    return url.replace("//", f"//operator:{token}@")


def body(driver: Chrome) -> str:
    return str(driver.find_element(By.TAG_NAME, "body").text)


def _log_of(driver: Chrome) -> list[dict[str, Any]]:
    """The errors and warnings that the browser logged for the page."""
    entries: list[dict[str, Any]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return entries


def row(driver: Chrome, name: str) -> str:
    return str(driver.find_element(By.ID, f"partition-{name}").text)


def button(driver: Chrome, label: str) -> Any:
    """By its accessible name, as a screen reader finds it."""
    return next(each for each in driver.find_elements(By.TAG_NAME, "button") if each.accessible_name == label)


async def seen(look: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until the page shows it, which changes by itself, and has no rows while the browser loads it again."""

    def holds() -> bool:
        try:
            return look()
        except (NoSuchElementException, StaleElementReferenceException, StopIteration):
            return False

    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.1)


async def test_clicks_pause_and_resume_a_partition(world: Any, tmp_path: Path) -> None:
    await world.broker(partitions=2)
    for number in range(2):
        await world.append(TopicPartition("t", 0, number), b"one")
    daemon = await world.daemon(health=HEALTH, metrics=OFTEN)
    await world.until_printed(daemon, "one", "one")
    with open_browser(tmp_path / "browser") as driver:
        await asyncio.to_thread(driver.get, address(daemon))
        await seen(lambda: "consuming" in row(driver, "t/0-0") and "consuming" in row(driver, "t/0-1"))
        await asyncio.to_thread(lambda: button(driver, "Pause t/0-1").click())
        await seen(lambda: "paused" in row(driver, "t/0-1"))
        assert "consuming" in row(driver, "t/0-0")
        assert driver.find_element(By.ID, "said").text == "t/0-1: paused"
        await world.append(TopicPartition("t", 0, 0), b"two")
        await world.append(TopicPartition("t", 0, 1), b"three")
        await world.until_printed(daemon, "one", "one", "two")
        await seen(lambda: not row(driver, "t/0-1").split()[4].startswith("0"))  # its lag
        await asyncio.to_thread(lambda: button(driver, "Resume t/0-1").click())
        await world.until_printed(daemon, "one", "one", "two", "three")
        await seen(lambda: "consuming" in row(driver, "t/0-1"))
        await asyncio.to_thread(driver.get, f"{address(daemon)}?named=0-1")
        before = driver.find_element(By.CSS_SELECTOR, "header time").text
        await seen(lambda: driver.find_element(By.CSS_SELECTOR, "header time").text != before)
        assert [each.get_attribute("id") for each in driver.find_elements(By.CSS_SELECTOR, "#partitions tbody tr")] == [
            "partition-t/0-1"
        ]
        assert [entry for entry in _log_of(driver) if entry["level"] == "SEVERE"] == []


async def test_keyboard_reaches_everything_and_focus_survives_updates(world: Any, tmp_path: Path) -> None:
    await world.broker()
    await world.append(TopicPartition("t", 0, 0), b"one")
    daemon = await world.daemon(health=HEALTH, metrics=OFTEN)
    with open_browser(tmp_path / "browser") as driver:
        await asyncio.to_thread(driver.get, address(daemon))
        await seen(lambda: "consuming" in row(driver, "t/0-0"))

        def focused() -> Any:
            return driver.switch_to.active_element

        def tab_to_the_button() -> None:
            for _ in range(10):
                driver.switch_to.active_element.send_keys(Keys.TAB)
                if focused().accessible_name == "Pause t/0-0":
                    return
            raise AssertionError("no Tab leads to the button")

        await asyncio.to_thread(tab_to_the_button)
        before = driver.find_element(By.CSS_SELECTOR, "header time").text
        await seen(lambda: driver.find_element(By.CSS_SELECTOR, "header time").text != before)
        assert focused().accessible_name == "Pause t/0-0"
        await asyncio.to_thread(lambda: focused().send_keys(Keys.ENTER))
        await seen(lambda: "paused" in row(driver, "t/0-0"))
        assert focused().accessible_name == "Resume t/0-0"


async def test_shows_the_death_of_another_member_and_of_its_own(world: Any, tmp_path: Path) -> None:
    await world.broker(partitions=2)
    for number in range(2):
        await world.append(TopicPartition("t", 0, number), b"one")
    first = await world.daemon("first", health=HEALTH, metrics=OFTEN)
    second = await world.daemon("second")
    with open_browser(tmp_path / "browser") as driver:
        await asyncio.to_thread(driver.get, address(first))

        def members() -> str:
            return str(driver.find_element(By.ID, "members").text)

        await seen(lambda: f"{first.consumer_id} this member 1" in members())
        await seen(lambda: f"{second.consumer_id} live 1" in members())
        killed = second.consumer_id
        second.kill()
        await seen(lambda: killed not in members() and f"{first.consumer_id} this member 2" in members())
        await seen(lambda: "consuming" in row(driver, "t/0-0") and "consuming" in row(driver, "t/0-1"))
        gained = driver.find_element(By.ID, "rebalances").text
        assert "t/0-" in gained
        first.kill()
        await seen(lambda: "has not answered since" in driver.find_element(By.ID, "said").text)
        assert driver.title.startswith("no answer")
        driver.set_window_size(1200, 500)
        below = "return document.getElementById('said').getBoundingClientRect().bottom - innerHeight"
        assert driver.execute_script(below) <= 0
        await first.start(120)


async def test_works_without_javascript(world: Any, tmp_path: Path) -> None:
    await world.broker()
    await world.append(TopicPartition("t", 0, 0), b"one")
    daemon = await world.daemon(health=HEALTH, metrics=OFTEN)
    await world.until_printed(daemon, "one")
    with open_browser(tmp_path / "browser", script=False) as driver:

        async def loaded(text: str) -> None:
            async with asyncio.timeout(120):
                while True:
                    await asyncio.to_thread(driver.get, address(daemon))
                    if text in row(driver, "t/0-0"):
                        return

        await loaded("consuming")
        text = body(driver)
        for heading in ("Figures", "Owned partitions", "The group", "Last rebalances", "Last warnings and errors"):
            assert heading in text
        assert driver.find_elements(By.CSS_SELECTOR, "noscript meta[http-equiv=refresh]")
        await asyncio.to_thread(lambda: button(driver, "Pause t/0-0").click())
        await seen(lambda: "paused" in row(driver, "t/0-0"))


async def test_is_readable_in_light_and_dark_mode_and_by_screen_readers(world: Any, tmp_path: Path) -> None:
    await world.broker()
    await world.append(TopicPartition("t", 0, 0), b"one")
    failing = {"name": "http", "options": {"url": "http://127.0.0.1:9/in"}, "max_attempts": 1, "on_failure": "skip"}
    daemon = await world.daemon(health=HEALTH, metrics=OFTEN, handler=failing)
    await daemon.wait_for_event("messages_skipped", 60)
    contrast = """
        const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number)
            .map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
        const ground = (node) => {
            for (; node; node = node.parentElement) {
                const colour = getComputedStyle(node).backgroundColor;
                if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour;
            }
            return "rgb(255, 255, 255)";
        };
        const poor = [];
        for (const node of document.querySelectorAll("body *")) {
            if (![...node.childNodes].some((child) => child.nodeType === 3 && child.nodeValue.trim())) continue;
            const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
            if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${node.tagName} ${node.textContent.slice(0, 40)}`);
        }
        return [getComputedStyle(document.body).backgroundColor, poor];
    """
    grounds = set()
    for dark in (False, True):
        with open_browser(tmp_path / f"browser-{dark}", dark=dark) as driver:
            await asyncio.to_thread(driver.get, address(daemon))
            await seen(lambda: "consuming" in row(driver, "t/0-0"))
            ground, poor = driver.execute_script(contrast)
            assert poor == []
            grounds.add(ground)
            regions = driver.find_elements(By.CSS_SELECTOR, "section[aria-labelledby]")
            assert "Owned partitions" in [region.accessible_name for region in regions]
            assert [image.aria_role for image in driver.find_elements(By.TAG_NAME, "svg")] == ["image", "image"]
            for image in driver.find_elements(By.TAG_NAME, "svg"):
                assert image.accessible_name
            for cell in driver.find_elements(By.CSS_SELECTOR, "tbody tr"):
                assert cell.find_elements(By.CSS_SELECTOR, "th[scope=row]")
            assert driver.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"
            driver.set_window_size(360, 800)
            assert driver.execute_script(NARROW) == [[], [0]]
    assert len(grounds) == 2


#: The names of partitions that are broken into lines, and by how many pixels the text of each warning is too wide.
NARROW = """
    const lines = (node) => new Set([...node.getClientRects()].map((rect) => rect.top)).size;
    const broken = [...document.querySelectorAll(".name")].filter((node) => lines(node) > 1);
    const region = document.querySelector("#errors .scroll");
    return [broken.map((node) => node.textContent), [region.scrollWidth - region.clientWidth]];
"""
