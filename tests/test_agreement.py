"""What kproxy says in several places of one recording is the same in all of them.

::

    recording ─▶ report · git diff · findings · stories · tables
                    └──────┴─ offsets, lag, members, ends, records ─▶ equal

Each place is asked as users ask it; where it answers in sentences, these are read. An answer that a
place leaves open (“maybe”, “at least”) is not compared.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kproxy.analyze.export import group_rows
from kproxy.exchange import notes
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.history.behaviour import Behaviour
from kproxy.history.events import taken
from kproxy.history.items import with_gaps
from kproxy.look.lines.stats_lines import stats_of
from kproxy.look.lines.stream import Stream
from kproxy.look.report.groups import group_events
from kproxy.look.report.light import light_data
from kproxy.look.report.part import ReportPart
from kproxy.look.why.stories import story
from kproxy.recording.paths import by_recording
from kproxy.wire.protocol import messages as m
from tests.bed import needs
from tests.bed.random_cluster import RandomCluster
from tests.exchange.making import MS, START_NS
from tests.look.why.test_causes import deleted
from tests.look.why.test_key import commit, metadata, produce
from tests.look.why.test_transactional_id import end, initialize
from tests.look.why.traffic import Traffic, body

TEN = [b"k"] * 10

FOLDERS = ("recordings", "tests/exchange", "tests/recording/formats/3", "tests/look/why/incidents")
RECORDINGS = [
    each.paths[0]
    for folder in FOLDERS
    for each in by_recording([*(needs.REPOSITORY / folder).rglob("*.mcap")])
]

Facts = dict[Any, Any]
"""What one place says: subject → value."""

_COMMITTED = re.compile(r"Group (\S+) committed \d+ offsets?, the last (.*)\.$")
_PLACE = re.compile(r"(\S+)\[(\d+)@(\d+)\] \((#\d+\)|maybe)")
MAYBE = object()
"""What a place leaves open."""
_LAG = re.compile(
    r"commits of group (\S+) are (\d+) offsets? behind the end of"
    r" (\w+)(?:\[(\d+)\])?[.;]"
)
_UP_TO = re.compile(r"(\S+)\[(\d+)\] is committed up to (\d+) \(\w+ #\d+\), its end is (\d+)")
_ENDS = re.compile(r"\d+ transactions? \((.*?)\)")
_END = re.compile(r"(\d+) (committed|aborted|whose end|without an end)")
_LEAVES = re.compile(r"leaves(?: for now \(static member\))? (?:with )?\(?#(\d+)")
_BORN = re.compile(r"[\d:.]+ generation (?:\d+ → )?(\d+):")
_RECORDS = re.compile(r"[^#]*? (wrote|sent|tried to write|fetched) (\d+) records?")
_ABORTED = re.compile(r", (\d+) of them in transactions that were aborted")


class Asked:
    """A recording, and what is read of it once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.exchanges: list[Exchange] = []
        self.behaviour, self.part = Behaviour(), ReportPart()
        for each in with_gaps(self._read, lambda note: self.part.add_note(note, "one")):
            self.behaviour.add(each)
            if isinstance(each, Exchange):
                self.exchanges.append(each)
                self.part.add(each, taken(each), "one", str(path))
        self.report = light_data([path])
        self.rows = group_rows(self.part)
        self.stories: dict[tuple[str, str], list[str]] = {}

    def _read(self, told: Callable[[Note], None]) -> Iterator[Exchange | ConnectionEnd]:
        return Stream([self.path], on_note=told, ends=False).shown()

    def names(self, of: str) -> list[str]:
        return sorted({name for each in self.exchanges for name in getattr(each, of)})

    def story(self, kind: str, name: str) -> list[str]:
        if (kind, name) not in self.stories:
            self.stories[kind, name] = story([self.path], kind, name)[0]
        return self.stories[kind, name]


# ---- committed offsets, by group, topic and partition


def _in_rows(groups: list[dict[str, Any]]) -> Facts:
    return {
        (group.get("name", group["group"]), each["topic"], each["partition"]): each["committed"]
        for group in groups
        for each in group["partitions"]
    }


