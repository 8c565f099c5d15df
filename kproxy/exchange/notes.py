"""The notes of a recording, one constructor each: what happened beside the frames.

A note is a `Note` of `entries`: a channel, a time and one JSON object, whose `event` says what it
is. All notes are made here, those that are recorded and those that readers put between what they
read, so that this file is the list of all that there are::

    CONNECTIONS   opened, or open in a later file ─▶ client_id ─▶ user ─▶ closed
    EVENTS        topic_id · schema · fault_rules · fault · session_refused · outage · slow_peer
                  lost · stood_still · stopped · clock_step · removed · ignored · learned · made_by
                  pending · recovered
    of the file   index: of its chunks, which readers keep to themselves
    of readers    torn · damaged · recording · pause · missing · copied · gone · all_removed
                  unread

How to add one. Write its constructor below; what it is about (`connection`, `number`, `path`) has
the name that it has in the others. tests/look/lines/test_notes.py then fails until its table has
the note, with the words in which a reader tells it, and each reader knows it:

* `recording.notices`: the sentence that all views say (`_NOTICES`), where no line tells it;
* `recording.cut`: whether a cut-out of the recording keeps it (`_KEPT_EVENTS`);
* `recording.connections`: whether later files repeat it (`_STANDING`);
* `tables.views`: its name in the description of the column `event`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs

from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import CONNECTIONS, EVENTS, ExchangeRow, Note
from kproxy.units import moment

OF_READERS = frozenset(
    {"torn", "damaged", "recording", "pause", "missing", "copied", "unread", "all_removed"}
)
"""The events of notes that are never recorded."""


def opened(connection: int, time_ns: int, about: dict[str, Any]) -> Note:
    """A client connected; `about` has node_id, client_address, listener and broker_address; and,
    where they are, client_tls, broker_tls, the mechanism of kproxy's login (broker_login), and the
    user of that, or of the client's certificate, if users are recorded."""
    return Note(CONNECTIONS, time_ns, {"event": "opened", "connection": connection, **about})


def still_open(time_ns: int, about: Mapping[str, Any]) -> Note:
    """A connection is open where a file begins; `about` repeats the earlier notes on it."""
    return Note(CONNECTIONS, time_ns, {**about, "event": "open"})


def client_id(connection: int, time_ns: int, client_id: str | None) -> Note:
    """The first request of a connection says who its client is."""
    body = {"event": "client_id", "connection": connection, "client_id": client_id}
    return Note(CONNECTIONS, time_ns, body)


def user(connection: int, time_ns: int, user: str, since: int) -> Note:
    """The broker has answered a login as this user, with exchange `since`: it has accepted the
    user, whose are the exchanges from there on, or refused."""
    body = {"event": "user", "connection": connection, "user": user, "user_since": since}
    return Note(CONNECTIONS, time_ns, body)


def closed(
    connection: int,
    time_ns: int,
    about: dict[str, Any],
    how: str,
    reason: str,
    side: str | None,
    ends: Sequence[SideEnd] = (),
) -> Note:
    """A connection ended: how, why, and at which side ("client", "broker", None: the proxy).

    `ends` says how and when each side ended, the first one first.
    """
    body = {"event": "closed", "connection": connection, **about, "how": how, "reason": reason}
    if side is not None:
        body["side"] = side
    if ends:
        body["first"] = ends[0].side
        body["ends"] = [attrs.asdict(end) for end in ends]
    return Note(CONNECTIONS, time_ns, body)


def topic_id(time_ns: int, topic_id: str, topic: str) -> Note:
    """A response first showed the name of a topic id (a UUID, as text)."""
    return Note(EVENTS, time_ns, {"event": "topic_id", "topic_id": topic_id, "topic": topic})


def schema(time_ns: int, body: Mapping[str, Any]) -> Note:
    """Records name this schema; `payloads.schemas.note_of` has the body."""
    return Note(EVENTS, time_ns, dict(body))


def fault_rules(time_ns: int, seed: int, rules: Sequence[Mapping[str, Any]]) -> Note:
    """From here on these fault rules decide, with this seed; each has fault_id, name and rule."""
    body = {"event": "fault_rules", "seed": seed, "rules": [dict(rule) for rule in rules]}
    return Note(EVENTS, time_ns, body)


def fault(
    time_ns: int, rule: str, fault_id: int, number: int, connection: int, **what: Any
) -> Note:
    """A fault rule fired on the exchange of this number; `what` says what it did."""
    body = {"event": "fault", "rule": rule, "fault_id": fault_id, "number": number}
    return Note(EVENTS, time_ns, body | {"connection": connection, **what})


