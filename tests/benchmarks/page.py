"""What the page of a running proxy costs: `python -m tests.benchmarks.page [--rounds 5]`.

One request at a time goes through the proxy, in turns without and with the page open in Chromium,
in a profile of its own; the ratio of the p99 of each pair of rounds is shown, so that it holds on a
noisy machine. Two things take a processor beside the proxy: the browser, and the process that makes
the page; the third kind of round has a Chromium with an empty page that draws as often, so that the
rest is what the proxy pays. Below, the time from a response to its row in the page. Needs go,
chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import contextlib
import re
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
_BUSY = """
const box = document.body.appendChild(document.createElement("div"));
setInterval(() => box.replaceChildren(...Array.from({ length: 40 }, (_, n) => {
  const line = document.createElement("p");
  line.textContent = `${Date.now()} ${n}`;
  return line;
})), 120);
"""
PAUSE_SECONDS = 0.2


@contextlib.contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for each in ("--headless=new", "--no-sandbox", "--window-size=1400,850"):
        options.add_argument(each)
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


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
    """Return the milliseconds from responses to their rows, one exchange at a time."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{listen}"})
    for _ in range(3):  # until its connections are there
        admin.list_topics(timeout=10)
    driver.get(url)
    time.sleep(2)
    driver.execute_script(_STAMP)
    answered = []
    for number in range(count):
        admin.list_topics(timeout=10)
        answered.append(time.time() * 1000)
        time.sleep(PAUSE_SECONDS * (1 + number % 7 / 7))  # not in step with the page
    shown: list[tuple[str, float]] = []
    for _ in range(100):
        shown = driver.execute_script("return [...window.shown]")
        if len(shown) >= count:
            break
        time.sleep(0.1)
    shown.sort(key=lambda each: int(each[0].removeprefix("#")))
    return [at - before for (_, at), before in zip(shown[-count:], answered, strict=True)]


def main() -> None:
    """Measure, alternating, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"closed": [], "open": [], "browser": []}
    with tempfile.TemporaryDirectory() as name, chromium() as driver:
        folder, broker = Path(name), port()
        load = str(folder / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        with mock_cluster.running() as cluster, kproxy(cluster, folder) as (listen, _, url):
            waits = sorted(latencies(listen, url, driver, 20 * options.rounds))
        p50, p99 = (waits[int(len(waits) * share)] for share in (0.5, 0.99))
        print(f"from a response to its row: p50 {p50:.0f} ms, p99 {p99:.0f} ms", flush=True)
        with process(load, "server", "-addr", f"127.0.0.1:{broker}"):
            wait_for(broker)
            for number in range(options.rounds):
                for state in list(found)[:: -1 if number % 2 else 1]:
                    with kproxy(f"127.0.0.1:{broker}", folder) as (listen, pid, url):
                        driver.get(url if state == "open" else "about:blank")
                        if state == "browser":
                            driver.execute_script(_BUSY)
                        time.sleep(2)
                        found[state].append(loaded(load, listen, pid, options.seconds))
                        driver.get("about:blank")
        for state in ("open", "browser"):
            for what, at in (("p99", 0), ("CPU per request", 1)):
                pairs = zip(found[state], found["closed"], strict=True)
                ratios = sorted(one[at] / other[at] for one, other in pairs)
                span = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                print(f"{state} / closed: {what} {statistics.median(ratios):.2f}x ({span})")
        print("p99 closed, µs:", *(f"{p99:.0f}" for p99, _ in found["closed"]))
        print("p99 open, µs:  ", *(f"{p99:.0f}" for p99, _ in found["open"]))


if __name__ == "__main__":
    main()