def committed_in_report(asked: Asked) -> Facts:
    return _in_rows(asked.report.groups)


def committed_in_table(asked: Asked) -> Facts:
    return _in_rows(asked.rows)


def committed_in_diff(asked: Asked) -> Facts:
    return {
        (name, *where): offset
        for name, group in asked.behaviour.groups.items()
        for where, offset in group.committed.items()
        if offset >= 0
    }


def committed_in_topic(asked: Asked) -> Facts:
    found: Facts = {}
    for topic in asked.names("topics"):
        for line in asked.story("topic", topic):
            if told := _COMMITTED.match(line):
                for place in _PLACE.finditer(told[2]):
                    offset = MAYBE if place[4] == "maybe" else int(place[3])
                    found[told[1], topic, int(place[2])] = offset
    return found


def committed_in_findings(asked: Asked) -> Facts:
    found: Facts = {}
    for each in asked.report.findings:
        if told := _LAG.search(each.text):
            up_to = _UP_TO.search(each.whole)
            found[told[1], up_to[1], int(up_to[2])] = int(up_to[3])
    return found


# ---- lag, by group, topic, and partition or all of them


def lag_in_report(asked: Asked) -> Facts:
    found: Counter[tuple[str, str, str]] = Counter()
    for group in asked.report.groups:
        for each in group["partitions"]:
            for partition in ("", str(each["partition"])):
                found[group["name"], each["topic"], partition] += each["lag"] or 0
    return dict(found)


def lag_in_findings(asked: Asked) -> Facts:
    told = (_LAG.search(each.text) for each in asked.report.findings)
    return {(each[1], each[3], each[4] or ""): int(each[2]) for each in told if each}


# ---- who left, by group: the exchanges


def leaves_in_events(asked: Asked) -> Facts:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for each in asked.exchanges:
        for event in group_events(each, taken(each)):
            if event.event == "LeaveGroup" and event.error is None:
                found[event.group].add(each.number)
    return dict(found)


def leaves_in_story(asked: Asked) -> Facts:
    found: Facts = {}
    for group in asked.names("groups"):
        lines = asked.story("group", group)
        numbers = {int(each[1]) for line in lines if (each := _LEAVES.search(line))}
        own = {each.number for each in asked.exchanges if each.api == "LeaveGroup"}
        if numbers & own:
            found[group] = numbers & own
    return found


# ---- generations of classic groups that members joined, by group: how many


def _of_classic(asked: Asked, found: Mapping[str, int]) -> Facts:
    kinds = asked.behaviour.groups
    return {
        group: n
        for group, n in found.items()
        if group in kinds and kinds[group].clients and kinds[group].kind == "classic"
    }


def generations_in_report(asked: Asked) -> Facts:
    return _of_classic(asked, Counter(each["group"] for each in asked.report.rebalances))


def generations_in_stats(asked: Asked) -> Facts:
    stats = stats_of(Stream([asked.path]))
    return _of_classic(asked, {group: len(n) for (group, _), n in stats.generations.items()})


def generations_in_story(asked: Asked) -> Facts:
    found: Facts = {}
    for group in asked.names("groups"):
        born = {each[1] for line in asked.story("group", group) if (each := _BORN.match(line))}
        found[group] = len(born)
    return _of_classic(asked, +Counter(found))


# ---- ends of transactions, by transactional id


_NAMES = {"unknown": "whose end", "open": "without an end"}


def ends_in_diff(asked: Asked) -> Facts:
    return {
        name: Counter(_NAMES.get(each.end, each.end) for each in begun)
        for name, begun in asked.behaviour.transactions.items()
        if begun
    }


def ends_in_story(asked: Asked) -> Facts:
    found: Facts = {}
    for name in asked.names("transactional_ids"):
        lines = asked.story("transactional_id", name)
        if told := next(filter(None, map(_ENDS.search, lines)), None):
            found[name] = Counter({each[2]: int(each[1]) for each in _END.finditer(told[1])})
    return found


# ---- records that were written, by topic


