"""One report, of all files together or one by one; its numbers are those of `kproxy stats`."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import attrs

from kproxy.exchange.merging import merge
from kproxy.exchange.words.wording import duration
from kproxy.history.events import taken
from kproxy.look.lines.stats_lines import lines, stats_of
from kproxy.look.lines.stream import Stream
from kproxy.look.report.light import light_data
from kproxy.look.report.page import page
from kproxy.look.report.part import ReportPart
from tests.bed import needs
from tests.look.report.making import plain

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"


def test_files_one_by_one_give_the_report_of_all(tmp_path: Path) -> None:
    def part(*paths: Path) -> ReportPart:
        found = ReportPart()
        for path in paths:
            for each in Stream([path]).exchanges():
                found.add(each, taken(each), path.stem, str(path))
        return found

    paths = [FORMATS / "java-4.4.0.mcap", FORMATS / "kafkajs.mcap", FORMATS / "faults.mcap"]
    together, backwards = part(*paths), ReportPart()
    for path in reversed(paths):
        merge(backwards, part(path))
    assert backwards.slots.counts == together.slots.counts
    assert backwards.phases.width_ms == together.phases.width_ms
    for name in ("connections", "records", "files", "ended_by"):
        assert getattr(backwards, name) == getattr(together, name), name
    for name in ("clients", "topics", "failures"):
        tallies = (getattr(each.counts, name) for each in (together, backwards))
        one, other = ({key: attrs.asdict(tally) for key, tally in each.items()} for each in tallies)
        assert one == other
    assert [each[:3] for each in backwards.slowest] == [each[:3] for each in together.slowest]


def cells(shown: str, title: str) -> list[list[str]]:
    """The rows of the table below a title."""
    section = shown.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]
    return [row.split("</td><td>") for row in section.split("<tr><td>")[1:]]


def test_tables_by_client_and_topic_say_what_their_exchanges_took_and_how_many_failed() -> None:
    took: defaultdict[tuple[str, str | None, str | None], list[int]] = defaultdict(list)
    failed = Counter[tuple[str, str | None, str | None]]()
    for each in Stream([FORMATS]).exchanges():
        failed["client", each.api, each.client_id] += bool(each.errors) and not each.routine
        if each.durations.served_us >= 0:
            took["client", each.api, each.client_id].append(each.durations.served_us)
            for topic in each.topics:
                took["topic", each.api, topic].append(each.durations.served_us)
    data = light_data([FORMATS])
    for row in data.parts:
        times = took[row["kind"], row["api"], row["name"]]
        assert (row["broker_min"], row["broker_max"]) == (min(times) / 1000, max(times) / 1000)
    alone = {
        (api, client): duration(times[0] / 1000)
        for (kind, api, client), times in took.items()
        if kind == "client" and len(times) == 1
    }
    rows = cells(plain(page(data, [])), "Latency by client")
    assert all(int(row[3]) == failed["client", row[0], row[1]] for row in rows)
    shown = [(row[:2], row[-3:]) for row in rows if row[2] == "1"]
    assert len(shown) > 5
    for (api, client), percentiles in shown:
        said = [each.removesuffix("</td></tr>") for each in percentiles[:2]]
        assert said == [alone[api, client]] * 2, "its own time, and not a bucket's"


def test_stats_and_the_report_show_the_same_percentiles_and_errors() -> None:
    stats = stats_of(Stream([FORMATS]))
    few = {
        line.split()[0]: "     –     –     –" in line
        for line in list(lines(stats, rows_max=None))[3 : 3 + len(stats.tables["api"])]
    }
    rows = {row[0]: row[1:] for row in cells(plain(page(light_data([FORMATS]), [])), "APIs")}
    assert {api: row[4:7] == ["–"] * 3 for api, row in rows.items()} == few
    assert not few["OffsetCommit"] and few["JoinGroup"], "10 of 12 have a time; none has"
    errors = {api: int(row[1]) for api, row in rows.items()}
    assert errors == {api: tally.errors for api, tally in stats.tables["api"].items()}
    assert errors["ApiVersions"] == 0, "all of them are routine"
