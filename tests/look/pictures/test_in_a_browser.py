"""Pictures of incidents as a browser shows them: in a report, and above a story."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

from kproxy.look.report.light import light_data
from kproxy.look.report.page import page
from tests.bed.random_cluster import RandomCluster
from tests.bed.waiting import until
from tests.look.pictures.test_pictures import SMALL, many
from tests.look.why.traffic import Traffic, join, sync

CROWDED = """
const wrong = [];
for (const svg of document.querySelectorAll("svg.picture")) {
  const frame = svg.getBoundingClientRect();
  for (const each of svg.querySelectorAll("text, rect, path")) {
    const { left, right, top, bottom } = each.getBoundingClientRect();
    if (left < frame.left - 1 || right > frame.right + 1 || top < frame.top - 1
        || bottom > frame.bottom + 1)
      wrong.push(`outside: ${each.outerHTML}`);
  }
  const all = [...svg.querySelectorAll("text")];
  const texts = all.map((each) => [each, each.getBoundingClientRect()]);
  for (const [each, box] of texts)
    for (const [other, its] of texts)
      if (each !== other && box.left < its.right - 1 && its.left < box.right - 1
          && box.top < its.bottom - 4 && its.top < box.bottom - 4)
        wrong.push(`${each.textContent} over ${other.textContent}`);
}
return wrong;
"""
WIDER = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"


def test_the_pictures_of_a_report_have_room(browser: webdriver.Chrome, tmp_path: Path) -> None:
    paths = SMALL
    (tmp_path / "random").mkdir()
    others = [
        many(16, 100).recorded(tmp_path),
        RandomCluster(5).run(250).recorded(tmp_path / "random"),
    ]
    for name, recordings in (("incidents", paths), ("others", others)):
        report = tmp_path / f"{name}.html"
        report.write_text(
            page(light_data(recordings, pictured=True), [*map(str, recordings)]), "utf-8"
        )
        for width in (1300, 420):
            browser.set_window_size(width, 900)
            browser.get(report.as_uri())
            assert browser.execute_script(CROWDED) == []
            assert not browser.execute_script(WIDER), f"{name} at {width}"
    pictures = page(light_data(paths, pictured=True), ["a"]).count('<svg class="picture"')
    assert pictures >= 4, "crash loop, open transaction, poison record, quota"


def test_a_story_has_its_picture_and_names_of_clients_stay_texts(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    name = '<img src=x onerror="document.title=1">'
    traffic = Traffic()
    for number in (1, 2):
        traffic.add(number * 100, *join("m-a", number, ["m-a"]), client=name)
        traffic.add(number * 100 + 10, *sync("m-a", number, 0, 1), client=name)
    command = [sys.executable, "-m", "kproxy", "web", str(traffic.recorded(tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        address = served.stdout.readline().strip()
        try:
            browser.set_window_size(1400, 900)
            browser.get(address)
            home = re.sub("/enter/.*", "", address)
            browser.get(f"{home}/?story=group:billing")
            story = "#story > .pictured > svg.picture"
            until(lambda: bool(browser.find_elements(By.CSS_SELECTOR, story)), "a picture", 20)
            texts = browser.find_elements(By.CSS_SELECTOR, "#story svg text")
            assert any(each.text.startswith("<img") for each in texts)
            assert not browser.find_elements(By.CSS_SELECTOR, "#story img")
            drawn = "return getComputedStyle(document.querySelector('svg .bar.has')).stroke"
            assert browser.execute_script(drawn) != "none", "the style has come"
            assert browser.execute_script(CROWDED) == []
            assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
        finally:
            served.terminate()
