"""Exchanges for the page, as JSON values in the words of `kproxy show`.

    Exchange ─▶ row: its line in parts, its time in parts · whole: every field beside its bytes

Invariant: texts are for the eye, whatever clients have sent: control characters are made visible
(`printable`). That nothing of them becomes markup is the business of the page, which sets texts
only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kproxy.exchange.counts import Tally
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import PERCENTILES
from kproxy.exchange.words import line
from kproxy.look.lines import frame, jsonl
from kproxy.look.lines.stats import Stats
from kproxy.look.lines.stats_lines import representative
from kproxy.look.page.found import LANES_MAX, Lane, MatchingExchanges
from kproxy.look.why.finding import Finding
from kproxy.printable import printable

FIELDS_MAX = 2000
"""Fields of a request or a response that are shown …"""
FIELD_CHARACTERS_MAX = 4 << 20
"""… fewer if their texts have more characters together."""
NAME_CHARACTERS_MAX = 249
"""Characters of a name that are shown: those of a topic; a client id may have 32,767 bytes."""
WORDS_CHARACTERS_MAX = 500
"""Characters of half an exchange in a row, and of what one part of it says."""
HEX_BYTES_MAX = 256
"""Bytes of a field that are shown."""
TABLE_ROWS_MAX = 200
"""Rows of a table of statistics."""


def row(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange as a row of the list. Times are in microseconds."""
    text, of = exchange.words, exchange.row
    segments = line.response_segments(exchange, text)
    if segments:
        segments.insert(0, line.separator(exchange, text, text.request))
    return {
        "name": exchange.name,
        "time_us": exchange.time_ns // 1000,
        "connection": of.connection,
        "node_id": exchange.node_id,
        "client_id": _client(exchange.client_id),
        "api": exchange.api,
        "api_version": exchange.api_version,
        "request": cut(text.request, WORDS_CHARACTERS_MAX),
        "response": [[style, cut(each, WORDS_CHARACTERS_MAX)] for style, each in segments],
        "failed": bool(exchange.errors) and not exchange.routine,
        "unanswered": exchange.unanswered is not None,
        "faults": list(map(printable, exchange.faults)),
        "quiet": text.noise is not None,
        "took": line.broker_segment(exchange),
        "added": line.proxy_text(exchange),
        "spans": _spans(exchange),
    }


def lost_row(number: int) -> dict[str, Any]:
    """Return the row of an exchange whose file was removed since it was found."""
    return {"name": f"#{number}", "lost": True}


