"""Pictures show what the history says, within their bounds, and texts of clients as texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.exchange import Exchange
from kproxy.history.history import History
from kproxy.history.rows import Read
from kproxy.history.transactions import OPEN
from kproxy.look.pictures.bounded import (
    BARS_MAX,
    POINTS_MAX,
    Bar,
    BarRow,
    EndMark,
    Steps,
)
from kproxy.look.pictures.drawing import element, svg
from kproxy.look.pictures.series import ENDED, HAS, JOINS, TOLD, WAITED, Series
from kproxy.look.pictures.subjects import pictured
from kproxy.look.pictures.transactions import transactions
from kproxy.look.report.light import light_data
from kproxy.look.why.source import StorySource
from kproxy.look.why.stories import story
from kproxy.printable import printable
from kproxy.recording import Recording
from kproxy.recording.info import Info
from tests.bed import needs
from tests.bed.random_cluster import RandomCluster
from tests.exchange.making import MS, START_NS
from tests.look.pictures.drawn import all_pictures, followed, parsed, written
from tests.look.why.test_transactional_id import initialize, produce
from tests.look.why.traffic import SECOND, Traffic, beat, join, sync, two_members

INCIDENTS = needs.REPOSITORY / "tests" / "look" / "why" / "incidents"
SMALL = sorted(INCIDENTS.glob("[!l]*.mcap"))
"""All but the one that takes as long as the rest."""
SEEDS = (3, 8)


@pytest.fixture(params=[*SMALL, *SEEDS], ids=str)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A recorded incident, or random traffic."""
    if isinstance(request.param, Path):
        return request.param
    return RandomCluster(request.param).run(250).recorded(tmp_path)


# ---- they agree with the history


def test_who_had_a_partition_when_it_was_fetched_is_whom_the_history_names(path: Path) -> None:
    series, history = Series(), History()
    fetched = []
    for item in StorySource([path], lambda done: None).read(None):
        taken = history.add(item)
        series.add(history, item, taken)
        if not isinstance(item, Exchange) or taken is None:
            continue
        for row in taken.rows:
            if not isinstance(row, Read):
                continue
            owner = history.groups.reader(taken.ref.client, row.where)
            group = None if owner is None else history.groups.get(owner.group)
            if owner is None or group is None or owner.since_ns > taken.ref.time_ns:
                continue
            member = group.members[owner.member]
            is_current = member.given is not None and member.given.generation == owner.generation
            if is_current and not (member.left or member.ended):  # it remembers what was before
                fetched.append((owner.group, owner.client, row.where, taken.ref.time_ns))
    assert fetched or path.stem in ("dups", "wrongboot", "quota")
    for group, client, where, time_ns in fetched:
        bars = [
            bar
            for own, _, row in series.groups[group].rows
            if own == client
            for bar in row.bars
            if bar.from_ns <= time_ns <= (bar.until_ns or time_ns)
        ]
        # Who joins anew has said nothing yet of what it gives up.
        assert any(where in bar.partitions or bar.kind == JOINS or bar.times > 1 for bar in bars)


def test_what_lives_and_is_committed_at_the_end_is_what_the_history_says(path: Path) -> None:
    series = followed(path)
    history = series.history
    for group in history.groups:
        rows = series.groups[group.name]
        shown = {each: row.open for each, (row, _) in rows.open.items()}
        for member in group.members.values():
            if member.left or member.ended:
                assert member.id not in shown
            bar = shown.get(member.id)
            if bar is not None and bar.kind == HAS:
                assert member.given is not None and bar.partitions == member.given.partitions
    certain = {key: each for key, each in history.logs.committed.items() if each.is_certain}
    assert {key: series.committed[key].value for key in certain} == {
        key: each.commit.offset for key, each in certain.items()
    }
    for where, log in history.logs.logs.items():
        if log.is_shown and where in series.written:
            assert series.written[where].value == log.end


@pytest.mark.parametrize("key", ["group", "transactional_id"])
def test_the_picture_above_a_story_is_that_of_the_report(path: Path, key: str) -> None:
    whole = followed(path)
    ids, names = whole.history.transactions.ids, [each.name for each in whole.history.groups]
    for name in names if key == "group" else [*ids]:
        drawn: list[Series] = []

        def watch(head: Info, drawn: list[Series] = drawn, name: str = name) -> Series:
            drawn.append(Series.of(head, (key, name)))
            return drawn[-1]

        story([path], key, name, watch=watch)
        assert pictured(drawn[0], key, name) == pictured(whole, key, name)


