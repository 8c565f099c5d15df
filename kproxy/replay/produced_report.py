"""Report what clients produced otherwise than in the recording: the findings of a `ProduceCheck`.

::

    ProduceCheck ─▶ a record without a match, and the closest one   "not recorded"
                 ├▶ what has not been produced                      "not produced"
                 └▶ what was produced, but in another transaction   "differs"
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from itertools import islice

from kproxy.exchange.words.wording import count
from kproxy.replay.differences import (
    Meaning,
    compared,
    differences,
    sentence,
    short,
    text_of,
    why,
)
from kproxy.replay.loaded import Other
from kproxy.replay.places import Places, pairs, places_in, places_of, varying_words
from kproxy.replay.produced import (
    Expected,
    Outcome,
    ProduceCheck,
    Spot,
    UnknownRecord,
    identities,
)
from kproxy.replay.report import ClientDifference, Report
from kproxy.replay.topics import Topic
from kproxy.replay.unreadable import UnreadableBatch
from kproxy.wire.payloads.decoding import decode
from kproxy.wire.payloads.meaning import Decoded
from kproxy.wire.payloads.plain import json_text
from kproxy.wire.protocol import ProtocolError, error_name
from kproxy.wire.protocol.record_batch import Record

ADVICE = "if that is meant, record again: kproxy run --bootstrap BROKERS --record FILE"
_NAMED_MAX = 3
"""Of a topic to which nothing was produced, at most this many records are named one by one."""
_COMPARED_MAX = 1000
"""At most this many recorded records are searched for the closest one."""
_INDEX = re.compile(r"\[\d+\]")


def report_unknown(check: ProduceCheck, topic: Topic, partition: int, record: Record) -> None:
    """Report a record without a match, and the unproduced one that it belongs to, as far as that is
    known. Call this after all records of its batch were matched."""
    if check.ignored.frees(topic.name):
        return
    if check.report.full:
        check.report.add("not recorded", "")
        return
    found = _surplus(check, topic, partition, record)
    if found is None:
        left = _left(check, topic, record)
        now = _places_now(check, topic, record)
        closest = pairs([now], _places(check, left)).get(0)
        closest = left[closest] if closest is not None else None
        found = _finding(check, topic, partition, record, closest)
        check.unknown.append(UnknownRecord(topic, partition, record, found))
    check.report.take(found)


def _retell_unknown(check: ProduceCheck) -> None:
    """Tell of all records without a match again, together: which recorded ones they belong to."""
    told: dict[ClientDifference, ClientDifference] = {}
    for each in check.unknown:
        for one in check.expected(each.topic):
            one.shown_as_closest = False
    by_topic: dict[tuple[Topic, str], list[UnknownRecord]] = {}
    for each in check.unknown:
        by_topic.setdefault((each.topic, _kind(each.record)), []).append(each)
    for (topic, _), unknown in by_topic.items():
        left = _left(check, topic, unknown[0].record)
        now = [_places_now(check, topic, each.record) for each in unknown]
        found = pairs(now, _places(check, left))
        for number, each in enumerate(unknown):
            closest = left[found[number]] if number in found else None
            again = _finding(check, topic, each.partition, each.record, closest)
            told[each.finding] = again
    check.report.retell(told)
    check.unknown.clear()


def _left(check: ProduceCheck, topic: Topic, record: Record) -> list[Expected]:
    """Return the recorded records of a topic that are not produced, and that are no closest one."""
    left = (
        each
        for each in check.expected(topic)
        if not each.produced and not each.shown_as_closest and _kind(each.record) == _kind(record)
    )
    return list(islice(left, _COMPARED_MAX))


def _places(check: ProduceCheck, left: Iterable[Expected]) -> list[Places]:
    """Return the contents of recorded records by their places, without what is ignored."""
    for each in left:
        if each.places is None:
            ids = {("", part.word): one for part, one in identities(each.recorded_varying)}
            each.places = {
                **places_in(each.record, each.topic.name, check.ignored, check.loaded.schemas),
                **ids,
            }
    return [each.places or {} for each in left]


def _places_now(check: ProduceCheck, topic: Topic, record: Record) -> Places:
    """Return the contents of a produced record by their places, and its ids as they were in the
    recording, as far as another record tells: that of the same ids is the nearest."""
    (_, varying), known = check.ignored.read(record, topic.name), check.recorded_identities
    ids = {("", part.word): known[one] for part, one in identities(varying) if one in known}
    return {**places_in(record, topic.name, check.ignored, check.loaded.schemas), **ids}


def report_unproduced(check: ProduceCheck, report: Report, reads_all: bool = True) -> None:
    """Report all records that were not produced, except those shown as the closest one. Unless it
    `reads_all` of the recording, a topic that nothing was produced to is only named."""
    _retell_unknown(check)
    for each in check.undecoded:
        what = f"a Produce v{each.api_version} of {count(len(each.request_frame), 'byte')}"
        report.add("not produced", f"{what} {_why_undecoded(each)} did not come again", ADVICE)
    for group in check.missing_groups():
        what = f"group {group}: its offsets were not committed in a transaction"
        report.add("not produced", f"{what}; recorded in one", ADVICE)
    for topic in check.topics:
        if check.ignored.frees(topic.name):
            continue
        if not (reads_all or check.is_read(topic)):
            report.add("not produced", f"{topic.name}: none of its recorded records", ADVICE)
            continue
        expected = list(check.expected(topic))
        missing = [
            each
            for each in expected
            if each.missing and each.outcome is Outcome.NEVER and not each.shown_as_closest
        ]
        damaged = check.damaged.get(topic.name)
        if missing and damaged is not None:
            what = f"{topic.name}: a batch came, and was refused (CORRUPT_MESSAGE)"
            report.add("not produced", f"{what}: {_shown(check, topic, damaged)}", ADVICE)
        if len(missing) == len(expected) > _NAMED_MAX:
            first = f"the first: {_shown(check, topic, missing[0].record)}"
            what = f"{topic.name}: none of its {len(missing)} recorded records; {first}"
            report.add("not produced", what, ADVICE)
            continue
        for each in missing:
            text = _told(check, each)
            like = f"{topic.name} {each.outcome.value}"
            report.take(ClientDifference("not produced", text, ADVICE, like))


def report_uncommitted(check: ProduceCheck) -> None:
    """Report all records that were produced, but not committed as they were when recorded."""
    for each in check.uncommitted():
        what = _told(check, each, "; the recording has it committed")
        like = f"{each.topic.name} {each.outcome.value}"
        check.report.take(ClientDifference("differs", what, ADVICE, like))


def report_outside(check: ProduceCheck) -> None:
    """Report how many records, and the offsets of which groups, were not in a transaction, or not
    in the same one, although they were when recorded."""
    for name, number in sorted(check.outside().items()):
        were = "was" if number == 1 else "were"
        what = f"{count(number, 'record')} {were} produced outside a transaction"
        check.report.add("differs", f"{name}: {what}; recorded in one", ADVICE)
    for (name, groups), number in sorted(check.without_offsets().items()):
        were = "was" if number == 1 else "were"
        what = f"{count(number, 'record')} {were} committed without offsets of group {groups}"
        check.report.add("differs", f"{name}: {what} in the transaction; recorded with", ADVICE)
    for group in check.groups_outside():
        what = f"group {group}: its offsets were committed outside a transaction"
        check.report.add("differs", f"{what}; recorded in one", ADVICE)


def report_ties(check: ProduceCheck) -> None:
    """Report ids and the like that were not as equal, or as different, as when recorded."""
    for tie in check.ties():
        place, beside = _spot_text(tie.spot), f"{tie.beside.topic}/{_spot_text(tie.beside)}"
        now, then = tie.records, tie.recorded_records
        if tie.spot != tie.beside:
            how = "equals" if now > then else "differs from"
            what = f"{place} {how} {beside} {tie.now}; recorded: {_OTHERWISE[how]}"
        elif now == then:
            what = f"{place} {tie.now} is in other records than the recorded one"
        else:
            what = f"{place} {tie.now} is in {count(now, 'record')}; recorded: one in {then}"
        check.report.add("differs", f"{tie.spot.topic}: {what}", ADVICE)


_OTHERWISE = {"equals": "differs", "differs from": "equal"}


def _spot_text(spot: Spot) -> str:
    """Return a part as an ignored one is named, without its topic and its kind."""
    return ":".join(filter(None, (spot.part.what, spot.part.name)))


def _surplus(
    check: ProduceCheck, topic: Topic, partition: int, record: Record
) -> ClientDifference | None:
    """Return what is to be said of a record that was recorded, but not once more, or refused."""
    same, shown = check.equal_to(topic, record), _shown(check, topic, record)
    if same is not None and same.first_unproduced(None) is None:
        what = f"{topic.name}: the {_kind(record)} was produced once more than recorded: {shown}"
        return ClientDifference("not recorded", what, ADVICE, f"{topic.name} more")
    refused = check.refused(topic, record)
    if refused is not None:
        was = f"was refused when recorded ({error_name(refused.error_code)}), and is taken now"
        where = f"{topic.name}[{partition}]: this {_kind(record)}"
        text = f"{where} {was}; --recorded-faults refuses it again: {shown}"
        return ClientDifference("not recorded", text, ADVICE)
    return None


def _finding(
    check: ProduceCheck, topic: Topic, partition: int, record: Record, closest: Expected | None
) -> ClientDifference:
    """Return what is to be said of a record that is not recorded, and belongs to `closest`."""
    shown, kind = _shown(check, topic, record), _kind(record)
    if closest is None:
        what = (
            f"{topic.name}: the {kind} is not in the recording: {shown} ({topic.name}[{partition}])"
        )
        return ClientDifference("not recorded", what, ADVICE, f"{topic.name} new")
    where = _where(closest)
    closest.shown_as_closest = True
    if isinstance(record, UnreadableBatch):
        then = _shown(check, topic, closest.record)
        text = f"{topic.name}: the batch has other bytes: {shown}, recorded {then} {where}"
        return ClientDifference("not recorded", text, ADVICE)
    now, of_now = compared(record, topic.name, check.ignored, check.loaded.schemas)
    then, of_then = compared(closest.record, topic.name, check.ignored, check.loaded.schemas)
    found = list(differences(now, then, of_now, of_then))
    if closest.partition != partition and check.ignored.compares_partition(record, topic.name):
        found.append(("partition", str(partition), str(closest.partition)))
    text = f"{_subject(check, topic, record, now.key != then.key)} has {sentence(found)} {where}"
    words = varying_words(places_of(now, of_now), places_of(then, of_then), topic.name)
    ignore = tuple(word for word in words if word)
    advice = f"it may differ with --ignore {shlex.join(ignore)}" if all(words) else ADVICE
    like = " ".join([topic.name, *(_INDEX.sub("[*]", name) for name, _, _ in found)])
    return ClientDifference("not recorded", text, advice, like, ignore, all(words))


def _subject(check: ProduceCheck, topic: Topic, record: Record, other_key: bool = False) -> str:
    if record.key is None or other_key:
        return f"{topic.name}: a record"
    meaning = _meanings(check, topic, record)["key"]
    key = json_text(meaning.value) if isinstance(meaning, Decoded) else text_of(record.key)
    return f"{topic.name}: the record of key {short(key)}"


def _meanings(check: ProduceCheck, topic: Topic, record: Record) -> dict[str, Meaning]:
    given = topic.name, record.key, record.value, record.headers, check.loaded.schemas
    return {part: decode(part, *given) for part in ("key", "value")}


def _shown(check: ProduceCheck, topic: Topic, record: Record) -> str:
    if isinstance(record, UnreadableBatch):
        return record.text
    return "key {key}, value {value}".format(**_texts(check, topic, record))


def _texts(check: ProduceCheck, topic: Topic, record: Record) -> dict[str, str]:
    texts = {"key": text_of(record.key), "value": text_of(record.value)}
    for part, meaning in _meanings(check, topic, record).items():
        shown = json_text(meaning.value) if isinstance(meaning, Decoded) else texts[part]
        texts[part] = f"{short(shown)}{why(meaning)}"
    return texts


def _where(expected: Expected) -> str:
    at = f" at offset {expected.offset}" if expected.offset >= 0 else ""
    return f"({expected.topic.name}[{expected.partition}]{at})"


def _told(check: ProduceCheck, expected: Expected, recorded: str = "") -> str:
    """Return what has become of a recorded record."""
    topic, record = expected.topic, expected.record
    if isinstance(record, UnreadableBatch):
        subject, shown = f"{topic.name}: the batch", record.text
    else:
        subject = _subject(check, topic, record).replace(": a ", ": the ")
        shown = f"value {_texts(check, topic, record)['value']}"
    return f"{subject} {expected.outcome.value}{recorded}: {shown} {_where(expected)}"


def _why_undecoded(request: Other) -> str:
    try:
        _ = request.request
    except ProtocolError as error:
        return f"that cannot be decoded ({error})"
    return "that cannot be decoded"


def _kind(record: Record) -> str:
    return "batch" if isinstance(record, UnreadableBatch) else "record"
