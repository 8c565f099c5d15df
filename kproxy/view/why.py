"""`kproxy why`: the story of an exchange, a connection or a group, in sentences.

    number:N      its time, its errors, and what the client did after them
    connection:C  its client and broker, its requests, its end
    group:G       its generations: members that join and leave, time without assignments

Every sentence is based on the recording alone, and names the exchanges that it is based on (`kproxy
show --frame N` shows them). If the recording does not show a cause, a sentence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import attrs

from kproxy.exchange.derived import JOINS, UNKNOWN
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, parse
from kproxy.exchange.filter.keys import BY_NAME
from kproxy.exchange.filter.terms import Term, grouped
from kproxy.exchange.filter.values import suggestion
from kproxy.exchange.histogram import PERCENTILES, Histogram
from kproxy.exchange.words.wording import age, count, listed
from kproxy.printable import printable
from kproxy.protocol import error_code, is_retriable
from kproxy.recording.reader import by_recording
from kproxy.units import moment
from kproxy.view.progress import Progress, reading
from kproxy.view.show import write
from kproxy.view.stream import Stream, another_recording
from kproxy.view.why_group import group_story

NOT_RECORDED = "is not in the recording"
_LONG_MS = 1.0
"""Parts of an exchange's time from this on have a sentence."""
_OTHERS_MIN = 20
"""With fewer others to compare with, no exchange is called slow."""


def show_why(paths: Sequence[Path | str], key: str, value: str, out: TextIO) -> bool:
    """Write the story of an exchange, connection or group; return whether it was found.

    `key` is "number", "connection" or "group". Several recordings may be of different clusters:
    each has its own story of a group.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged; or there are several
            recordings, which have the same numbers.
    """
    found = by_recording(paths)
    if len(found) > 1 and key != "group":
        raise another_recording(found[1][0])
    stories: list[str] = []
    notices: list[str] = []
    with reading("why", paths) as progress:
        done_bytes = 0
        for files in found:
            on_progress = partial(_update, progress, done_bytes)
            story, found_notices = _story(files, key, value, on_progress)
            notices += found_notices
            if story and len(found) > 1:
                stories += ["", _heading(files)] if stories else [_heading(files)]
            stories += story
            done_bytes += sum(path.stat().st_size for path in files)
    write((f"{printable(each)}\n" for each in stories), notices, out, "why")
    return bool(stories)


def other_groups(paths: Sequence[Path | str], name: str) -> str:
    """Suggest groups for a name that no group of the recordings has.

    Raises: RecordingError.
    """
    of_groups = Stream(paths, parse("group:*")).exchanges()
    names = {group for each in of_groups for group in each.groups}
    if not names:
        return ", nor any other"
    one = "" if "*" in name else suggestion(name, names)
    return one or f"; there is {listed(sorted(names))}"


def _update(progress: Progress, before_bytes: int, done_bytes: int) -> None:
    progress.update(before_bytes + done_bytes)


def _heading(files: Sequence[Path]) -> str:
    """Return the heading for a recording: its first file, and the number of the others."""
    return f"{files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}:"


def _story(
    files: Sequence[Path], key: str, value: str, on_progress: Callable[[int], None]
) -> tuple[list[str], list[str]]:
    """Return the story in one recording, and the notices on the recording."""
    opened: dict[int, Note] = {}

    def on_note(note: Note) -> None:
        if note.channel == CONNECTIONS and note.body.get("event") in ("opened", "open"):
            number = note.body.get("connection")
            if isinstance(number, int):
                opened.setdefault(number, note)

    stories: dict[str, Callable[[Stream], Iterator[str]]] = {
        "number": lambda stream: _exchange_story(stream, int(value)),
        "connection": lambda stream: _connection_story(stream, int(value), opened),
        "group": lambda stream: group_story(stream, value),
    }
    stream = Stream(files, _matching(key, value), on_note, True, on_progress)
    return list(stories[key](stream)), stream.notices


