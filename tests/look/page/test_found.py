"""What a filter finds: the exchanges that `recording.read` gives, at their places."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from kproxy import recording
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.look.page.found import ConnectionCounts, MatchingExchanges
from kproxy.look.page.shown import lanes
from kproxy.look.page.work import Search, Searches
from tests.bed import needs
from tests.versions import pairs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
PATHS = [DEMO, FORMATS / "torn.mcap", FORMATS / "cut.mcap", FORMATS / "faults.mcap", FORMATS]

pytestmark = pytest.mark.filterwarnings("ignore::kproxy.recording.RecordingWarning")


def text_of(exchange: Exchange) -> str:
    return exchange.text


@pytest.mark.parametrize(
    ("path", "wanted"), pairs(PATHS, ["", "is:error", "topic:*", "api:Fetch,Produce"])
)
def test_the_exchanges_are_those_of_show(path: Path, wanted: str) -> None:
    found = MatchingExchanges([path], parse(wanted) if wanted else None)
    found.read()
    expected = list(map(text_of, recording.read(path, wanted or None)))
    assert found.done and len(found) == len(expected)
    for each in recording.read(path, wanted or None):
        assert each.told_errors == each.errors, each.name
    assert found.made(0, len(found), text_of, str) == expected
    one_by_one = (found.made(at, at + 1, text_of, str) for at in reversed(range(len(found))))
    assert [text for (text,) in one_by_one] == expected[::-1]
    _, by_slot = found.by_api()
    assert sum(sum(by_api.values()) for by_api in by_slot.values()) == len(expected)


def connection_of(exchange: Exchange) -> tuple[str, int]:
    return exchange.topic_names.recording, exchange.row.connection


@pytest.mark.parametrize("second", ["faults", "torn"])
def test_connections_are_those_of_their_recordings(second: str) -> None:
    paths = [DEMO, FORMATS / f"{second}.mcap", FORMATS / "cut.mcap"]
    found = MatchingExchanges(paths)
    found.read()
    _, by_connection = found.by_connection()
    counts = {lane: each.by_slot.total() for lane, each in by_connection.items()}
    exchanges = list(recording.read(paths))
    assert counts == Counter(map(connection_of, exchanges)) and len(counts) > 5
    clients = {connection_of(each): (each.node_id, each.client_id) for each in exchanges}
    found_clients = {lane: (each.node_id, each.client_id) for lane, each in by_connection.items()}
    assert clients == found_clients


def test_a_pass_lets_others_read_meanwhile_and_ends_when_nobody_asks() -> None:
    found, seen = MatchingExchanges([FORMATS, DEMO]), [0]

    class Turn(threading.Semaphore):
        def release(self, n: int = 1) -> None:
            super().release(n)
            seen.append(len(found.made(0, 10_000, text_of, str)))
            if len(seen) == 5:
                found.stop()

        def __exit__(self, *error: object) -> None:
            self.release()

    found.read(Turn())
    assert not found.done and seen == sorted(seen) and 0 < seen[-1] == len(found)


def test_a_pass_rests_while_another_goes_before_it() -> None:
    found, seen = MatchingExchanges([FORMATS, DEMO]), list[int]()

    def gives_way() -> bool:
        seen.append(len(found))
        return 3 <= len(seen) <= 5

    found.read(gives_way=gives_way)
    assert found.done and seen[2] == seen[5] < seen[-1]


def test_what_was_asked_for_last_is_searched_first_until_all_of_it_is_found() -> None:
    searches = Searches([DEMO], Mock(), print)
    now = time.monotonic()
    old, new = (Search(MatchingExchanges([DEMO]), 0, now - ago) for ago in (5, 0))
    searches._by_filter |= {"": old, "is:error": new}
    assert searches._gives_way(old) and not searches._gives_way(new)
    old.asked = now - 0.5  # two pages
    assert not searches._gives_way(old)
    old.asked = now - 5
    new.found.read()
    assert not searches._gives_way(old)


def test_connections_are_ordered_by_broker_and_those_to_bootstrap_addresses_come_first() -> None:
    counts = {("", n): ConnectionCounts(node, "app") for n, node in enumerate((1, 0, None, None))}
    found = Mock(done=True, by_connection=lambda: (1000, counts))
    assert [each["node_id"] for each in lanes(found)["lanes"]] == [None, None, 0, 1]
