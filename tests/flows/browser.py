"""A browser without a window, for what a person sees on the servers' pages."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from .conftest import ROOT

SCREENSHOTS = ROOT / "artifacts" / "screenshots"
_INSTALL = "to run this test: apt-get install chromium chromium-driver"
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1500,2000")
_OURS = ("about:", "http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "chrome:")
_SECONDS = 60
_PASSING = (StaleElementReferenceException, ElementClickInterceptedException)  # while a page still changes


class Browser:
    """Opens pages, finds text and elements on them, and keeps pictures of them."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str, *texts: str) -> None:
        """Open a page and wait until it shows some texts."""
        self.driver.get("about:blank")  # else an address that differs after its # alone may change nothing
        self.driver.get(address)
        self.wait_for_texts(texts)

    def wait_for_texts(self, texts: Iterable[str]) -> None:
        """Wait until the page shows all of some texts."""
        missing = set(texts)

        def found() -> bool:
            shown = self.text()
            missing.difference_update([text for text in missing if text in shown])
            return not missing

        self.wait_for(found, missing)

    def text(self) -> str:
        """What the page shows."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def find(self, selector: str, least: int = 1) -> list[WebElement]:
        """Wait for so many elements."""
        self.wait_for(lambda: len(self.driver.find_elements(By.CSS_SELECTOR, selector)) >= least, selector)
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def click(self, text: str, kind: str) -> None:
        """Bring what has just this text to the top of the page, as far as that goes, and press it."""

        def press() -> bool:
            found = self.driver.find_elements(By.XPATH, f"//{kind}[normalize-space(.)='{text}']")
            if found:
                self.driver.execute_script("arguments[0].scrollIntoView()", found[-1])
                found[-1].click()
            return bool(found)

        self.wait_for(press, text)

    def wait_for(self, holds: Callable[[], Any], what: object) -> None:
        """Wait until something holds of the page."""
        try:
            WebDriverWait(self.driver, _SECONDS, ignored_exceptions=_PASSING).until(lambda _: holds())
        except TimeoutException:
            pytest.fail(f"{self.driver.current_url}: does not show {what!r}; it shows: {self.text()[:2000]}")

    def pictures_are_drawn(self, selector: str) -> bool:
        """Whether the pictures have come, and are pictures."""
        sizes = [self.driver.execute_script("return arguments[0].naturalWidth", found) for found in self.find(selector)]
        return all(sizes)

    def keep(self, name: str) -> Path:
        """Keep a picture of the page as it is."""
        time.sleep(0.4)  # what moves into its place has come to rest
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        assert self.driver.save_screenshot(str(path))
        return path

    def asked_elsewhere(self) -> set[str]:
        """Addresses beyond this machine that the pages have asked so far."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        asked = {message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"}
        return {address for address in asked if not address.startswith(_OURS)}


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Chromium; skips where there is none, but in CI fails."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and driver):
        pytest.fail(_INSTALL) if os.environ.get("CI") == "true" else pytest.skip(_INSTALL)
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    for option in _OPTIONS:
        options.add_argument(option)
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