def _matching(key: str, *values: str) -> Filter:
    """Return the filter for one of these values, without globs."""
    return Filter(Term(key, tuple(BY_NAME[key].value((value,)) for value in values)))


def at(exchange: Exchange) -> str:
    """Return the time of the request's arrival as text."""
    return f"{exchange.time:%H:%M:%S}.{exchange.time.microsecond // 1000:03}"


def named(exchange: Exchange) -> str:
    """Return the name of an exchange in a sentence: `Fetch #812`."""
    return f"{exchange.api or 'request'} #{exchange.number}"


# ---- an exchange


@attrs.define(eq=False)
class _Surroundings:
    """An exchange and the others that its story refers to."""

    found: Exchange | None = None
    ahead: Exchange | None = None
    """The exchange answered just before it on its connection."""
    similar: Exchange | None = None
    """The next exchange of the same client, API, topics and groups."""
    last_to_join: Exchange | None = None
    end: ConnectionEnd | None = None
    times: Histogram = attrs.field(factory=Histogram)
    """The broker's time for other exchanges of the same API, without waits."""


def _exchange_story(stream: Stream, number: int) -> Iterator[str]:
    around = _surroundings(stream, number)
    found = around.found
    if found is None:
        return
    yield found.text
    where = "a bootstrap address" if found.node_id is None else f"broker {found.node_id}"
    who = found.client_id or found.client_address or "a client without a name"
    yield f"It came from {who} on connection {found.connection}, which leads to {where}."
    if found.unanswered is not None:
        yield from _unanswered(found, around.end)
    elif found.one_way:
        yield "The client wanted no response (acks=0), so whether it worked " + NOT_RECORDED + "."
    elif found.injected:
        yield "kproxy made the response itself; the broker did not."
    else:
        yield from _times(found, around)
    for fault in found.faults:
        yield f"Fault rule {fault} touched it."
    yield from _errors(found, around.similar)


def _surroundings(stream: Stream, number: int) -> _Surroundings:
    """Find an exchange, then the others: on its connection, and of its API."""
    around = _Surroundings(next(stream.exchanges(), None))
    found = around.found
    if found is None:
        return around
    near = [_matching("connection", str(found.connection)).node]
    if found.api is not None:
        near.append(_matching("api", found.api).node)
    is_later = False
    others = Filter(grouped(near, one=True))
    again = Stream(stream.paths, others, ends=True, on_progress=stream.on_progress)
    for each in again.shown():
        if isinstance(each, ConnectionEnd):
            if is_later and each.connection == found.connection:
                around.end = around.end or each
        elif each.number == number:
            is_later = True
        else:
            _add_other(each, around, found, is_later)
    return around


def _is_similar(other: Exchange, exchange: Exchange) -> bool:
    return (
        other.api_key == exchange.api_key
        and other.client_id == exchange.client_id
        and other.topics == exchange.topics
        and other.groups == exchange.groups
    )


def _add_other(each: Exchange, around: _Surroundings, found: Exchange, is_later: bool) -> None:
    """Take another exchange, which was completed before `found`, or after it (`is_later`)."""
    if each.connection == found.connection and not is_later:
        around.ahead = each
    if each.api_key != found.api_key:
        return
    if is_later and around.similar is None and _is_similar(each, found):
        around.similar = each
    served_us = each.served_us
    if served_us != UNKNOWN:
        around.times.add(served_us)
    finished = found.time + timedelta(milliseconds=found.broker_ms or 0)
    if found.api in JOINS and each.groups == found.groups and each.time <= finished:
        if around.last_to_join is None or each.time > around.last_to_join.time:
            around.last_to_join = each


