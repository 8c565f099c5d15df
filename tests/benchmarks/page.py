"""What the page of a running proxy costs, and how fast it is: `python -m tests.benchmarks.page`.

* One request at a time goes through the proxy, in turns without and with the page open in Chromium;
  the ratio of the p99 of each pair of rounds is shown, so that it holds on a noisy machine. The
  browser has what others leave of the processors, as if it had its own: what is measured is what
  the page costs kproxy. In a third kind of round it competes, and with that a machine of two cores.
* The time from a request to its row in the page, which has its response: an upper bound of the time
  from the response.
* A recording of a million exchanges: until all are found, and frames a second while it scrolls.

Needs go, chromium, chromedriver and chrt.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver

from tests.bed import mock_cluster
from tests.benchmarks.proxies import LOAD, cpu_seconds, port, process, wait_for

_STAMP = """
const list = document.querySelector("#list");
window.shown = new Map();
new MutationObserver(() => {
  for (const row of list.querySelectorAll(".row")) {
    const name = row.querySelector(".name")?.textContent;
    if (name && !window.shown.has(name)) window.shown.set(name, Date.now());
  }
}).observe(list, { childList: true, subtree: true });
"""
_SCROLL = """
const [bySecond, done] = arguments, list = document.querySelector("#list");
const start = performance.now(), way = list.scrollHeight - list.clientHeight;
const begin = list.scrollTop;
let frames = 0, longest = 0, last = start;
const step = (now) => {
  frames += 1;
  longest = Math.max(longest, now - last);
  last = now;
  const seconds = (now - start) / 1000;
  if (seconds > 6) return done([frames / seconds, longest]);
  list.scrollTop = bySecond ? begin + bySecond * seconds : (way * seconds) / 6;
  requestAnimationFrame(step);
};
requestAnimationFrame(step);
"""
PAUSE_SECONDS = 0.2
EXCHANGES = 1_000_000


@contextlib.contextmanager
def chromium(folder: Path, *, idle: bool) -> Iterator[webdriver.Chrome]:
    """A browser without a window; an idle one has what others leave of the processors."""
    starter = folder / "chromedriver"
    starter.write_text('#!/bin/sh\nexec chrt --idle 0 /usr/bin/chromedriver "$@"\n')
    starter.chmod(0o700)
    service = webdriver.ChromeService(str(starter) if idle else "/usr/bin/chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for each in ("--headless=new", "--no-sandbox", "--window-size=1400,850"):
        options.add_argument(each)
    driver = webdriver.Chrome(options, service)
    try:
        yield driver
    finally:
        driver.quit()


@contextlib.contextmanager
def kept_recording(bootstrap: str, folder: Path) -> Iterator[tuple[int, Path]]:
    """A recording proxy, without a page; yields its port, and the recording."""
    path = folder / "million.mcap"
    command = [sys.executable, "-m", "kproxy", "run", "--bootstrap", bootstrap]
    command += ["--listen", "127.0.0.1:0", "--quiet", "--record", str(path)]
    with process(*command, stdout=subprocess.PIPE, text=True) as running:
        yield int(running.stdout.readline().strip().rpartition(":")[2]), path
        running.send_signal(signal.SIGINT)
        running.wait()


@contextlib.contextmanager
def kproxy(bootstrap: str, folder: Path) -> Iterator[tuple[int, int, str]]:
    """A recording proxy; yields its port, its process id, and the address of its page."""
    path = folder / f"{time.monotonic_ns()}.mcap"
    command = [sys.executable, "-m", "kproxy", "run", "--bootstrap", bootstrap]
    command += ["--listen", "127.0.0.1:0", "--quiet", "--record", str(path)]
    command += ["--control", "127.0.0.1:0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with process(*command, **pipes) as running:
        listen = int(running.stdout.readline().strip().rpartition(":")[2])
        url = next(line for line in running.stderr if "page: " in line).partition("page: ")[2]
        yield listen, running.pid, url.strip()
    path.unlink()


def loaded(load: str, listen: int, pid: int, seconds: float) -> tuple[float, float]:
    """Return the p99 of one request at a time, and the proxy's CPU time per request, in µs."""
    before = cpu_seconds(pid)
    command = [load, "client", "-addr", f"127.0.0.1:{listen}", "-api", "metadata"]
    command += ["-conns", "1", "-depth", "1", "-secs", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    words = dict(re.findall(r"(\S+)=(\S+)", done.stdout))
    used = cpu_seconds(pid) - before
    return float(words["p99us"]), used / float(words["req/s"]) / seconds * 1e6


def latencies(listen: int, url: str, driver: webdriver.Chrome, count: int) -> list[float]:
    """Return the milliseconds from requests to their rows, one exchange at a time."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{listen}"})
    for _ in range(3):  # until its connections are there
        admin.list_topics(timeout=10)
    driver.get(url)
    time.sleep(2)
    driver.execute_script(_STAMP)
    asked = []
    for number in range(count):
        asked.append(time.time() * 1000)
        admin.list_topics(timeout=10)
        time.sleep(PAUSE_SECONDS * (1 + number % 7 / 7))  # not in step with the page
    shown: list[tuple[str, float]] = []
    for _ in range(100):
        shown = driver.execute_script("return [...window.shown]")
        if len(shown) >= count:
            break
        time.sleep(0.1)
    shown.sort(key=lambda each: int(each[0].removeprefix("#")))
    return [at - before for (_, at), before in zip(shown[-count:], asked, strict=True)]


def costs(load: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the cost of the page to the requests of clients, as ratios."""
    found: dict[str, list[tuple[float, float]]] = {"closed": [], "open": [], "competing": []}
    with (
        process(load, "server", "-addr", f"127.0.0.1:{(broker := port())}"),
        chromium(folder, idle=True) as idle,
        chromium(folder, idle=False) as competing,
    ):
        wait_for(broker)
        for number in range(options.rounds):
            for state in list(found)[:: -1 if number % 2 else 1]:
                driver = competing if state == "competing" else idle
                with kproxy(f"127.0.0.1:{broker}", folder) as (listen, pid, url):
                    if state != "closed":
                        driver.get(url)
                    time.sleep(2)
                    found[state].append(loaded(load, listen, pid, options.seconds))
                    driver.get("about:blank")
    for state in ("open", "competing"):
        for what, at in (("p99", 0), ("CPU per request", 1)):
            pairs = zip(found[state], found["closed"], strict=True)
            ratios = sorted(one[at] / other[at] for one, other in pairs)
            span = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
            print(f"{state} / closed: {what} {statistics.median(ratios):.2f}x ({span})")
    for state, rounds in found.items():
        print(f"p99 {state}, µs:", *(f"{p99:.0f}" for p99, _ in rounds), flush=True)


def scrolling(load: str, folder: Path) -> None:
    """Print how a page of a million exchanges scrolls."""
    with process(load, "server", "-addr", f"127.0.0.1:{(broker := port())}"):
        wait_for(broker)
        with kept_recording(f"127.0.0.1:{broker}", folder) as (listen, path):
            command = [load, "client", "-addr", f"127.0.0.1:{listen}", "-api", "metadata"]
            command += ["-conns", "10", "-depth", "10", "-secs", "5"]
            count = 0.0
            while count < EXCHANGES:
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                count += 5 * float(dict(re.findall(r"(\S+)=(\S+)", done.stdout))["req/s"])
    with chromium(folder, idle=False) as driver:
        command = [sys.executable, "-m", "kproxy", "web", str(path)]
        with process(*command, stdout=subprocess.PIPE, text=True) as running:
            begun = time.monotonic()
            driver.get(running.stdout.readline().split()[-1])
            text = "…"
            while "…" in text or not text:
                time.sleep(0.1)
                text = driver.execute_script("return document.querySelector('#count').innerText")
            print(f"{text}: found in {time.monotonic() - begun:.1f} s")
            driver.set_script_timeout(60)
            for how, pixels in (("through all of them", 0), ("slowly", 200)):
                rate, longest = driver.execute_async_script(_SCROLL, pixels)
                print(f"scrolling {how}: {rate:.0f} frames a second, {longest:.0f} ms at most")


def main() -> None:
    """Measure, alternating, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = str(folder / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        scrolling(load, folder)
        with (
            chromium(folder, idle=False) as driver,
            mock_cluster.running() as cluster,
            kproxy(cluster, folder) as (listen, _, url),
        ):
            waits = sorted(latencies(listen, url, driver, 20 * options.rounds))
        p50, p99 = (waits[int(len(waits) * share)] for share in (0.5, 0.99))
        print(f"from a request to its row: p50 {p50:.0f} ms, p99 {p99:.0f} ms", flush=True)
        costs(load, folder, options)


if __name__ == "__main__":
    main()