def _in_story(asked: Asked, *verbs: str, aborted: bool = False) -> Facts:
    found: Counter[str] = Counter()
    for topic in asked.names("topics"):
        for line in asked.story("topic", topic):
            if (told := _RECORDS.match(line)) and told[1] in verbs:
                less = _ABORTED.search(line)
                found[topic] += int(less[1] if less else 0) if aborted else int(told[2])
    return dict(+found)


def written_in_topic(asked: Asked) -> Facts:
    return _in_story(asked, "wrote", "sent")


def written_in_diff(asked: Asked) -> Facts:
    topics = asked.behaviour.topics.items()
    return {name: len(topic.produced) for name, topic in topics if topic.produced}


def _all(found: Facts) -> Facts:
    return {"all topics": sum(found.values())}


def all_written_in_topics(asked: Asked) -> Facts:
    return _all(written_in_topic(asked))


def all_written_in_report(asked: Asked) -> Facts:
    return {"all topics": asked.report.totals["produced"]}


def all_written_in_part(asked: Asked) -> Facts:
    return {"all topics": asked.part.produced}


def aborted_in_topic(asked: Asked) -> Facts:
    found: Counter[str] = Counter()
    for topic in asked.names("topics"):
        for line in asked.story("topic", topic):
            if (told := _RECORDS.match(line)) and told[1] in ("wrote", "sent"):
                less = _ABORTED.search(line)
                found[topic] += int(less[1]) if less else 0
    return dict(+found)


def aborted_in_diff(asked: Asked) -> Facts:
    topics = asked.behaviour.topics.items()
    found = {name: sum(each.end == "aborted" for each in topic.produced) for name, topic in topics}
    return dict(+Counter(found))


# ---- records that were read, by topic


def read_in_topic(asked: Asked) -> Facts:
    return _in_story(asked, "fetched")


def all_read_in_topics(asked: Asked) -> Facts:
    return _all(read_in_topic(asked))


def all_read_in_report(asked: Asked) -> Facts:
    return {"all topics": asked.report.totals["consumed"]}


def all_read_in_stats(asked: Asked) -> Facts:
    fetches = asked.part.counts.by_api.get("Fetch")
    return {"all topics": fetches.records if fetches else 0}


QUESTIONS = {
    "committed": (
        committed_in_report,
        committed_in_table,
        committed_in_diff,
        committed_in_topic,
        committed_in_findings,
    ),
    "lag": (lag_in_report, lag_in_findings),
    "who left": (leaves_in_events, leaves_in_story),
    "generations": (generations_in_report, generations_in_stats, generations_in_story),
    "ends": (ends_in_diff, ends_in_story),
    "written": (written_in_topic, written_in_diff),
    "all written": (all_written_in_topics, all_written_in_report, all_written_in_part),
    "aborted": (aborted_in_topic, aborted_in_diff),
    "all read": (all_read_in_topics, all_read_in_report, all_read_in_stats),
}
_OF_SOME = {committed_in_findings, lag_in_findings}
"""These answer for some subjects only."""


def disagreements(asked: Asked) -> Iterator[str]:
    """Yield what one place says of a subject, and another one says, too, but otherwise."""
    for question, (first, *others) in QUESTIONS.items():
        said = first(asked)
        for other in others:
            too = other(asked)
            for key in sorted(too.keys() | (set() if other in _OF_SOME else said.keys()), key=str):
                if MAYBE not in (said.get(key), too.get(key)) and said.get(key) != too.get(key):
                    yield (
                        f"{question} {key}: {first.__name__} {said.get(key)},"
                        f" {other.__name__} {too.get(key)}"
                    )


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recordings(path: Path) -> None:
    assert list(disagreements(Asked(path))) == []


@pytest.mark.parametrize("seed", range(25))
def test_faulty_traffic(tmp_path: Path, seed: int) -> None:
    path = RandomCluster(seed).run(80).recorded(tmp_path)
    assert list(disagreements(Asked(path))) == []


# ---- what they say


def begun(first: int = 0) -> Traffic:
    """Ten records of a partition, the first at an offset."""
    traffic = Traffic()
    traffic.add(0, *metadata(1))
    traffic.add(1, *produce(0, first, *TEN))
    return traffic