# ---- they are drawn within bounds


def test_pictures_are_well_formed_and_of_a_bounded_size(path: Path) -> None:
    for subject, picture in all_pictures(followed(path)).items():
        assert parsed(picture).tag == "svg", subject
        assert len(svg(picture.drawn)) < 200_000, subject
        draws_offsets = any(each.startswith("offsets of ") for each in written(picture))
        assert draws_offsets or "offsets" not in picture.note, subject


TIMED = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 99) | st.none()), max_size=600)


@given(TIMED)
def test_numbers_over_time_are_bounded_and_keep_their_range(given_: list) -> None:
    steps, known = Steps(), []
    for time_ns, value in given_:
        if value is None:
            steps.forget(time_ns)
        else:
            steps.see(time_ns, value)
            known.append(value)
    assert len(steps.points) <= POINTS_MAX
    assert steps.value == (given_[-1][1] if given_ else None)
    times = [each.time_ns for each in steps.points]
    assert times == sorted(times)
    shown = [each for each in steps.points if each.low or each.high or each.value is not None]
    if known:
        assert min(each.low for each in shown) == min(known)
        assert max(each.high for each in shown) == max(known)


@given(st.lists(st.integers(0, 10**6), max_size=400))
def test_bars_over_time_are_bounded_and_the_latest_is_as_it_was(times: list[int]) -> None:
    row = BarRow("a")
    for at, time_ns in enumerate(sorted(times)):
        row.add(Bar(time_ns, str(at % 2), str(at)))
    assert len(row.bars) <= BARS_MAX
    assert sum(each.times for each in row.bars) == len(times)
    if times:
        assert row.open is not None and row.open.title == str(len(times) - 1)


def many(members: int, generations: int) -> Traffic:
    """A group that rebalances again and again."""
    traffic = Traffic()
    ids = [f"m-{n}" for n in range(members)]
    for number in range(generations):
        for at, each in enumerate(ids):
            client, known = f"app-{each}", ids if not at else []
            traffic.add(number * 900 + at, *join(each, number, known), client=client)
            traffic.add(number * 900 + 300 + at, *sync(each, number, at), client=client)
    return traffic


def test_a_large_group_is_folded(tmp_path: Path) -> None:
    picture = pictured(followed(many(60, 20).recorded(tmp_path)), "group", "billing")
    assert picture is not None
    assert "and 46 more members" in written(picture)
    assert len(svg(picture.drawn)) < 300_000


@given(st.text())
def test_a_text_is_a_text(text: str) -> None:
    drawn = ElementTree.fromstring(svg(element("text", text, kind=text)))
    assert (drawn.text or "", len(drawn)) == (printable(text), 0)


def test_hostile_names_stay_texts(tmp_path: Path) -> None:
    name = "</title></svg><script>alert(1)</script>\x1b[31m\u202e"
    traffic = Traffic()
    for number in (1, 2):
        traffic.add(number * 100, *join("m-a", number, ["m-a"]), client=name)
        traffic.add(number * 100 + 10, *sync("m-a", number, 0, 1), client=name)
    picture = pictured(followed(traffic.recorded(tmp_path)), "group", "billing")
    assert picture is not None
    assert {each.tag for each in parsed(picture).iter()} == {"svg", "title", "text", "path", "rect"}
    assert any("<script>" in each for each in written(picture))


# ---- incidents, at one glance


def bars(rows: list[BarRow], *kinds: str) -> Iterator[tuple[str, EndMark | None, float]]:
    for row in rows:
        for bar in row.bars:
            if bar.kind in kinds:
                yield bar.kind, bar.end, ((bar.until_ns or bar.from_ns) - bar.from_ns) / 1e9


