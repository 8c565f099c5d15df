"""Report what clients produced otherwise than in the recording: the findings of a `ProduceCheck`.

::

    ProduceCheck ─▶ a record without a match, and the closest one   "not recorded"
                 ├▶ what has not been produced                      "not produced"
                 └▶ what was produced, but in another transaction   "differs"
"""

from __future__ import annotations

from collections.abc import Iterable

from kproxy.exchange.words.wording import count
from kproxy.replay.differences import (
    Meaning,
    common_prefix_length,
    compared,
    differences,
    sentence,
    short,
    text_of,
    why,
)
from kproxy.replay.loaded import Other
from kproxy.replay.produced import Expected, Outcome, ProduceCheck
from kproxy.replay.report import Report
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


def report_unknown(check: ProduceCheck, topic: Topic, partition: int, record: Record) -> None:
    """Report a record without a match, and the closest unproduced one. Call this after all
    records of its batch were matched."""
    same = check.equal_to(topic, record)
    again = same is not None and same.first_unproduced(None) is None
    text = "" if check.report.full else _text(check, topic, partition, record, again)
    check.report.add("not recorded", text, ADVICE)


def report_unproduced(check: ProduceCheck, report: Report, reads_all: bool = True) -> None:
    """Report all records that were not produced, except those shown as the closest one. Unless it
    `reads_all` of the recording, a topic that nothing was produced to is only named."""
    for each in check.undecoded:
        what = f"a Produce v{each.api_version} of {count(len(each.request_frame), 'byte')}"
        report.add("not produced", f"{what} {_why_undecoded(each)} did not come again", ADVICE)
    for group in check.missing_groups():
        what = f"group {group}: its offsets were not committed in a transaction"
        report.add("not produced", f"{what}; recorded in one", ADVICE)
    for topic in check.topics:
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
            what = f"{_named(each)} {each.outcome.value}: {_shown(check, topic, each.record)}"
            report.add("not produced", what, ADVICE)


def report_uncommitted(check: ProduceCheck) -> None:
    """Report all records that were produced, but not committed as they were when recorded."""
    for each in check.uncommitted():
        what = f"{_named(each)} {each.outcome.value}; the recording has it committed"
        what = f"{what}: {_shown(check, each.topic, each.record)}"
        check.report.add("differs", what, ADVICE)


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


def _text(check: ProduceCheck, topic: Topic, partition: int, record: Record, again: bool) -> str:
    what = f"{topic.name}[{partition}]: the recording does not hold this {_kind(record)}"
    shown = _shown(check, topic, record)
    if again:
        return f"{what} once more than it was produced before: {shown}"
    refused = check.refused(topic, record)
    if refused is not None:
        was = f"was refused when recorded ({error_name(refused.error_code)}), and is taken now"
        where = f"{topic.name}[{partition}]: this {_kind(record)}"
        return f"{where} {was}; --recorded-faults refuses it again: {shown}"
    expected = check.expected(topic)
    left = (
        each
        for each in expected
        if not each.produced and not each.shown_as_closest and _kind(each.record) == _kind(record)
    )
    closest = _closest(left, partition, record)
    if closest is None:
        return f"{what}, nor any other that is still to be produced there: {shown}"
    at = f" at offset {closest.offset}" if closest.offset >= 0 else ""
    where = f"{topic.name}[{closest.partition}]{at}"
    if isinstance(record, UnreadableBatch):
        closest.shown_as_closest = True
        now, then = _shown(check, topic, record), _shown(check, topic, closest.record)
        return f"{what}: {now}; the closest one, {where}, has other bytes: {then}"
    now, of_now = compared(record, topic.name, check.ignored, check.loaded.schemas)
    then, of_then = compared(closest.record, topic.name, check.ignored, check.loaded.schemas)
    closest.shown_as_closest = now.key == then.key or now.value == then.value
    found = list(differences(now, then, of_now, of_then))
    if closest.partition != partition:
        found.insert(0, ("partition", str(partition), str(closest.partition)))
    return f"{what}; the closest one, {where}, differs in {sentence(found)}"


def _meanings(check: ProduceCheck, topic: Topic, record: Record) -> dict[str, Meaning]:
    given = topic.name, record.key, record.value, record.headers, check.loaded.schemas
    return {part: decode(part, *given) for part in ("key", "value")}


def _shown(check: ProduceCheck, topic: Topic, record: Record) -> str:
    if isinstance(record, UnreadableBatch):
        return record.text
    texts = {"key": text_of(record.key), "value": text_of(record.value)}
    for part, meaning in _meanings(check, topic, record).items():
        shown = json_text(meaning.value) if isinstance(meaning, Decoded) else texts[part]
        texts[part] = f"{short(shown)}{why(meaning)}"
    headers = f", headers {short(str(record.headers))}" if record.headers else ""
    return f"key {texts['key']}, value {texts['value']}{headers}"


def _closest(among: Iterable[Expected], partition: int, record: Record) -> Expected | None:
    best, score = None, (-1, -1, -1)
    for _, expected in zip(range(_COMPARED_MAX), among, strict=False):
        other = expected.record
        alike = (
            2 * (other.key == record.key) + 2 * (other.value == record.value),
            (other.headers == record.headers) + (expected.partition == partition),
            common_prefix_length(other.value or b"", record.value or b""),
        )
        if alike > score:
            best, score = expected, alike
    return best


def _named(expected: Expected) -> str:
    at = f" at offset {expected.offset}" if expected.offset >= 0 else ""
    return f"{expected.topic.name}[{expected.partition}]: the {_kind(expected.record)}{at}"


def _why_undecoded(request: Other) -> str:
    try:
        _ = request.request
    except ProtocolError as error:
        return f"that cannot be decoded ({error})"
    return "that cannot be decoded"


def _kind(record: Record) -> str:
    return "batch" if isinstance(record, UnreadableBatch) else "record"
