"""The page in a real browser, as a person uses it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kproxy import recording
from tests.bed import mock_cluster, needs, proxies
from tests.bed.waiting import until
from tests.recording import making

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FIT = 20
"""Rows that the window shows for certain."""
HOSTILE = '<img src=x onerror="document.title=1">\x1b[31m\u202e'


@pytest.fixture(scope="module")
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


@contextlib.contextmanager
def opened(browser: webdriver.Chrome, path: Path) -> Iterator[Callable[[str], list[Any]]]:
    """The page of a recording; what finds elements in it. It asked nobody else, and nothing
    failed."""
    command = [sys.executable, "-m", "kproxy", "web", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            address = served.stdout.readline().strip()
            browser.get(address)
            yield lambda selector: browser.find_elements(By.CSS_SELECTOR, selector)
        finally:
            served.terminate()
    assert served.returncode == 0
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
    home = address.partition("/enter/")[0]
    asked = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    urls = [
        each["params"]["request"]["url"]
        for each in asked
        if each["method"] == "Network.requestWillBeSent"
    ]
    assert urls and all(url.startswith(f"{home}/") for url in urls), urls


def texts(browser: webdriver.Chrome, selector: str) -> list[str]:
    """The texts of elements, all of one moment."""
    script = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
    return browser.execute_script(script, selector)


def filtered(browser: webdriver.Chrome, text: str) -> list[str]:
    """Type a filter; return the names of the first exchanges that it should leave, once as many
    are there."""
    bar = browser.find_element(By.CSS_SELECTOR, "#filter input")
    bar.send_keys(Keys.CONTROL + "a")
    bar.send_keys(text or Keys.DELETE, Keys.ENTER)
    expected = [each.name for each in recording.read(DEMO, text or None)]
    count = f"{len(expected)} exchange{'' if len(expected) == 1 else 's'}"
    until(lambda: texts(browser, "#count") == [count], count, 20)
    first = expected[:FIT]
    until(lambda: len(texts(browser, ".row .name")) >= len(first), "rows", 20)
    return first


def test_filters_leave_what_show_says(browser: webdriver.Chrome) -> None:
    with opened(browser, DEMO):
        for wanted in ("api:Fetch", "client_id:billing", "number:1000", "error:*", ""):
            expected = filtered(browser, wanted)
            assert texts(browser, ".row .name")[:FIT] == expected
        assert browser.current_url.endswith("/")


def test_an_exchange_is_opened_by_the_keyboard_and_its_address_shared(
    browser: webdriver.Chrome,
) -> None:
    with opened(browser, DEMO) as find:
        first, *_ = filtered(browser, "api:Produce")
        find("#filter input")[0].send_keys(Keys.ESCAPE)
        (body,) = find("body")
        body.send_keys("j")
        body.send_keys(Keys.ENTER)
        until(lambda: find("#exchange h3"), "its fields", 20)
        assert find("#exchange h2")[0].text.startswith(first)
        assert any("acks" in each.text for each in find("#exchange td"))
        shared = browser.current_url
        browser.get(shared)
        until(lambda: find("#exchange h3"), "its fields", 20)
        assert find("#filter input")[0].get_attribute("value") == "api:Produce"
        find("body")[0].send_keys(Keys.ESCAPE)
        (panel,) = find("#exchange")
        until(lambda: not panel.is_displayed(), "closed", 20)
        browser.back()
        until(panel.is_displayed, "open again", 20)


def test_texts_of_clients_stay_texts(browser: webdriver.Chrome, tmp_path: Path) -> None:
    batches = making.conversation()
    hostile = making.opened(3, client_address="127.0.0.1:1", client_id=HOSTILE)
    path = making.write(tmp_path / "hostile.mcap", [[hostile, *batches[0]], *batches[1:]])
    with opened(browser, path) as find:
        until(lambda: find(".row .client"), "rows", 20)
        assert "<img src=x" in "".join(texts(browser, ".row .client"))
        assert not find("img") and browser.title == "kproxy"
        assert not {"\u202e", "\x1b"} & set("".join(texts(browser, "body")))


def test_live_traffic_grows_the_list_and_a_rule_is_made_from_an_exchange(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    client_id = "<img src=x>"

    def click(selector: str, text: str = "") -> None:
        script = "[...document.querySelectorAll(arguments[0])]"
        script += ".filter(each => each.textContent.includes(arguments[1])).at(-1).click()"
        browser.execute_script(script, selector, text)

    def hits() -> list[str]:
        return texts(browser, ".faults td:nth-child(2)")

    with mock_cluster.running() as brokers:
        with proxies.running(brokers, tmp_path, "--control", "127.0.0.1:0") as proxy:
            browser.get(proxy.says("page: http").partition("page: ")[2])
            until(lambda: texts(browser, "#tabs button")[3:] == ["Faults"], "it is live", 20)
            settings = {"bootstrap.servers": proxy.bootstrap, "client.id": client_id}
            producer = Producer({**settings, "retry.backoff.ms": 10, "log_level": 0})

            def produce() -> None:
                producer.produce("orders", b"x")
                assert producer.flush(20) == 0

            produce()
            until(lambda: "Produce" in "".join(texts(browser, ".row .api")), "its row", 20)
            assert client_id in texts(browser, ".row .client")
            click(".row", "Produce")
            until(lambda: texts(browser, ".experiment button") == ["Add"], "the form", 20)
            click(".experiment button")
            until(lambda: hits() == ["0"], "the rule", 20)
            produce()
            until(lambda: hits() == ["3"], "its hits", 20)
            click(".faults button", "remove")
            until(lambda: texts(browser, "#view p")[:1], "no rule", 20)
            click("#tabs button", "Exchanges")
            until(lambda: texts(browser, ".row.faulted"), "what it did", 20)
            assert not browser.find_elements(By.CSS_SELECTOR, "img")
            browser.get("about:blank")
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
    browser.get_log("performance")