def test_a_crash_loop_is_a_row_of_crosses_above_an_offset_that_stands() -> None:
    series = followed(INCIDENTS / "crashloop.mcap")
    rows = [row for *_, row in series.groups["ledger"].rows]
    assert [end for _, end, _ in bars(rows, HAS)] == [ENDED] * 5
    assert len(rows) == 1
    (committed,), (fetched,) = series.committed.values(), series.fetched.values()
    stands = committed.points[-1]
    assert stands.value == 7 and committed.seen_ns - stands.time_ns > 20 * SECOND
    assert [(each.low, each.high) for each in fetched.points[-4:]] == [(7, 20)] * 4
    picture = pictured(series, "group", "ledger")
    assert picture is not None and {"7", "20", "13", "ledger"} <= {*written(picture)}
    paths = [*parsed(picture).iter("path")]  # the last of a class is its sample in the legend
    samples = {each.attrib.get("class"): each.attrib["d"] for each in reversed(paths)}
    assert "V" in samples["curve fetched n0"], "upright marks, as it is drawn"
    assert "V" not in samples["curve committed n0"]


def test_an_open_transaction_is_a_bar_without_an_end_above_a_flat_line() -> None:
    series = followed(INCIDENTS / "hang.mcap")
    found = series.history.transactions.ids["tx-hang"]
    (where,) = series.held
    assert [each.value for each in series.stable[where].points] == [0]
    assert series.written[where].value == 51
    picture = pictured(series, "transactional_id", "tx-hang")
    assert picture is not None
    assert {"open, 1 record, 16.1 s", "?", "last stable offset"} <= {*written(picture)}
    assert [kind for kind, _ in transactions(found, series.until_ns).legend] == [OPEN]
    readers = pictured(series, "group", "readers")  # they have committed nothing
    assert readers is not None
    assert {"offsets of ledgers[0]", "last stable offset", "51"} <= {*written(readers)}


def test_a_producer_that_was_fenced_did_not_fall_silent(tmp_path: Path) -> None:
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="old")
    traffic.add(10, *produce(0, 0, 5), client="old")
    traffic.add(5000, *initialize(1), client="new", connection=2)
    traffic.add(6000, *produce(0, 3, 9, error=47), client="old")
    series = followed(traffic.recorded(tmp_path))
    picture = pictured(series, "transactional_id", "pay")
    assert picture is not None and "refused: fenced" in written(picture)
    titles = [each.text or "" for each in parsed(picture).iter("title")]
    assert "22:13:26.000 refused: fenced" in titles
    assert not any("silent" in each for each in titles)


def test_a_quota_is_bars_of_the_times_that_it_took() -> None:
    series = followed(INCIDENTS / "quota.mcap")
    found = [*bars([*series.waits.values()], TOLD, WAITED)]
    assert [round(lasted, 1) for kind, _, lasted in found if kind == WAITED] == [10.2]
    assert sum(kind == TOLD and lasted > 9 for kind, _, lasted in found) == 3
    assert pictured(series, "client_id", "greedy") is not None
    assert pictured(series, "client_id", "nobody") is None
    assert pictured(series, "topic", "bulk") is None, "nothing was committed"


def test_a_generation_that_lasts_has_its_number_and_a_short_bar_at_the_end_its_partitions(
    tmp_path: Path,
) -> None:
    traffic = two_members()
    for at, number, owned in ((100, 4, (0, 1)), (20_000, 5, (0, 1, 2, 3))):
        traffic.add(at, *join("m-a", number, ["m-a"]), client="fast")
        traffic.add(at + 10, *sync("m-a", number, *owned), client="fast")
    traffic.add(20_500, *beat("m-a", 5), client="fast")
    picture = pictured(followed(traffic.recorded(tmp_path)), "group", "billing")
    assert picture is not None
    assert {"4", "5", "orders[0,1]", "[0,1,2,3]"} <= {*written(picture)}
    assert "3" not in written(picture), "it has no room beside 4, which lasted"


# ---- what is not known


def test_a_report_shows_that_first_parts_are_not_there(tmp_path: Path) -> None:
    """In the pictures of each recording, as stories do."""
    paths: list[Path] = []
    for name in ("one", "other"):
        settings = {"start_ns": START_NS, "schema_id": "x", "library_version": "0"}
        recording = Recording(tmp_path / f"{name}.mcap", **settings, rotate_ns=1000 * MS)
        for entry in sorted(many(2, 4).entries, key=lambda each: each.time_ns):
            recording.write([entry])
        recording.close()
        paths += recording.paths[1:]
    drawn = light_data(paths, pictured=True).pictures
    told = [{each.text or "" for each in parsed(one).iter("title")} for one in drawn.values()]
    assert len(told) == 2
    for titles in told:
        assert any("a part of the recording is not there" in each for each in titles)