def _times(found: Exchange, around: _Surroundings) -> Iterator[str]:
    if found.broker_ms is None:
        yield f"How long the broker took {NOT_RECORDED}."
        return
    queued_ms, waiting_ms = found.queued_ms or 0.0, found.waiting_ms or 0.0
    service_ms = found.service_ms or 0.0
    if queued_ms >= _LONG_MS:
        ahead = named(around.ahead) if around.ahead else "an earlier request"
        yield (
            f"It waited {age(queued_ms)} behind {ahead}: brokers answer the requests of a"
            " connection one after the other."
        )
    if found.api in JOINS:
        yield from _joined(found, waiting_ms, around.last_to_join)
    elif waiting_ms:
        limit = age(getattr(found.request, "max_wait_ms", 0))
        yield (
            f"It let the broker wait up to {limit} for records (max_wait_ms);"
            f" {age(waiting_ms)} of its time may be that wait."
        )
    if service_ms or not waiting_ms:
        yield f"The broker itself took {age(service_ms)}{_compared(service_ms, around.times)}."
    throttled_ms = getattr(found.response, "throttle_time_ms", 0)
    if throttled_ms:
        yield f"The broker throttles this client for {age(throttled_ms)}: a quota is exceeded."
    if found.proxy_ms is not None:
        yield f"kproxy added {age(found.proxy_ms)}."


def _joined(found: Exchange, waiting_ms: float, last: Exchange | None) -> Iterator[str]:
    yield f"{found.api} is answered when the whole group is ready: that took {age(waiting_ms)}."
    if last is not None and last.time > found.time:
        who = last.client_id or f"connection {last.connection}"
        later = (last.time - found.time) / timedelta(milliseconds=1)
        yield f"The last one was {who} with {named(last)}, {age(later)} after it."


def _compared(service_ms: float, times: Histogram) -> str:
    median_ms, high_ms = (times.percentile(PERCENTILES[name]) for name in ("p50", "p99"))
    if median_ms is None or high_ms is None:
        return "; there is no other to compare it with"
    if times.count < _OTHERS_MIN:
        if times.count == 1:
            return f"; the only other took {age(median_ms)}"
        return f"; the median of the {times.count} others is {age(median_ms)}"
    text = f"; the median of the {times.count} others is {age(median_ms)}, p99 {age(high_ms)}"
    if service_ms > max(2 * high_ms, high_ms + _LONG_MS):
        text += f". Why it took so much longer {NOT_RECORDED}"
    return text


def _errors(found: Exchange, similar: Exchange | None) -> Iterator[str]:
    for name in found.errors:
        code = error_code(name)
        retriable = code is not None and is_retriable(code)
        hint = "clients may try again" if retriable else "trying again does not help"
        yield f"It failed with {name}; {hint}."
    for message in found.error_messages:
        yield f"The broker says: “{message}”"
    if found.errors and similar is not None:
        result = f"failed with {listed(similar.errors)}" if similar.errors else "succeeded"
        later = (similar.time - found.time) / timedelta(milliseconds=1)
        yield f"{age(later)} later the client sent a like one, {named(similar)}, which {result}."


def _unanswered(found: Exchange, end: ConnectionEnd | None) -> Iterator[str]:
    waited = found.unanswered
    if waited is None:
        return
    how_long = f" for {age(waited.waited_ms)}" if waited.waited_ms else ""
    never = "not" if found.open_at_end else "never"
    reasons = {
        "proxy": f"It was {never} sent on: it waited in kproxy{how_long}.",
        "earlier": f"It was {never} answered: it waited{how_long} behind #{waited.behind}, which"
        " was not answered either.",
        "broker": f"It was {never} answered: it waited for the broker{how_long}.",
    }
    yield reasons[waited.waited_for]
    if end is None:
        yield f"The end of its connection {NOT_RECORDED}, nor what came until then."
    else:
        yield f"Its connection ended {_ended_by(end)}."


# ---- a connection


def _ended_by(end: ConnectionEnd) -> str:
    first = end.first
    if first is None:
        return f"at {_time(end.time_ns)}; who ended it {NOT_RECORDED}"
    who = "kproxy" if first.side == "proxy" else f"the {first.side}"
    reason = f": {end.reason}" if end.reason else ""
    return f"at {_time(first.time_ns)}, first by {who} ({first.how}){reason}"


