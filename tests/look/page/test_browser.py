"""The page in a real browser, as a person uses it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kproxy import recording
from kproxy.cli import main
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.look.lines import frame
from kproxy.look.lines.show import show_json
from kproxy.look.report.findings import findings
from kproxy.look.report.light import light_data
from kproxy.look.why.stories import story
from kproxy.printable import printable
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from tests.bed import mock_cluster, needs, proxies
from tests.bed.waiting import until
from tests.exchange.bodies import produce_request
from tests.exchange.making import request
from tests.recording import making
from tests.wire.payloads import making as payloads

HANG = needs.REPOSITORY / "tests" / "look" / "why" / "incidents" / "hang.mcap"
DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
LIST = "?view=exchanges"
FIT = 20
"""Rows that the window shows for certain."""
HOSTILE = '<img src=x onerror="document.title=1">\x1b[31m\u202e'


def requested(browser: webdriver.Chrome) -> list[str]:
    """The addresses that the browser has asked for."""
    asked = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    return [
        each["params"]["request"]["url"]
        for each in asked
        if each["method"] == "Network.requestWillBeSent"
    ]


@contextlib.contextmanager
def opened(
    browser: webdriver.Chrome, path: Path, query: str = LIST
) -> Iterator[Callable[[str], list[Any]]]:
    """The page of a recording, by default its list; what finds elements in it. It asked nobody
    else, and nothing failed."""
    command = [sys.executable, "-m", "kproxy", "web", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            address = served.stdout.readline().strip()
            home = address.partition("/enter/")[0]
            browser.get(address)
            if query:
                browser.get(f"{home}/{query}")
            yield lambda selector: browser.find_elements(By.CSS_SELECTOR, selector)
            browser.get("about:blank")  # it asks no more: then nobody may be there
        finally:
            served.terminate()
    assert served.returncode == 0
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
    urls = requested(browser)
    assert urls and all(url.startswith(f"{home}/") for url in urls), urls


def texts(browser: webdriver.Chrome, selector: str) -> list[str]:
    """The texts of elements, all of one moment."""
    script = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
    return browser.execute_script(script, selector)


def click(browser: webdriver.Chrome, selector: str, place: int) -> None:
    """Click one of some elements, which may be made anew at any moment."""
    script = "document.querySelectorAll(arguments[0])[arguments[1]].click()"
    browser.execute_script(script, selector, place)


def filtered(browser: webdriver.Chrome, text: str) -> list[str]:
    """Type a filter; return the names of the first exchanges that it should leave, once they are
    there."""
    bar = browser.find_element(By.CSS_SELECTOR, "#filter input")
    bar.send_keys(Keys.CONTROL + "a")
    bar.send_keys(text or Keys.DELETE, Keys.ENTER)
    expected = [each.name for each in recording.read(DEMO, text or None)]
    count = f"{len(expected)} exchange{'' if len(expected) == 1 else 's'}"
    until(lambda: texts(browser, "#count") == [count], count, 20)
    first = expected[:FIT]
    until(lambda: texts(browser, ".row .name")[:FIT] == first, f"rows of {text!r}", 20)
    return first


def test_filters_leave_what_show_says(browser: webdriver.Chrome) -> None:
    with opened(browser, DEMO):
        for wanted in ("api:Fetch", "client_id:billing", "number:1000", "error:*", ""):
            filtered(browser, wanted)
        assert browser.current_url.endswith(f"/{LIST}")


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
        marked = ".row[aria-selected=true] .name"
        until(lambda: texts(browser, marked) == [first], "its row", 20)
        find("body")[0].send_keys(Keys.ESCAPE)
        (panel,) = find("#exchange")
        until(lambda: not panel.is_displayed(), "closed", 20)
        browser.back()
        until(panel.is_displayed, "open again", 20)


def test_findings_come_first_and_lead_to_their_exchanges(browser: webdriver.Chrome) -> None:
    def rows() -> list[str]:
        return texts(browser, ".row .name")

    expected = findings(light_data([HANG]))
    with opened(browser, HANG, "") as find:
        shown = [each.text for each in expected]
        until(lambda: texts(browser, ".finding .text") == shown, "findings", 20)
        headings = dict.fromkeys(each.harm.heading for each in expected)
        assert [each for each in texts(browser, "h3") if each in headings] == [*headings]
        assert texts(browser, ".finding code")[0] == expected[0].command([HANG])
        assert not find("#list")[0].is_displayed()
        buttons = texts(browser, "#view button")
        for link in ("transactional_id:tx-hang", "is:routine"):
            click(browser, "#view button", buttons.index(link))
            names = [each.name for each in recording.read(HANG, link)]
            until(lambda names=names: rows() == names, link, 20)
            browser.back()
            until(lambda: find(".finding"), "back", 20)
        click(browser, "#view button", buttons.index("why transactional_id:tx-hang"))
        told, _ = story([HANG], "transactional_id", "tx-hang")
        until(lambda: texts(browser, "#story p") == told, "its story", 20)
        click(browser, "#view button", buttons.index("#102"))
        until(lambda: find("#exchange h3"), "an exchange", 20)
        assert texts(browser, "#exchange h2")[0].startswith("#102 ")
        bar = find("#filter input")[0]
        bar.send_keys("api:Fetch", Keys.ENTER)
        assert browser.switch_to.active_element == find("#list")[0], "Enter leaves the filter"
        names = [each.name for each in recording.read(HANG, "api:Fetch")]
        until(lambda: rows()[-1:] == names[-1:], "its exchanges, at the one that is open", 20)
        browser.switch_to.active_element.send_keys("k")
        until(lambda: texts(browser, "#exchange h2") == [f"{names[-2]} Fetch×"], "one up", 20)
        assert find("canvas")[0].is_displayed() and find(".row .bar")[0].is_displayed()


def test_texts_of_clients_stay_texts(browser: webdriver.Chrome, tmp_path: Path) -> None:
    batches = making.conversation()
    hostile = making.opened(3, client_address="127.0.0.1:1", client_id=HOSTILE)
    path = making.write(tmp_path / "hostile.mcap", [[hostile, *batches[0]], *batches[1:]])
    with opened(browser, path) as find:
        until(lambda: find(".row .client"), "rows", 20)
        assert "<img src=x" in "".join(texts(browser, ".row .client"))
        assert not find("img") and browser.title == "hostile.mcap · kproxy"
        assert not {"\u202e", "\x1b"} & set("".join(texts(browser, "body")))


def test_keys_are_completed_and_a_mistake_is_said_where_it_stands(
    browser: webdriver.Chrome,
) -> None:
    with opened(browser, DEMO) as find:
        (bar,) = find("#filter input")
        until(lambda: len(find(".row .name")) >= FIT, "rows", 20)
        bar.send_keys("api:Fetch client")
        offered = ["client_id:", "client_address:"]
        until(lambda: texts(browser, "#offered b") == offered, "keys", 20)
        bar.send_keys(Keys.DOWN, Keys.DOWN, Keys.UP, Keys.TAB)
        assert bar.get_attribute("value") == "api:Fetch client_id:"
        bar.send_keys("billing", Keys.ENTER)
        until(lambda: texts(browser, "#count") == ["5 exchanges"], "those found", 20)
        bar.send_keys(" not typed to the end", Keys.ESCAPE)
        assert bar.get_attribute("value") == "api:Fetch client_id:billing", "what holds"
        assert browser.switch_to.active_element != bar
        cross = "arguments[0].value = ''; arguments[0].dispatchEvent(new Event('search'))"
        browser.execute_script(cross, bar)
        until(lambda: texts(browser, "#count") == ["34 exchanges"], "no filter", 20)
        bar.send_keys("api:Fetch client_id:billing clint_id:x", Keys.ENTER)
        said = "did you mean client_id?"
        until(lambda: said in "".join(texts(browser, "#filter .wrong")), said, 20)
        begin = bar.get_attribute("selectionStart")
        assert int(begin) == len("api:Fetch client_id:billing ")
        refused = [each["message"] for each in browser.get_log("browser")]
        assert all("422" in each for each in refused), refused


def test_a_range_of_time_is_drawn_with_the_pointer_or_the_arrow_keys(
    browser: webdriver.Chrome,
) -> None:
    def narrowed() -> list[str]:
        """The names of the exchanges in the range, once they are listed."""
        wanted = browser_filter(find)
        assert wanted.startswith("time:")
        names = [each.name for each in recording.read(DEMO, wanted)]
        until(lambda: texts(browser, ".row .name") == names, wanted, 20)
        return names

    with opened(browser, DEMO) as find:
        until(lambda: [each for each in find("canvas") if each.is_displayed()], "a chart", 20)
        (canvas,) = find("canvas")
        width = canvas.size["width"]
        actions = ActionChains(browser).move_to_element_with_offset(canvas, -width // 4, 0)
        actions.click_and_hold().move_by_offset(width // 2, 0).release().perform()
        drawn = narrowed()
        assert 0 < len(drawn) < 30
        browser.back()
        until(lambda: texts(browser, "#count") == ["34 exchanges"], "all", 20)
        find("body")[0].send_keys("t")
        keys = browser.switch_to.active_element
        keys.send_keys(Keys.ARROW_RIGHT)
        keys.send_keys(*[Keys.ARROW_RIGHT] * 5)
        keys.send_keys(Keys.SHIFT, *[Keys.ARROW_RIGHT] * 30)
        times = texts(browser, "#overview output")
        keys.send_keys(Keys.ENTER)
        names = narrowed()
        assert 0 < len(names) < 34 and names != drawn
        begin, end = (each.rpartition("T")[2] for each in browser_filter(find).split(".."))
        assert times == [f"{begin.strip('Z')} – {end.strip('Z')}"]


def browser_filter(find: Callable[[str], list[Any]]) -> str:
    """The filter in the bar."""
    return find("#filter input")[0].get_attribute("value") or ""


def test_each_view_has_an_address_that_back_and_another_visit_lead_to(
    browser: webdriver.Chrome,
) -> None:
    records = {"view": "records", "topic": "orders"}
    views = {
        "c": ({"view": "lanes"}, ".lane", 9),
        "s": ({"view": "statistics"}, ".statistics", 3),
        "": (records, ".records tbody tr", 12),
        "w": ({"view": "findings"}, ".finding", 3),
        "e": ({"view": "exchanges"}, ".row .name", 34),
    }
    with opened(browser, DEMO) as find:
        until(lambda: find(".row .name"), "rows", 20)
        home = browser.current_url.partition("?")[0]
        addresses = []
        for key, (query, selector, count) in views.items():
            if key:
                find("body")[0].send_keys(key)
            else:
                click(browser, ".statistics td button", -1 + len(find(".statistics td button")))
            until(lambda s=selector: find(s), selector, 20)
            addresses.append(browser.current_url)
            assert browser.current_url == f"{home}?{urlencode(query)}"
            assert key == "e" or len(find(selector)) == count
        for address, (_, selector, _) in list(zip(addresses, views.values(), strict=True))[-2::-1]:
            browser.back()
            until(lambda s=selector: find(s), f"back to {selector}", 20)
            assert browser.current_url == address
        browser.get(f"{home}?{urlencode(records)}")
        until(lambda: find(".records tbody tr"), "records", 20)
        (first, *_) = texts(browser, ".records tbody tr")
        assert first.startswith("[3]@0") and first.endswith("#5 shop #28 billing ")
        for key, value in (("group", "billing"), ("connection", "3")):
            told, _ = story([DEMO], key, value)
            browser.get(f"{home}?{urlencode({'story': f'{key}:{value}'})}")
            until(lambda told=told: texts(browser, "#story p") == told, f"why {key}", 20)


def test_the_keyboard_scrolls_what_is_beside_the_list(browser: webdriver.Chrome) -> None:
    def scrolled(selector: str) -> bool:
        return browser.execute_script(
            "return document.querySelector(arguments[0]).scrollTop", selector
        )  # fmt: skip

    with opened(browser, DEMO) as find:
        until(lambda: len(find(".row .name")) >= FIT, "rows", 20)
        (body,) = find("body")
        for key in ("j", Keys.ENTER):
            body.send_keys(key)
        until(lambda: find("#exchange h3"), "its fields", 20)
        body.send_keys(Keys.ARROW_RIGHT)
        browser.switch_to.active_element.send_keys(Keys.END)
        until(lambda: scrolled("#beside"), "its end", 20)
        assert texts(browser, ".row[aria-selected=true] .name") == ["#1"]
        browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
        browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
        marked = ".row[aria-selected=true] .name"
        until(lambda: texts(browser, marked) == ["#2"], "the next", 20)
        with window(browser, 700, 320):
            find("body")[0].send_keys(Keys.ESCAPE)
            find("body")[0].send_keys("s")
            until(lambda: find(".statistics"), "statistics", 20)
            find("body")[0].send_keys(Keys.END)
            until(lambda: scrolled("#view"), "their end", 20)


@contextlib.contextmanager
def window(browser: webdriver.Chrome, width: int, height: int) -> Iterator[None]:
    """A window of another size."""
    sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_narrow_window_shows_every_view_and_colours_follow_the_reader(
    browser: webdriver.Chrome,
) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    wide = "return document.documentElement.scrollWidth"
    lines = "const text = document.createRange();"
    lines += "text.selectNodeContents(document.querySelector('.records td'));"
    lines += "return text.getClientRects().length"
    views = {
        ".finding": {}, ".row .name": {"view": "exchanges"}, "#exchange h3": {"exchange": "#6"},
        ".lane": {"view": "lanes"},
        ".statistics": {"view": "statistics"}, "#story p": {"story": "group:billing"},
        ".records td": {"view": "records", "topic": "orders"},
    }  # fmt: skip
    with opened(browser, DEMO) as find, window(browser, 360, 640):
        until(lambda: find(".row .name"), "rows", 20)
        home = browser.current_url.partition("?")[0]
        for selector, query in views.items():
            browser.get(f"{home}?{urlencode(query)}")
            until(lambda s=selector: find(s), selector, 20)
            assert browser.execute_script(wide) == 360, selector
        assert texts(browser, ".records td")[0] == "[3]"
        assert browser.execute_script(lines) == 1, "no word is broken"
        noted = "const place = document.querySelector('#notices');"
        noted += "for (let n = 0; n < 30; n++) place.append(document.createElement('p'), 'note');"
        assert browser.execute_script(f"{noted} return place.clientHeight") < 80, "they scroll"
        seen = []
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            seen.append(sum(map(int, re.findall(r"\d+", browser.execute_script(paper)))))
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        assert seen[0] > 600 and seen[1] < 150


def test_records_are_read_by_their_schema_on_the_page_and_in_a_file(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    path = payloads.write(tmp_path / "orders.mcap")
    (produced, *_) = recording.read(path)

    def has_decoded(find: Callable[[str], list[Any]]) -> None:
        find("body")[0].send_keys("e")
        until(lambda: find(".row .name"), "rows", 20)
        click(browser, ".row", 0)
        until(lambda: find("#exchange h3"), "its fields", 20)
        fields = texts(browser, "#exchange td:last-child")
        assert fields == fields_of(produced)
        assert "JSON, schema 17" in fields and '  "customer": "ann",' in fields
        assert "schema 99 is not in the recording" in fields

    with saved(browser, path, tmp_path / "x.html") as find:
        has_decoded(find)
    with opened(browser, path) as find:
        has_decoded(find)
        button = texts(browser, "#exchange button").index("records of orders")
        click(browser, "#exchange button", button)
        until(lambda: find(".records tbody tr"), "records", 20)
        ann, unknown, *_ = texts(browser, ".records .value")
        assert '"customer": "ann"' in ann and ann.endswith("JSON, schema 17")
        assert unknown.endswith("schema 99 is not in the recording")


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
            until(lambda: texts(browser, "#tabs button")[4:] == ["Faults"], "it is live", 20)
            browser.find_element(By.CSS_SELECTOR, "body").send_keys("e")
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
            click(".faults button", "off")
            until(lambda: texts(browser, ".faults .off"), "it is off", 20)
            produce()
            assert hits() == ["0"]
            click(".faults button", "on")
            until(lambda: texts(browser, ".faults button")[0] == "off", "it is on", 20)
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


def test_a_page_whose_proxy_has_ended_is_not_live(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    with proxies.running("127.0.0.1:1", tmp_path, "--control", "127.0.0.1:0") as proxy:
        browser.get(proxy.says("page: http").partition("page: ")[2])
        until(lambda: texts(browser, ".live") == ["live"], "it is live", 20)
    until(lambda: "has ended" in "".join(texts(browser, ".wrong")), "the end", 20)
    assert texts(browser, ".live") == []
    for log in ("browser", "performance"):
        browser.get_log(log)


# ---- a page in one file


@contextlib.contextmanager
def saved(
    browser: webdriver.Chrome, source: Path, to: Path, *wanted: str
) -> Iterator[Callable[[str], list[Any]]]:
    """The page of an export, opened from the disk; what finds elements in it. It asked for nothing
    but itself, and nothing failed."""
    assert main(["export", str(source), *wanted, "--to", str(to)]) == 0
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(to.as_uri())
    yield lambda selector: browser.find_elements(By.CSS_SELECTOR, selector)
    assert [each["message"] for each in browser.get_log("browser")] == []
    assert set(requested(browser)) == {to.as_uri()}


def fields_of(exchange: Exchange) -> list[str]:
    """The texts of all fields, as `kproxy show --frame` names them."""
    return [printable(row.text) for _, _, rows in frame.halves(exchange) for row in rows]


def test_a_page_in_a_file_has_what_show_says_and_each_exchange_in_full(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    wanted = "api:Produce,Fetch,JoinGroup"
    chosen = list(recording.read(DEMO, wanted))
    out = io.StringIO()
    show_json([DEMO], out, parse(wanted))
    shown = [found for found in map(json.loads, out.getvalue().splitlines()) if "api" in found]
    with saved(browser, DEMO, tmp_path / "x.html", wanted) as find:
        until(lambda: find(".row .name"), "rows", 20)
        for key, column in (("number", ".name"), ("client_id", ".client"), ("api", ".api")):
            cells = [each.split(" v")[0].strip("#") for each in texts(browser, f".row {column}")]
            assert cells == [str(each[key]) for each in shown], key
        assert texts(browser, "#count") == [f"{len(chosen)} exchanges"]
        assert find("#overview canvas")[0].is_displayed()
        for place, exchange in enumerate(chosen[:3]):
            click(browser, ".row", place)
            title = f"{exchange.name} {exchange.api}×"
            until(lambda title=title: texts(browser, "#exchange h2") == [title], title, 20)
            assert texts(browser, "#exchange td:last-child") == fields_of(exchange)
        (body,) = find("body")
        body.send_keys("s")
        until(lambda: find(".statistics"), "statistics", 20)
        assert "too few have such a time" in texts(browser, "#view .facts")[-1]
        assert texts(browser, ".statistics:first-child td:nth-child(2)") == ["5", "2", "2"]
        body.send_keys("c")
        connections = {f"c{each.connection} {each.client_id}" for each in chosen}
        until(lambda: set(texts(browser, ".lane > button")) == connections, "lanes", 20)


def test_a_page_in_a_file_is_searched_and_its_address_kept(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    with saved(browser, DEMO, tmp_path / "x.html") as find:
        until(lambda: find(".finding"), "findings", 20)
        assert texts(browser, ".finding .text") == [
            each.text for each in findings(light_data([DEMO]))
        ]
        find("body")[0].send_keys("e")
        until(lambda: find(".row .name"), "rows", 20)
        (bar,) = find("#filter input")
        assert "search" in (bar.get_attribute("placeholder") or "")
        bar.send_keys("error:*", Keys.ENTER)
        until(lambda: texts(browser, "#count") == ["0 exchanges"], "none", 20)
        assert "need kproxy web" in "".join(texts(browser, "#notices"))
        bar.send_keys(Keys.CONTROL + "a")
        bar.send_keys("ORDERS[1] offset", Keys.ENTER)
        until(lambda: texts(browser, "#count") == ["1 exchange"], "one", 20)
        click(browser, ".row", 0)
        until(lambda: find("#exchange h3"), "its fields", 20)
        assert find("#exchange h2")[0].text.startswith("#6 ")
        browser.refresh()
        until(lambda: find("#exchange h3") and find(".row .name"), "the same", 20)
        assert texts(browser, "#count") == ["1 exchange"]
        for link in ("connection:3", "client_id:shop", "api:Produce"):
            click(browser, "#exchange button", texts(browser, "#exchange button").index(link))
            expected = [each.name for each in recording.read(DEMO, link)]
            until(lambda names=expected: texts(browser, ".row .name") == names, link, 20)
        browser.back()
        expected = [each.name for each in recording.read(DEMO, "client_id:shop")]
        until(lambda: texts(browser, ".row .name") == expected, "back", 20)
        span = "time:2026-11-21T23:32:13.760Z..2026-11-21T23:32:13.915Z"  # as the chart writes it
        browser.get(f"{(tmp_path / 'x.html').as_uri()}#{urlencode({'filter': span})}")
        expected = [each.name for each in recording.read(DEMO, span)]
        until(lambda: texts(browser, ".row .name") == expected != [], "a range", 20)


def test_hostile_texts_in_a_file_stay_texts(browser: webdriver.Chrome, tmp_path: Path) -> None:
    attack = (
        "</script><script>document.title=1</script><!--\u2028\u2029<img src=x onerror=alert(1)>"
    )
    key, value = attack.encode() + b"\xed\xa0\x80\xff", b"]]>" + attack.encode()
    batch = records.encode_batch([Record(0, 0, key, value, [(attack, b"v")])])
    topic = attack[:60] + "\udcff"
    asked = request("Produce", 9, produce_request({0: batch}, topic))
    client = attack + "\udced\udca0\udc80"
    note = making.opened(1, client_address="127.0.0.1:1", client_id=client)
    header = asked.data.replace(b"\0\3app", len(client := attack.encode()).to_bytes(2) + client)
    asked.pieces, asked.frame_bytes = [(len(header) - 4).to_bytes(4) + header[4:]], len(header)
    source = making.write(tmp_path / "<!--<script>.mcap", [[note, asked]])
    wanted = 'not client_id:"</title></head></script><script>document.title=2</script></body>"'
    with saved(browser, source, tmp_path / "x.html", wanted) as find:
        until(lambda: find(".row .name"), "rows", 20)
        click(browser, ".row", 0)
        until(lambda: find("#exchange h3"), "its fields", 20)
        (exchange,) = recording.read(source)
        assert texts(browser, "#exchange td:last-child") == fields_of(exchange)
        page = "".join(texts(browser, "body"))
        assert page.count("</script><script>document.title=1") >= 4
        assert not find("img") and browser.title == f"<!--<script>.mcap {wanted} · kproxy"
        assert {each.get_attribute("type") for each in find("script")} == {"module", "text/plain"}
        assert not {"\u2028", "\u2029", "\x1b"} & set(page)
