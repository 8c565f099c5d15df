"""Findings about clients and their connections: quotas, small requests, logins, brokers not there.

History.clients, History.connections ─▶ one function a kind ─▶ Finding
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import attrs

from kproxy.exchange.derived import PENDING_REQUESTS_MAX
from kproxy.exchange.endings import TLS_FAILED, ConnectionEnd
from kproxy.exchange.filter import matching
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.brokers import STALL_NS, WAITING_MAX, Stall
from kproxy.history.connections import LOGIN, MISTAKE, TLS, Failed
from kproxy.history.events import DENIED
from kproxy.history.history import History
from kproxy.history.noted import Outages
from kproxy.history.ref import Client, Ref
from kproxy.look.why.causes.security import permissions
from kproxy.look.why.causes.table import CAUSES
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.sentences import at, clock, named, who
from kproxy.units import format_bytes

QUOTA, PENDING, SMALL = "quota", "limit of pending requests", "requests of one record"
STALLED = "broker that stood still"
_AT_ONCE_NS = 100_000_000
"""Brokers that answer again within this time stood still together."""
_SHARED = (
    "They ended together: what they share stood still, as the network or a machine; or one waited"
    " for another, as for its replica."
)
_ASKED_MIN = 3
"""Clients ask for metadata of a topic once or twice until a broker has made it."""
_TOLD_MAX, _NUMBERS_MAX = 5, 1000
"""Findings of one kind."""
_THROTTLED_MS_MIN = 100.0
_SMALL_MIN, _SMALL_RECORDS, _SMALL_BYTES = 200, 1.5, 8000
"""Larger requests leave no room for another record in the usual batch.size, 16 KiB."""
_BRIEF_MIN, _BRIEF_SHARE = 10, 0.8
_BRIEF_NS = 60_000_000_000
"""Where connections come less often, they may be those of one producer, closed while idle."""
_REMEDIES = (": set ", ": kproxy certs ", ": run kproxy ", ": if it ")
"""What follows in the reason of an end is what to do."""


def _most(found: Iterable[tuple[Any, Any]], by: Callable[[Any], float]) -> list[tuple[Any, Any]]:
    """Return those of which most is told, with the most first."""
    return sorted(found, key=lambda each: -by(each[1]))


def _bounded(
    proved: Callable[[History], Iterator[Finding]],
) -> Callable[[History], Iterator[Finding]]:
    """Have a function find the first of its kind only, the last of them with how many more."""

    @functools.wraps(proved)
    def first(history: History) -> Iterator[Finding]:
        found = [*proved(history)]
        more = len(found) - _TOLD_MAX
        if more > 0:
            rest = f"It is so {count(more, 'more time')}, with other clients or for other reasons."
            last = found[_TOLD_MAX - 1]
            numbers = (number for each in found[_TOLD_MAX - 1 :] for number in each.numbers)
            found[_TOLD_MAX - 1] = attrs.evolve(
                last, evidence=(*last.evidence, rest), numbers=tuple(islice(numbers, _NUMBERS_MAX))
            )
        yield from found[:_TOLD_MAX]

    return first


# ── quotas ───────────────────────────────────────────────────────────────────────────────────


_QUOTAS = {
    "Produce": ("producer_byte_rate", "request_percentage"),
    "Fetch": ("consumer_byte_rate", "request_percentage"),
    **dict.fromkeys(("CreateTopics", "DeleteTopics", "CreatePartitions"),
                    ("controller_mutation_rate", "request_percentage")),
}  # fmt: skip
"""API → the quotas of which its responses tell."""
_OTHER = ("request_percentage",)


@_bounded
def throttled_clients(history: History) -> Iterator[Finding]:
    """Find the clients that quotas hold."""
    for _, found in _most(history.clients.throttling.items(), lambda each: each.told.longest_ms):
        told, waited = found.told, found.waited
        if told.longest is None or told.total_ms < _THROTTLED_MS_MIN:
            continue
        held = f"for {age(told.longest_ms)}"
        if told.times > 1:
            held = f"{told.times} times, for up to {age(told.longest_ms)}"
        evidence = [f"Quotas of its user or client id are the limit: {_quotas(found.apis)}."]
        if waited.longest is not None:
            evidence = [_waited(waited.longest, waited.longest_ms), *evidence]
        yield Finding(
            Harm.LATENCY, QUOTA,
            f"The broker's quota held {who(told.longest)} {held} ({named(told.longest)}).",
            (told.longest.number, *waited.numbers),
            Subject("number", told.longest.number),
            evidence=tuple(evidence),
        )  # fmt: skip


def _waited(longest: Ref, wait_ms: float) -> str:
    return (
        f"{named(longest)}, sent all the same, waited {age(wait_ms)} for that: it is throttling,"
        " not the broker's work."
    )


def _quotas(apis: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(each for api in apis for each in _QUOTAS.get(api, _OTHER)))


# ── requests ─────────────────────────────────────────────────────────────────────────────────


@_bounded
def pending_requests(history: History) -> Iterator[Finding]:
    """Find the clients that reach kproxy's limit of pending requests."""
    for _, held in _most(history.clients.held.items(), lambda each: each.longest_ms):
        if held.longest is None:
            continue
        longest = (
            f"{named(held.longest)} waited longest, {age(held.longest_ms)}: kproxy takes no more of"
            f" a client while {PENDING_REQUESTS_MAX} requests of a connection have no answer."
        )
        yield Finding(
            Harm.LATENCY, PENDING,
            f"kproxy's limit of {PENDING_REQUESTS_MAX} pending requests held"
            f" {count(held.times, 'request')} of {who(held.longest)}.",
            (held.longest.number, *held.numbers),
            Subject("number", held.longest.number),
            evidence=(longest, "With fewer and larger requests the limit is not reached."),
        )  # fmt: skip


