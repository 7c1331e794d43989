"""A headless Chromium, driven by the WebDriver of its distribution; tests get elements as people find them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> tuple[str, str] | None:
    """The browser and its driver, if this machine has both."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


@contextmanager
def open_browser(directory: Path, *, dark: bool = False, script: bool = True) -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own in `directory`."""
    found = find_browser()
    assert found is not None
    options = webdriver.ChromeOptions()
    options.binary_location = found[0]
    for argument in (
        "--headless=new",
        "--no-sandbox",  # tests may run as root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-extensions",
        "--disable-background-networking",
        "--no-first-run",
        "--window-size=1200,1300",
        f"--user-data-dir={directory}",
    ):
        options.add_argument(argument)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(found[1]))
    try:
        driver.set_page_load_timeout(120)
        yield driver
    finally:
        driver.quit()