def in_transaction(offset: int):
    topic = {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": offset}]}
    about = {"transactional_id": "pay", "group_id": "billing", "producer_id": 7}
    asked = body("TxnOffsetCommitRequest", topics=[topic], **about)
    return "TxnOffsetCommit", 3, asked, m.TxnOffsetCommitResponse()


def ended(*, committed: bool) -> Traffic:
    traffic = begun()
    traffic.add(2, *initialize(0))
    traffic.add(3, *commit(0, 2))
    traffic.add(5, *in_transaction(10))
    traffic.add(6, *end(0, committed=committed))
    return traffic


def left_open() -> Traffic:
    traffic = ended(committed=True)
    traffic.add(7, *in_transaction(5))
    traffic.add(8, *initialize(1))
    return traffic


def across_a_gap() -> Traffic:
    """In the gap, the transaction may have ended, and another one begun."""
    traffic = ended(committed=True)
    traffic.add(7, *in_transaction(5))
    at_ns = START_NS + 9 * MS
    traffic.entries.append(notes.lost(3, 100, "the disk is full", at_ns, at_ns + 1))
    traffic.add(10, *end(0, committed=True))
    return traffic


def kept() -> Traffic:
    traffic = begun()
    traffic.add(3, *commit(0, 2))
    api, version, asked, _ = commit(0, 10)
    traffic.add(4, api, version, asked, None)
    traffic.kept()
    return traffic


def created_again() -> Traffic:
    traffic = begun(100)
    traffic.add(2, *deleted("orders"))
    traffic.add(3, *produce(0, 0, b"k", b"k"))
    traffic.add(4, *commit(0, 2))
    return traffic


def without_group() -> Traffic:
    traffic = begun()
    traffic.add(3, *commit(0, 2))
    gone = m.DeleteGroupsResponse.DeletableGroupResult(group_id="billing")
    asked = m.DeleteGroupsRequest(groups_names=["billing"])
    traffic.add(4, "DeleteGroups", 1, asked, m.DeleteGroupsResponse(results=[gone]))
    return traffic


def without_offset() -> Traffic:
    traffic = begun()
    traffic.add(3, *commit(0, 2))
    topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
    asked = body("OffsetDeleteRequest", group_id="billing", topics=topics)
    traffic.add(4, "OffsetDelete", 0, asked, body("OffsetDeleteResponse", topics=topics))
    return traffic


@pytest.mark.parametrize(
    ("traffic", "committed", "lag"),
    [
        pytest.param(ended(committed=False), 2, 8, id="aborted"),
        pytest.param(ended(committed=True), 10, 0, id="committed"),
        pytest.param(left_open(), 10, 0, id="left open"),
        pytest.param(across_a_gap(), 10, 0, id="ended behind a gap"),
        pytest.param(kept(), 2, 8, id="kept by a rule"),
        pytest.param(created_again(), 2, 0, id="topic created again"),
        pytest.param(without_group(), None, None, id="group deleted"),
        pytest.param(without_offset(), None, None, id="offset deleted"),
    ],
)
def test_what_is_said_of_a_group(tmp_path, traffic: Traffic, committed, lag):
    asked = Asked(traffic.recorded(tmp_path))
    assert committed_in_report(asked).get(("billing", "orders", 0)) == committed
    assert [each["lag"] for each in asked.report.groups] == [lag]
    assert list(lag_in_findings(asked).values()) == ([lag] if lag else [])
    assert list(disagreements(asked)) == []


def test_each_of_several_members_leaves_with_its_own_error(tmp_path):
    members = [{"member_id": "one"}, {"member_id": "two"}]
    leaving = body("LeaveGroupRequest", group_id="billing", members=members)
    members[1]["error_code"] = 25
    traffic = begun()
    traffic.add(2, "LeaveGroup", 3, leaving, body("LeaveGroupResponse", members=members))
    (group,) = light_data([traffic.recorded(tmp_path)]).groups
    assert (group["members"], group["errors"]) == (2, 1)