def _time(time_ns: int) -> str:
    time = moment(time_ns)
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03}"


def _connection_story(stream: Stream, number: int, opened: dict[int, Note]) -> Iterator[str]:
    apis: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    first: Exchange | None = None
    last: Exchange | None = None
    unanswered: list[Exchange] = []
    end: ConnectionEnd | None = None
    for each in stream.shown():
        if each.connection != number:
            continue
        if isinstance(each, ConnectionEnd):
            end = each
            continue
        first, last = first or each, each
        apis[each.api or "half a header"] += 1
        errors.update(each.errors)
        if each.unanswered is not None:
            unanswered.append(each)
    if first is None and end is None and number not in opened:
        return
    yield from _opened(opened.get(number), number, first)
    if first is None:
        yield "Nothing was asked on it."
    else:
        done = ", ".join(f"{api} {times}" for api, times in apis.most_common())
        yield f"It had {count(sum(apis.values()), 'request')}: {done}."
    if errors:
        yield "Errors: " + listed(f"{name} ×{times}" for name, times in errors.most_common()) + "."
    for each in unanswered[:3]:
        if each.open_at_end:
            yield f"The recording ends before an answer to {named(each)} of {at(each)}."
        else:
            yield f"{named(each)} of {at(each)} was never answered."
    if len(unanswered) > 3:
        yield f"There is no answer to {len(unanswered) - 3} more either."
    yield from _end_of_connection(end, last)


def _opened(note: Note | None, number: int, first: Exchange | None) -> Iterator[str]:
    client = first.client_id if first is not None else None
    if note is None:
        yield f"When connection {number} was opened {NOT_RECORDED}."
    else:
        body = note.body
        node = body.get("node_id")
        broker = f"broker {node}" if isinstance(node, int) else "a bootstrap address"
        began = "was opened" if body.get("event") == "opened" else "was open already"
        to = body.get("broker_address") or "no broker"
        yield (
            f"Connection {number} {began} at {_time(note.time_ns)}, from"
            f" {body.get('client_address', '?')} to {to} ({broker})."
        )
        yield from _tls(body)
    if client:
        software = getattr(first.request, "client_software_name", "") if first else ""
        version = getattr(first.request, "client_software_version", "") if first else ""
        yield f"Its client is {client}{f' ({software} {version})' if software else ''}."


def _tls(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the version, cipher and peer of each side that spoke TLS."""
    for side in ("client", "broker"):
        if isinstance(body.get(f"{side}_tls"), dict):
            tls: dict[str, Any] = body[f"{side}_tls"]
            text = f"The {side} and kproxy spoke {tls.get('version')} with {tls.get('cipher')}"
            if tls.get("peer"):
                text += f"; the {side}'s certificate is of {tls['peer']}"
            if side == "broker" and not tls.get("verified"):
                text += "; its certificate was not verified"
            yield f"{text}."


def _end_of_connection(end: ConnectionEnd | None, last: Exchange | None) -> Iterator[str]:
    if end is None:
        yield "Its end is not in the recording."
        return
    yield f"It ended {_ended_by(end)}."
    for later in end.ends[1:]:
        who = "kproxy" if later.side == "proxy" else f"the {later.side}"
        yield f"{age((later.time_ns - end.ends[0].time_ns) / 1e6)} later by {who} ({later.how})."
    if end.first is not None and last is not None:
        finished = last.time + timedelta(milliseconds=last.broker_ms or 0)
        ended = moment(end.first.time_ns)
        silent_ms = max(0.0, (ended - finished) / timedelta(milliseconds=1))
        yield f"Before that it was silent for {age(silent_ms)}, since {named(last)}."
    if end.first is None or (end.first.side != "proxy" and not end.reason):
        yield f"Why {NOT_RECORDED}."