@_bounded
def small_requests(history: History) -> Iterator[Finding]:
    """Find the clients that send records one by one where they could have sent them together."""
    small = [
        (client, each)
        for client, each in history.clients.writing.items()
        if each.requests >= _SMALL_MIN
        and each.size_bytes < each.requests * _SMALL_BYTES
        and each.requests / _SMALL_RECORDS < each.records < each.requests * _SMALL_RECORDS
        and (each.behind + each.at_once) * 2 >= each.requests
    ]
    for _, each in _most(small, lambda each: each.requests):
        if each.behind >= each.at_once:
            harm, remedy = Harm.LATENCY, _BATCHING
            because = (
                f"{each.behind} of them came while an earlier one of their connection had no"
                " answer: they could have gone together."
            )
        else:
            harm, remedy = Harm.CURIOSITY, _SENDING_ON
            because = (
                f"{each.at_once} of them came as soon as the one before had its answer: so it is"
                " where an app waits for each record (flush, or get of each future)."
            )
        of = f" client_id:{each.first.client_id}" if each.first.client_id else ""
        yield Finding(
            harm, SMALL,
            f"{who(each.first)} sent {count(each.records, 'record')} in {each.requests} Produce"
            " requests, about one each.",
            (each.first.number,), shown_by=("show", f"api:Produce{of}"), evidence=(because, remedy),
        )  # fmt: skip


_BATCHING = (
    "A larger linger.ms (5 to 100) and batch.size of the producer put more records into a request;"
    " more connections do not help."
)
_SENDING_ON = (
    "An app that sends on, and waits for many records together, lets the producer put more of them"
    " into a request."
)


@_bounded
def brief_producers(history: History) -> Iterator[Finding]:
    """Find the clients that begin a producer for each message."""
    brief = [
        (client, each)
        for client, each in history.clients.brief.items()
        if each.single >= max(_BRIEF_MIN, _BRIEF_SHARE * each.connections)
        and each.last_ns - each.first.time_ns < _BRIEF_NS * each.connections
    ]
    for _, each in _most(brief, lambda each: each.single):
        cost = f"They began with {count(each.before, 'other request')}"
        if each.initialized > 1:
            cost += f", and {each.initialized} producers asked for a producer id"
        name = each.first.client_id
        about = Subject("client_id", name) if name else Subject("connection", each.first.connection)
        yield Finding(
            Harm.LATENCY, "producers made anew",
            f"{each.single} connections of {who(each.first)} carried a single Produce each.",
            (each.first.number,),
            about,
            evidence=(
                f"{cost}, as connections do of an app that makes a producer for each message.",
                "One producer, made once and used by all threads, writes this on few connections.",
            ),
        )  # fmt: skip


