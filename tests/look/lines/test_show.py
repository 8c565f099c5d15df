"""`kproxy show`: lines, on files and on terminals."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.pairing import pair
from kproxy.look.lines.lines import LineStyle, exchange_line
from kproxy.look.lines.show import show_lines
from kproxy.recording import RecordingError
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.errors import ERRORS
from tests.bed import needs
from tests.exchange.batches import batch
from tests.exchange.bodies import fetch_request, fetch_response, produce_request, produce_response
from tests.exchange.filters import DEMO
from tests.exchange.making import (
    MS,
    START_NS,
    opened,
    request,
    response,
    unanswered,
)
from tests.recording.making import write

HEARTBEAT = messages.HeartbeatRequest(group_id="checkout", generation_id=3, member_id="m-1")


def line(exchange, colour=False, width=None) -> str:
    return exchange_line(exchange, LineStyle(colour, width))


def heartbeat(number: int = 1, **changes):
    return request("Heartbeat", 4, HEARTBEAT, number, **changes)


def shown(*entries, **options) -> str:
    (exchange,) = pair(entries)
    return line(exchange, **options)


def produced():
    asked = request("Produce", 9, produce_request({0: batch(3)}))
    return opened(node_id=2), asked, response(asked, produce_response({0: 41}))


def test_hostile_names_cannot_move_the_cursor():
    body = messages.HeartbeatRequest(group_id="\x1b[2J\n", member_id="\udcff")
    text = shown(request("Heartbeat", 4, body))
    assert text.isprintable()
    assert r"\x1b[2J\n: generation 0, \xff" in text


# ---- terminals


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_colours_change_nothing_but_colours():
    asked = heartbeat()
    failed = response(asked, messages.HeartbeatResponse(error_code=27))
    coloured = shown(asked, failed, colour=True)
    assert "\x1b[31;1mREBALANCE_IN_PROGRESS\x1b[0m" in coloured
    assert plain(coloured) == shown(asked, failed)
    # Every colour is switched off again.
    assert coloured.count("\x1b[0m") * 2 == coloured.count("\x1b[")


@pytest.mark.parametrize("width", [40, 60, 80, 99, 100, 120, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_lines_are_cut_to_the_terminal(width, colour):
    asked = request("Produce", 9, produce_request({0: batch(1)}, topic="t" * 200))
    text = plain(shown(asked, response(asked, produce_response({0: 41})), width=width))
    assert width - 1 <= len(text) <= width
    assert "…" in text
    assert text.endswith(" → offset 41") or width < 80
    assert "Produce v9" in text or width < 60


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_name_of_an_error_is_whole_on_every_terminal(width):
    A, R = messages.AddPartitionsToTxnRequest, messages.AddPartitionsToTxnResponse
    topics = [A.AddPartitionsToTxnTopic(name="shipments-of-today", partitions=[0])]
    body = A(v3_and_below_transactional_id="a-long-transaction", v3_and_below_topics=topics)
    asked = request("AddPartitionsToTxn", 3, body, 1234567)
    for code, (name, _) in ERRORS.items():
        if code == 0:
            continue
        partition = R.AddPartitionsToTxnPartitionResult(
            partition_index=0, partition_error_code=code
        )
        result = R.AddPartitionsToTxnTopicResult(
            name="shipments-of-today", results_by_partition=[partition]
        )
        answered = response(asked, R(results_by_topic_v3_and_below=[result]))
        text = shown(opened(node_id=2), asked, answered, width=width)
        assert text.endswith(f"→ {name}") and len(text) <= width
        assert " AddPartitionsToTxn v3 " in text


def test_the_name_of_an_error_comes_before_what_the_broker_says_of_it():
    asked = request("FindCoordinator", 2, messages.FindCoordinatorRequest(key="billing"))
    failed = messages.FindCoordinatorResponse(error_code=15, error_message="not yet")
    for width in range(70, 140):
        text = shown(asked, response(asked, failed), width=width)
        assert "→ COORDINATOR_NOT_AVAILABLE" in text and len(text) <= width


def test_what_does_not_fit_of_many_errors_is_no_part_of_a_name():
    R = messages.DeleteTopicsResponse.DeletableTopicResult
    codes = [29, 3, 41, 44, 17, 7]
    asked = request("DeleteTopics", 4, messages.DeleteTopicsRequest(topic_names=["a", "b"]))
    results = [R(name=f"t-{code}", error_code=code) for code in codes]
    answered = response(asked, messages.DeleteTopicsResponse(responses=results))
    names = {name for name, _ in ERRORS.values()}
    for width in (80, 100, 120, 200):
        text = shown(asked, answered, width=width)
        words = re.findall("[A-Z_]{5,}", text)
        assert words and set(words) <= names and len(text) <= width, text


def test_a_narrow_terminal_gets_shorter_times():
    assert shown(*produced(), width=99).startswith(
        "22:13:20 #1    c1→n2  app       2.00 +0.08 Produce v9   ord"
    )


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colours_and_width_on_a_terminal_only(recorded, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    show_lines([recorded], out)
    assert "\x1b[" in out.getvalue()
    assert max(map(len, plain(out.getvalue()).splitlines())) <= 70
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    show_lines([recorded], out)
    assert "\x1b[" not in out.getvalue()
    out = io.StringIO()
    show_lines([recorded], out)
    assert "\x1b[" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) > 70


# ---- recordings


@pytest.fixture
def recorded(tmp_path):
    """A recording of a Produce, a Fetch and a request that is never answered."""
    path = tmp_path / "some.mcap"
    record(path)
    return path


ENDS = [
    SideEnd("broker", "reset", START_NS + 97 * MS),
    SideEnd("client", "eof", START_NS + 99 * MS),
]


def record(path, more=()) -> None:
    fetched = request("Fetch", 11, fetch_request({0: 41}), number=2)
    entries = [
        *produced(),
        fetched,
        response(fetched, fetch_response({0: batch(3, offset=41)})),
        *more,
        heartbeat(3),
        attrs.evolve(unanswered(heartbeat(3)), received_ns=START_NS + 99 * MS),
        notes.closed(1, START_NS + 99 * MS, {}, "eof", "it hung", "client", ENDS),
    ]
    write(path, [entries])


def test_show_lines(recorded, capsys):
    out = io.StringIO()
    show_lines([recorded], out)
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("→ offset 41")
    assert "orders[0@41] → 3 records @41..43" in lines[1]
    assert lines[2].endswith("→ never answered: waited 96.0 ms for the broker")
    head, _, words = lines[3].partition(" ended ")
    assert head == "22:13:20.099         c1      app                 "
    assert words == "by the broker (reset), by the client (eof) 2.00 ms later: it hung"
    assert capsys.readouterr().err == ""


def test_a_file_that_is_no_recording(tmp_path):
    path = tmp_path / "other.mcap"
    path.write_bytes(b"GIF89a")
    with pytest.raises(RecordingError):
        show_lines([path], io.StringIO())


@pytest.mark.parametrize("function", ["show_lines", "show_json"])
def test_a_reader_that_has_seen_enough_is_no_error(recorded, function):
    """`kproxy show FILE | head -1` ends quietly, whenever the pipe breaks."""
    program = (
        "import sys; from kproxy.look.lines import show;"
        f"show.{function}([{str(recorded)!r}] * 1, sys.stdout); sys.exit(7)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 7


def test_a_terminal_without_arrows(recorded):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    show_lines([recorded], out)
    assert rb"\u2192 offset 41" in raw.getvalue()


def test_records_with_a_key_or_a_value_are_only_those(capsys):
    demo = str(needs.REPOSITORY / "recordings" / "demo.mcap")
    main(["show", "--records", "orders", demo, "value:*9* key:customer-1"])
    found = capsys.readouterr().out.splitlines()
    assert len(found) == 2 and all('"order": 9' in line for line in found)
    assert "produced by shop" in found[0] and "consumed by billing" in found[1]


@pytest.mark.parametrize(
    "typed",
    [["--records", "nope", DEMO], [DEMO, "topic:nope"], ["--by-request", DEMO, "topic:nope"]],
)
def test_nothing_that_matches_is_told(capsys, typed):
    assert main(["show", *map(str, typed)]) == 0
    read = capsys.readouterr()
    assert (read.out, read.err) == ("", "kproxy show: nothing of 43 exchanges matches\n")


def test_by_request_lines_are_in_the_order_in_which_things_came(capsys):
    demo = Path(__file__).parents[3] / "recordings" / "demo.mcap"
    times = {}
    for option in ([], ["--by-request"]):
        assert main(["show", "--all", *option, str(demo)]) == 0
        times[bool(option)] = [text[:12] for text in capsys.readouterr().out.splitlines()]
    assert times[True] == sorted(times[False]) != times[False]
    assert len(times[True]) > 34, "the ends of connections, too"