def session_refused(time_ns: int, rule: str, fault_id: int, number: int, connection: int) -> Note:
    """A fault rule had a client begin a new fetch session, because the old one began before the
    rule and its content is not known. This does not count as firing."""
    body = {"event": "session_refused", "rule": rule, "fault_id": fault_id, "number": number}
    return Note(EVENTS, time_ns, body | {"connection": connection})


def outage(node_id: int | None, reason: str, from_ns: int, until_ns: int | None = None) -> Note:
    """A broker (None: each of the bootstrap) could not be used, as far as kproxy knew. There is one
    note when that begins (`until_ns` is None), and another one when it ends."""
    body = {"event": "outage", "node_id": node_id, "reason": reason}
    body |= {"from_ns": from_ns, "until_ns": until_ns}
    return Note(EVENTS, from_ns if until_ns is None else until_ns, body)


def slow_peer(connection: int, side: str, node_id: int | None, from_ns: int, until_ns: int) -> Note:
    """A "client", or a "broker", did not take what was sent to it for so long; nothing was read
    from the other side meanwhile. No exchange has that time as kproxy's."""
    body = {"event": "slow_peer", "connection": connection, "side": side, "node_id": node_id}
    return Note(EVENTS, until_ns, body | {"from_ns": from_ns, "until_ns": until_ns})


def lost(
    frames: int, frame_bytes: int, reason: str, from_ns: int, until_ns: int, **where: int | str
) -> Note:
    """Frames that passed in a span of time are not in the recording: of this connection and side,
    if that is known."""
    body = {"event": "lost", "frames": frames, "bytes": frame_bytes, "reason": reason}
    return Note(EVENTS, until_ns, body | {"from_ns": from_ns, "until_ns": until_ns} | where)


def stood_still(from_ns: int, until_ns: int) -> Note:
    """kproxy itself did nothing in a span of time: times after it are too late."""
    body = {"event": "stood_still", "seconds": round((until_ns - from_ns) / 1e9, 3)}
    return Note(EVENTS, until_ns, body | {"from_ns": from_ns, "until_ns": until_ns})


def stopped(time_ns: int, by: str) -> Note:
    """A signal ended kproxy: from here on it takes no further request."""
    return Note(EVENTS, time_ns, {"event": "stopped", "by": by})


def clock_step(time_ns: int, step_ns: int) -> Note:
    """The system's clock was set forward (or back, if negative) by so much, or the machine slept:
    this time and later ones follow it."""
    return Note(EVENTS, time_ns, {"event": "clock_step", "seconds": round(step_ns / 1e9, 3)})


def removed(time_ns: int, recording: str, first_part: int, last_part: int, by: str) -> Note:
    """Parts of a recording, of this one or of an earlier one, were removed by an option of
    `kproxy run`, or by a full disk."""
    parts = {"recording": recording, "first_part": first_part, "last_part": last_part}
    return Note(EVENTS, time_ns, {"event": "removed", **parts, "by": by})


def learned(time_ns: int, body: Mapping[str, Any]) -> Note:
    """What varies between runs that do the same (`replay.learned`). The last note counts."""
    return Note(EVENTS, time_ns, dict(body))


def made_by(time_ns: int, body: Mapping[str, Any]) -> Note:
    """What makes this recording anew: `testing.renewing.made_by` has the body."""
    return Note(EVENTS, time_ns, {"event": "made_by", **body})


def ignored(time_ns: int, ignore: Sequence[str]) -> Note:
    """The rules for what does not count when this recording is compared (`replay.ignored`)."""
    return Note(EVENTS, time_ns, {"event": "ignored", "ignore": list(ignore)})


# ── on files ─────────────────────────────────────────────────────────────────────────────────


def pending(time_ns: int, rows: Sequence[ExchangeRow]) -> Note:
    """These exchanges began in earlier files, and are not complete: what is known of each."""
    exchanges = [[*row[:-1], list(row.fault_ids)] for row in rows]
    body = {"event": "pending", "columns": list(ExchangeRow._fields), "exchanges": exchanges}
    return Note(EVENTS, time_ns, body)


def is_pending(note: Note) -> bool:
    """Return whether a note lists exchanges that are not complete."""
    return note.channel == EVENTS and note.body.get("event") == "pending"