# ── connections ──────────────────────────────────────────────────────────────────────────────


@_bounded
def failed_tls(history: History) -> Iterator[Finding]:
    """Find the clients with which TLS failed."""
    return (_ended(*each) for each in _failed(history, TLS))


@_bounded
def failed_logins(history: History) -> Iterator[Finding]:
    """Find the clients that could not log in."""
    return (_refused(*each) for each in _failed(history, LOGIN))


@_bounded
def failed_connections(history: History) -> Iterator[Finding]:
    """Find the clients whose connections ended for a mistake that kproxy names."""
    return (_ended(*each) for each in _failed(history, MISTAKE))


@_bounded
def denied_users(history: History) -> Iterator[Finding]:
    """Find the users that may not do what their clients ask for."""
    for (*_, api, denied), failed in _most(history.connections.denials.items(), lambda e: e.times):
        first, (error, name) = failed.first, denied
        assert not isinstance(first, ConnectionEnd)
        what = f"{DENIED[error]} {name}" if name else f"the {DENIED[error]}"
        takes = permissions(api, error)
        needed = (f"{api} takes {listed(takes)}.",) if takes else ()
        yield Finding(
            Harm.LATENCY, "refused permission",
            f"{who(first)} may not use {what}: {api} was refused {count(failed.times, 'time')}"
            f" (first #{first.number}, {error}).",
            (first.number,), Subject("number", first.number),
            name if DENIED[error] == "topic" else None, evidence=(*needed, CAUSES[error].remedy),
        )  # fmt: skip


def _failed(history: History, what: str) -> Iterator[tuple[Client, str, Failed]]:
    found = (each for each in history.connections.failed.items() if each[0][0] == what)
    for (_, client, why), failed in _most(found, lambda each: each.times):
        yield client, why, failed


def _ended(client: Client, reason: str, failed: Failed) -> Finding:
    """Return the finding on connections that ended for a reason."""
    first = failed.first
    assert isinstance(first, ConnectionEnd)
    name = _client(client)
    did = "ended"
    if first.tls_failed:
        of_broker = any(end.how == "tls" and end.side == "broker" for end in first.ends)
        did = f"failed in TLS with {_broker(first.node_id)}" if of_broker else "failed in TLS"
    mark = next((each for each in _REMEDIES if each in reason), None)
    why, _, rest = reason.replace(TLS_FAILED, "").partition(mark or "\0")
    return Finding(
        Harm.LATENCY, "failed TLS" if first.tls_failed else "failed connections",
        f"{count(failed.times, 'connection')} of {name} {did}: {why}.",
        (), Subject("connection", first.connection),
        evidence=(f"What helps: {mark[2:]}{rest.replace('; or ', '. Or ')}.",) if mark else (),
    )  # fmt: skip


def _client(client: Client) -> str:
    return f"{client[1]} ({client[0]})" if client[1] else f"clients of {client[0]}"


def _refused(client: Client, error: str, failed: Failed) -> Finding:
    first = failed.first
    assert not isinstance(first, ConnectionEnd)
    times = "once" if failed.times == 1 else f"{failed.times} times"
    by = f" with {failed.mechanism}" if failed.mechanism else ""
    cause = CAUSES.get(error)
    about = (_sentence(cause.meaning), cause.remedy) if cause is not None else ()
    offered = (f"The broker offers {listed(failed.offered, 8)}.",) if failed.offered else ()
    return Finding(
        Harm.LATENCY, "failed logins",
        f"The login of {who(first)}{by} failed {times}: {error} (first #{first.number}).",
        (first.number,), Subject("number", first.number),
        evidence=(*_at_message(failed), *offered, *about),
    )  # fmt: skip


def _at_message(failed: Failed) -> Iterator[str]:
    """Yield which message of a login by SCRAM was refused: brokers look the user up with the first,
    and compare the password with the second."""
    if not failed.mechanism.startswith("SCRAM"):
        return
    if failed.later == failed.times:
        yield "The broker took the first message and refused the second: the password is wrong."
    elif not failed.later:
        yield "The broker refused the first message: it has no such user for this mechanism."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# ── brokers ──────────────────────────────────────────────────────────────────────────────────