def _spans(exchange: Exchange) -> list[tuple[str, int]]:
    """Return where the time went, in order: what, and how long."""
    of = exchange.row
    before = max(0, (of.request_sent_ns or of.request_received_ns) - of.request_received_ns)
    after = max(0, (of.response_sent_ns or of.response_received_ns) - of.response_received_ns)
    fault_before, fault_after = _fault_parts(exchange, before // 1000, after // 1000)
    spans = [
        ("fault", fault_before),
        ("proxy", before // 1000 - fault_before),
        ("queued", exchange.durations.queued_us),
        ("waiting", exchange.durations.waiting_us),
        ("service", exchange.durations.service_us),
        ("fault", fault_after),
        ("proxy", after // 1000 - fault_after),
    ]
    return [(what, us) for what, us in spans if us > 0]


def _fault_parts(exchange: Exchange, before_us: int, after_us: int) -> tuple[int, int]:
    """Return how much of the time on either side of the broker rules added. Only the sum is
    recorded: what is too long for the longer side was on the other."""
    fault_us = max(0, exchange.fault_us)
    longer_us = min(fault_us, max(before_us, after_us))
    other_us = min(fault_us - longer_us, before_us, after_us)
    return (longer_us, other_us) if before_us > after_us else (other_us, longer_us)


def whole(exchange: Exchange) -> dict[str, Any]:
    """Return an exchange with every field of its request and response, beside its bytes."""
    halves = [
        {"title": printable(title), "fields": list(_fields(data, rows))}
        for title, data, rows in frame.halves(exchange)
    ]
    return {"row": row(exchange), "about": jsonl.about(exchange), "halves": halves}


def _fields(data: bytes, rows: Iterator[frame.FrameRow]) -> Iterator[dict[str, Any]]:
    left = FIELD_CHARACTERS_MAX
    for count, each in enumerate(rows):
        if count == FIELDS_MAX or left <= 0:
            what = f"more than {count} fields: kproxy show --frame has them all"
            yield {"depth": 0, "text": what, "style": "mark", "start": 0, "end": 0, "hex": ""}
            return
        left -= len(each.text)
        yield {
            "depth": each.depth,
            "text": printable(each.text),
            "style": each.style,
            "start": each.start,
            "end": each.end,
            "hex": data[each.start : min(each.end, each.start + HEX_BYTES_MAX)].hex(),
        }


def finding(
    found: Finding, paths: Sequence[Path | str], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return a finding in recordings, which have names by path where they are several."""
    recordings = {names[each] for each in found.files if each in names}
    recording = recordings.pop() if len(recordings) == 1 else ""
    story, about = "", found.story
    if about is not None and not about.topic:
        is_numbered = recording and about.kind in ("number", "connection")
        story = f"{about.kind}:{f'{recording}#' if is_numbered else ''}{about.name}"
    return {
        "harm": found.harm.name.lower(),
        "heading": found.harm.heading,
        "text": printable(found.text),
        "evidence": list(map(printable, found.evidence)),
        "recording": recording,
        "filter": found.filter(recording),
        "story": story,
        "command": printable(found.command(paths, names)),
    }


def lanes(found: MatchingExchanges) -> dict[str, Any]:
    """Return how many exchanges connections had in each slot of time, by broker."""
    done = found.done  # before the counts: then they are all there
    width_ms, by_connection = found.by_connection()

    def order(lane: Lane) -> tuple[int, Lane]:
        node_id = by_connection[lane].node_id
        return -1 if node_id is None else node_id, lane

    return {
        "done": done,
        "slot_ms": width_ms,
        "lanes": [
            {
                "connection": f"{recording}#{number}" if recording else str(number),
                "node_id": counts.node_id,
                "client_id": _client(counts.client_id),
                "counts": counts.by_slot,
            }
            for recording, number in sorted(by_connection, key=order)
            for counts in (by_connection[recording, number],)
        ],
        "more": len(by_connection) == LANES_MAX,
    }


_PERCENTILES = [PERCENTILES[name] for name in ("p50", "p95", "p99")]


def statistics(stats: Stats) -> dict[str, Any]:
    """Return the tables of `kproxy stats`: by API, by client and by topic, most exchanges first."""
    return {"tables": {name: _tallies(tallies) for name, tallies in stats.tables.items()}}


def _tallies(tallies: Mapping[str, Tally]) -> list[dict[str, Any]]:
    ordered = sorted(tallies.items(), key=lambda item: (-item[1].count, item[0]))
    return [
        {
            "name": shown_name(name),
            "count": tally.count,
            "errors": tally.errors,
            "unanswered": tally.no_response,
            "ms": _percentiles(tally),
            "max_ms": tally.broker.max_ms if tally.broker.count else None,
            "bytes": tally.bytes,
            "records": tally.records,
        }
        for name, tally in ordered[:TABLE_ROWS_MAX]
    ]


def _percentiles(tally: Tally) -> list[float | None]:
    """Return those of the broker; None where too few exchanges have a time."""
    enough = representative(tally.broker.count, tally.count)
    return [tally.broker.percentile(each) if enough else None for each in _PERCENTILES]


def _client(client_id: str | None) -> str | None:
    return None if client_id is None else shown_name(client_id)


def shown_name(text: str) -> str:
    """Return a name as it is shown; the page finds no exchanges by one that is cut off."""
    return cut(text, NAME_CHARACTERS_MAX)


def cut(text: str, most: int) -> str:
    """Return a text as it is shown, cut off after so many characters."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[:most]}…"