def recovered(time_ns: int, dropped_bytes: int) -> Note:
    """The file was torn, and was completed without these bytes at its end."""
    return Note(EVENTS, time_ns, {"event": "recovered", "dropped_bytes": dropped_bytes})


def index(
    time_ns: int, offset: int, crc: int, columns: Mapping[str, Any], sets: Mapping[str, Any]
) -> Note:
    """What the chunks of the file hold, up to an offset (`recording.batch_index`)."""
    body = {"event": "index", "offset": offset, "crc32": crc, "columns": columns, "sets": sets}
    return Note(EVENTS, time_ns, body)


def torn(time_ns: int, path: str, offset: int, what: str, writing: bool) -> Note:
    """A file breaks off; `writing`: it may be written still. Never recorded."""
    body = {"event": "torn", "path": path, "offset": offset, "what": what, "writing": writing}
    return Note(EVENTS, time_ns, body)


def damaged(time_ns: int, path: str, offset: int | None, what: str) -> Note:
    """A part of a file was left out. Never recorded."""
    body = {"event": "damaged", "path": path, "offset": offset, "what": what}
    return Note(EVENTS, time_ns, body)


def recording(time_ns: int, path: str) -> Note:
    """Another recording begins here, with numbers of its own. Never recorded."""
    return Note(EVENTS, time_ns, {"event": "recording", "path": path})


def missing(
    time_ns: int,
    path: str,
    part: int,
    first: int,
    beside: int = 0,
    removal: tuple[int, str] | None = None,
) -> Note:
    """The parts of a recording from `first` up to this later file were not given, so many of which
    lie beside it; `removal` is the last part that is known to be removed, and by which option.
    Never recorded."""
    removed_to, by = removal or (0, "")
    gone = min(removed_to, part - 1)
    sentences = [f"{_parts(first, gone)} removed by {by}"] if gone >= first else []
    first = max(first, gone + 1)
    if first < part:
        not_there = f"{_parts(first, part - 1, 'is', 'are')} not there"
        if beside:
            many = "" if beside == part - first else f"{beside} of them "
            lie = "lies" if beside == 1 else "lie"
            many = many or ("it " if beside == 1 else "they ")
            not_there = not_there.removesuffix("there") + f"read; {many}{lie} beside it: "
            not_there += "give all files, or their folder"
        elif by:
            not_there += f" ({by} removes the oldest)"
        sentences.append(not_there)
    body = {"event": "missing", "path": path, "part": part, "what": "; ".join(sentences)}
    return Note(EVENTS, time_ns, body)


def _parts(first: int, last: int, one: str = "was", several: str = "were") -> str:
    return f"part {first} {one}" if first == last else f"parts {first} to {last} {several}"


def copied(time_ns: int, path: str, original: str) -> Note:
    """A file is the same part of the same recording as another, and left out. Never recorded."""
    return Note(EVENTS, time_ns, {"event": "copied", "path": path, "original": original})


def gone(time_ns: int, path: str) -> Note:
    """A file was removed between being listed and being read. Never recorded."""
    return Note(EVENTS, time_ns, {"event": "gone", "path": path})


def all_removed(time_ns: int, recordings: int, files: int, by: str) -> Note:
    """Of so many earlier recordings, of as many files, an option has left nothing. Never
    recorded."""
    one = recordings == 1
    which = "an earlier recording was" if one else f"{recordings} earlier recordings were"
    what = f"{which} removed by {by}, {files} file{'' if files == 1 else 's'} in all"
    return Note(EVENTS, time_ns, {"event": "all_removed", "what": what})


def pause(from_ns: int, until_ns: int, why: str) -> Note:
    """Between two recordings, kproxy recorded nothing. Never recorded."""
    body = {"event": "pause", "from_ns": from_ns, "until_ns": until_ns}
    span = f"from {_second(from_ns)} to {_second(until_ns)}"
    return Note(EVENTS, until_ns, body | {"what": f"kproxy was not recording {span}: {why}"})


def _second(time_ns: int) -> str:
    return f"{moment(time_ns):%Y-%m-%d %H:%M:%S}"


def unread(time_ns: int, path: str, exchanges: Collection[str]) -> Note:
    """Records of these exchanges were left out: they unpack to too much. Never recorded."""
    first = next(iter(exchanges))
    what = f"records of exchanges that unpack to too much: {len(exchanges)}, the first {first}"
    body = {"event": "unread", "path": path, "what": what}
    return Note(EVENTS, time_ns, body | {"number": int(first.rpartition("#")[2])})