def stalled_brokers(history: History) -> Iterator[Finding]:
    """Find the brokers that stood still, and those that did at once."""
    for nodes, stalls in _stalled(history).items():
        longest = max(stalls, key=lambda stall: stall.length_ns)
        first, connections = longest.waiting[0], {each.connection for each in longest.waiting}
        waited = count(len(longest.waiting), "request")
        if len(longest.waiting) == WAITING_MAX:
            waited = f"{waited} or more"
        span = f"from {clock(longest.from_ns)} to {clock(longest.until_ns)}"
        it, names = "it", f"Broker {nodes[0]}"
        if len(nodes) > 1:
            it, names = "they", f"At once, brokers {listed(map(str, nodes), WAITING_MAX)}"
        had_waited = f"{waited} that {it} then answered, on {len(connections)} connections"
        evidence = [f"{had_waited}, had waited, {named(first)} as the first of them."]
        if len(nodes) > 1:
            evidence.append(_SHARED)
        if len(stalls) > 1:
            evidence.append(f"{it.capitalize()} stood still so {len(stalls)} times.")
        text = f"{names} answered nobody for {age(longest.length_ns / 1e6)}, {span}."
        shown = (
            "show",
            f"{matching('node_id', *map(str, nodes))} broker_ms:{STALL_NS // 2_000_000}..",
        )
        yield Finding(
            Harm.LATENCY, STALLED, text, (first.number,), shown_by=shown,
            evidence=tuple(evidence),
        )  # fmt: skip


def _stalled(history: History) -> dict[tuple[int, ...], list[Stall]]:
    """Return the stalls of each broker, and of those that answered again at the same moment."""
    every = [(each, node) for node, stalls in history.broker_stalls().items() for each in stalls]
    every.sort(key=lambda each: (each[0].until_ns, each[1]))
    together: list[dict[int, Stall]] = []
    for each, node in every:
        before = [*together[-1].values()] if together else ()
        if (
            before
            and each.until_ns - before[0].until_ns <= _AT_ONCE_NS
            and node not in together[-1]
        ):
            together[-1][node] = each
        else:
            together.append({node: each})
    found: dict[tuple[int, ...], list[Stall]] = {}
    for by_node in together:
        several = [*by_node.values()]
        waiting = sorted(
            chain(*(each.waiting for each in several)), key=lambda ref: ref.answered_ns
        )
        span = max(each.silent_from_ns for each in several), several[0].until_ns
        found.setdefault(tuple(sorted(by_node)), []).append(Stall(*span, waiting))
    return found


def unreached_brokers(history: History) -> Iterator[Finding]:
    """Find the brokers that could not be reached."""
    failures, outages = history.connections.unreached, history.noted.outages
    for node_id in sorted({*failures, *outages}, key=lambda each: (each is None, each)):
        failed, outage = failures.get(node_id), outages.get(node_id)
        reason, proof, about = outage.reason if outage else "", "kproxy found it out", None
        if failed is not None:
            first = failed.first
            assert isinstance(first, ConnectionEnd)
            reason, about = first.reason, Subject("connection", first.connection)
            proof = f"{count(failed.times, 'connection')} ended because of that"
        what = f"{_broker(node_id).capitalize()} could not be reached"
        if TLS_FAILED in reason:
            what = f"TLS with {_broker(node_id)} failed"
        elif reason.startswith("no login"):
            what = f"kproxy's login at {_broker(node_id)} failed"
        elif node_id is None:
            what = "No bootstrap address could be reached"
        yield Finding(
            Harm.LATENCY, "broker that could not be reached", f"{what} {_when(failed, outage)}.",
            (), about, evidence=(f"{proof}{': ' if reason else ''}{reason}.",),
        )  # fmt: skip


