"""The browser of all tests that look at a page: it takes longer to start than most of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.bed import needs


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """Chromium without a window, which keeps a log of what it asks for."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("google-chrome") or needs.program("chromium")
    for option in ("--headless=new", "--no-sandbox", "--window-size=1400,850"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(needs.program("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()