def _when(failed: Failed | None, outage: Outages | None) -> str:
    """Return when a broker was not there: as kproxy knew it, or as connections show it."""
    if outage is None:
        assert failed is not None
        first_ns, last_ns = failed.first.time_ns, failed.last.time_ns
        several = f"between {clock(first_ns)} and {clock(last_ns)}"
        return several if failed.times > 1 else f"at {clock(first_ns)}"
    lengths = {
        from_ns: (until_ns or math.inf) - from_ns for from_ns, until_ns in outage.spans.items()
    }
    from_ns = max(lengths, key=lambda each: lengths[each])
    until_ns, times = outage.spans[from_ns], len(lengths)
    often = f"{times} times, the longest " if times > 1 else ""
    if until_ns is None:
        return f"{often}from {clock(from_ns)} on"
    lasted = age((until_ns - from_ns) / 1e6)
    return f"{often}for {lasted}, from {clock(from_ns)} to {clock(until_ns)}"


def _broker(node_id: int | None) -> str:
    return "a bootstrap address" if node_id is None else f"broker {node_id}"


def lost_frames(history: History) -> Iterator[Finding]:
    """Find that the recorder lost something."""
    lost = history.noted.losses
    if not lost.reasons:
        return
    what = count(lost.frames, "frame") if lost.frames else "what passed"
    reasons = listed(reason for reason, _ in lost.reasons.most_common(_TOLD_MAX))
    yield Finding(
        Harm.LATENCY, "frames lost",
        f"{what[0].upper()}{what[1:]} ({format_bytes(lost.size_bytes)}) between"
        f" {clock(lost.from_ns)} and {clock(lost.until_ns)} {'is' if lost.frames == 1 else 'are'}"
        f" not in the recording: {reasons}.",
        (), evidence=("Exchanges of that time are missing, or have no answer here.",),
    )  # fmt: skip


def cut_off(history: History) -> Iterator[Finding]:
    """Find the requests that had no answer when kproxy was stopped."""
    found, by = history.connections.cut_off, history.noted.stopped_by
    if found is None:
        return
    first, last = found.first, found.last
    assert isinstance(first, Ref)
    had = f"{count(found.times, 'request')} had no answer yet, {named(first)} first"
    yield Finding(
        Harm.LATENCY, "stop of kproxy",
        f"kproxy was stopped{' by ' if by else ''}{by} at {clock(last.time_ns)}: {had}.",
        (first.number,), Subject("number", first.number),
        evidence=("Their clients did not hear whether brokers did what they asked for.",),
    )  # fmt: skip


@_bounded
def slow_peers(history: History) -> Iterator[Finding]:
    """Find the brokers and clients that did not take what kproxy sent to them."""
    for (side, node_id), slow in _most(history.noted.slow.items(), lambda each: each.times):
        found = history.connections.get(slow.connection)
        name = _broker(node_id).capitalize()
        if side == "client":
            name = _client(found.client if found else ("an unknown host", ""))
        (from_ns, until_ns), number = slow.longest, f"connection {slow.connection}"
        evidence = ["Until it does, kproxy reads nothing more for it; nothing of that is kproxy's."]
        if slow.times > 1:
            evidence.insert(0, f"It did so {slow.times} times.")
        yield Finding(
            Harm.LATENCY, "peer that reads slowly",
            f"{name} took {age((until_ns - from_ns) / 1e6)} to read what kproxy sent it on"
            f" {number}, from {clock(from_ns)} to {clock(until_ns)}.",
            (), evidence=tuple(evidence), shown_by=("show", f"connection:{slow.connection}"),
        )  # fmt: skip


@_bounded
def missing_topics(history: History) -> Iterator[Finding]:
    """Yield the topics for which clients ask again and again, and that are not there."""
    for name, topic in sorted(history.logs.topics.items()):
        asked = sorted(topic.unknown.values(), key=lambda each: each.first.time_ns)
        times = sum(each.times for each in asked)
        if times < _ASKED_MIN or topic.counts or topic.used is not None:
            continue
        first, last = asked[0].first, max((each.last for each in asked), key=lambda e: e.time_ns)
        names = listed((who(each.first) for each in asked), _TOLD_MAX)
        ask, error = "asks" if len(asked) == 1 else "ask", "UNKNOWN_TOPIC_OR_PARTITION"
        yield Finding(
            Harm.LATENCY,
            "topic that does not exist",
            f"Topic {name} does not exist: {names} {ask} for it in vain, {times} times.",
            (first.number, last.number),
            Subject("topic", name),
            evidence=(f"{error}, {at(first)} ({named(first)}) to {at(last)} (#{last.number}).",),
        )
