"""What an analysis says when there is much of something: it counts all, and names a few."""

from __future__ import annotations

import itertools
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from kproxy.analyze import publish
from kproxy.analyze.place import Place
from kproxy.commands import analyze as command
from kproxy.look.report import findings, significance
from kproxy.look.report.summary import summarized
from kproxy.look.why.commit_findings import LAG
from kproxy.look.why.finding import Finding, Harm
from kproxy.spark import SparkError
from tests.look.report.making import api, gathered, page_of, row_of, said, slots

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def fault(number: int) -> dict[str, Any]:
    """What is known of a fault."""
    return {
        "fault": "away", "time": BEGAN, "us": 0, "number": number, "api": "Fetch",
        "client_id": "shop", "retries": 1, "reconnects": 0, "recovered_ms": 5.0,
        "recovered_number": number + 1,
    }  # fmt: skip


def group(name: str, rebalances: int, lag: int) -> dict[str, Any]:
    """What is known of a group."""
    return {
        "group": name, "members": 2, "rebalances": rebalances, "first_generation": 1,
        "last_generation": 1 + rebalances, "commits": 1, "errors": 0, "lag": lag,
        "partitions": None,
    }  # fmt: skip


def test_pauses_of_many_apis_are_three_sentences_and_a_count() -> None:
    apis = [api(f"Api{each}", 9, proxy_max=100.0 + each) for each in range(9)]
    lines = [line for line in said(gathered(apis, {})).splitlines() if "held" in line]
    assert [line[:23] for line in lines[:3]] == ["kproxy itself held #1 A"] * 3
    assert "Api8" in lines[0] and lines[3:] == [
        "It held exchanges of 6 other APIs for 100 ms or more."
    ]


def test_all_generations_and_groups_are_counted_though_only_the_first_are_listed() -> None:
    born = [{"group": "billing", "us": 0, "generation": each, "members": 2} for each in range(60)]
    names = [f"group-{each:03}" for each in range(50)]
    groups = [group(name, each, 100 * each) for each, name in enumerate(names)]
    totals = {"known": 90, "rebalanced": 60, "behind": 4}
    found = gathered([], {}, rebalances=born, groups=groups, group_totals=totals)
    found.totals |= {"generations": 470, "exchanges": 1}
    too = " (markers of transactions count, too)"
    assert said(found).splitlines() == [
        "Group group-049 rebalanced 49 times (2 member ids).",
        "Group group-048 rebalanced 48 times (2 member ids).",
        "Group group-047 rebalanced 47 times (2 member ids).",
        "No response has an error.",
        "57 other groups rebalanced, none more often.",
        f"Group group-049 ends 4 900 offsets behind its topics{too}.",
        f"Group group-048 ends 4 800 offsets behind its topics{too}.",
        f"Group group-047 ends 4 700 offsets behind its topics{too}.",
        "1 other group ends behind, none further.",
    ]
    page = page_of(found, [])
    assert page.count("<tr><td>group-0") == 50 and ">and 40 more</p>" in page
    assert page.count("<tr><td>billing</td>") == 50 and ">and 420 more</p>" in page


def test_a_lag_that_the_recording_itself_proves_is_not_said_again() -> None:
    groups = [group(f"g{each}", 0, 100 * each) for each in range(1, 9)]
    groups[7] |= {"group": "g8 of cluster A", "name": "g8", "files": ["a.mcap"]}
    found = gathered([], {}, groups=groups, group_totals={"behind": 8, "rebalanced": 0, "known": 8})

    def proved(*names: str, files: tuple[str, ...] = ()) -> str:
        about = Harm.CURIOSITY, LAG, "", (1,)
        made = [Finding(*about, files=files, group=name) for name in names]
        lines = said(attrs.evolve(found, findings=made)).splitlines()
        return " ".join(line.split(" ends ")[0] for line in lines if "behind" in line)

    assert (
        proved()
        == "Group g8 of cluster A Group g7 Group g6 5 other groups end behind, none further."
    )
    assert proved("g7", "g5") == (
        "Group g8 of cluster A Group g6 Group g4 3 other groups end behind, none further."
    )
    assert proved("g8", files=("a.mcap",)).startswith("Group g7 ")
    assert proved("g8", files=("b.mcap",)).startswith("Group g8 "), "it is of another cluster"
    assert proved(*(f"g{each}" for each in range(1, 9)), files=("a.mcap",)) == ""


@pytest.mark.parametrize("written", [0, 1, 2])
def test_what_was_refused_and_is_written_later_is_not_lost(written: int) -> None:
    row = {
        "api": "Produce", "error": "OUT_OF_ORDER_SEQUENCE_NUMBER", "count": 2, "routine": 0,
        "injected": 0, "topics": [], "client_ids": [], "number": 9, "name": "#9", "file": None,
    }  # fmt: skip
    proved = [
        Finding(Harm.LATENCY, "written after OUT_OF_ORDER_SEQUENCE_NUMBER", "", (each,))
        for each in range(written)
    ]
    found = attrs.evolve(gathered([], {}, errors=[row]), findings=proved)
    (lost,) = [each.text for each in findings.findings(found) if "not written" in each.text] or [""]
    ends = ["not written.", "; 1 of these requests a later one wrote again.", ""]
    assert lost.endswith(ends[written]) and bool(lost) is (written < 2)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (5, 5, "100 %"), (1, 1000, "0.1 %"), (1, 10**6, "less than 0.01 %"), (0, 0, "0 %"),
        (995, 10_000, "10 %"), (994, 10_000, "9.9 %"), (0, 7, "0 %"),
    ],
)  # fmt: skip
def test_shares_are_written_as_people_do(part: int, whole: int, text: str) -> None:
    assert findings.share(part, whole) == text


def test_a_report_of_days_has_no_exponents() -> None:
    found = gathered([], {})
    found.span_ms = 3 * 86_400_000
    counts: dict[int, dict[tuple[str, Any], int]] = {n: {("bucket", 1800): 3} for n in range(72)}
    counts[1]["produced", "orders"] = 5_000_000
    found.slots = slots(counts, 3_600_000)
    page = page_of(found, [])
    assert ">+1 d<" in page and "orders, produced: 5000000<" in page
    assert not re.search(r"\de[+-]?\d", re.sub(r"(?s)<style>.*</style>", "", page))


def compared(errors: int, count: int, before: int, baseline_count: int) -> dict[str, Any]:
    """How the errors of Produce differ from those of a baseline."""
    row: dict[str, Any] = {"api": "Produce", "topic": None}
    row |= {"count": count, "baseline_count": baseline_count}
    for name in ("p50", "p95", "p99"):
        row |= {f"{name}_ratio": 1.0, f"{name}_sigma": 0.0}
    return row | {
        "errors": errors / count, "baseline_errors": before / baseline_count,
        "errors_sigma": significance.sigmas(errors, count, before, baseline_count),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "sentence", "cell"),
    [
        ((200, 1000, 10, 1000), "more often than in the baseline: 20 % of responses", "20.00%"),
        ((10, 1000, 200, 1000), "fails less often than", "1.00%"),
        ((1, 10, 0, 10), "", "10.00% (chance)"),
        ((0, 10, 0, 10), "", "0.00%"),
    ],
)  # fmt: skip
def test_what_fails_more_often_is_told_from_chance(
    counts: tuple[int, int, int, int], sentence: str, cell: str
) -> None:
    found = gathered([], {}, differences=[compared(*counts)])
    assert sentence in said(found) and ("fails" in said(found)) is bool(sentence)
    assert row_of(page_of(found, []), "Produce")[6] == cell


@pytest.mark.parametrize("topic", [None, "orders"])
def test_what_is_slower_than_allowed_fails_the_command(
    topic: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    row = compared(0, 10, 0, 10) | {"topic": topic, "p95_ratio": 2.5, "p95_sigma": 9.0}
    assert command.report_slower([row], 2.0) == 1
    assert capsys.readouterr().err == (
        f"kproxy analyze: Produce{' on orders' if topic else ''} is slower than the baseline:"
        " p50 ×1.00, p95 ×2.50, p99 ×1.00\n"
    )
    chance = row | {"p95_sigma": 1.0}
    for rows, above in (([row], 3.0), ([row], None), ([chance], 2.0), ([], 2.0)):
        assert command.report_slower(rows, above) == 0
    assert capsys.readouterr().err == ""


def test_a_folder_that_cannot_be_written_to_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write to all
    with pytest.raises(SparkError, match=f"{tmp_path} cannot be written to"):
        publish.check_free(Place(tmp_path / "new" / "out"))
    publish.check_free(Place(Path("out")))


def test_faults_that_are_not_shown_count() -> None:
    rows = [
        fault(number) | {"recovered_ms": None if number < 7 else float(number)}
        for number in reversed(range(700))
    ]
    found = summarized(iter(rows), len(rows))
    summed = {"hits": 700, "recovered": 693, "recovered_ms_max": 699.0}
    assert found.totals == summed | {"succeeded": 0, "passed": 0}
    shown = [row["number"] for row in found.shown]
    steps = {before - after for before, after in itertools.pairwise(shown)}
    assert len(shown) == 300 and steps == {2, 3} and shown[-1] == 0, "evenly, to the last one"
    (rule,) = found.rules
    assert (rule["hits"], rule["lasting"], rule["recovered_ms_max"]) == (700, 7, 699.0)
    data = gathered([], {}, faults=found.shown, rules=found.rules, fault_totals=found.totals)
    page = page_of(data, ["demo"])
    assert "Fault rules" in page and f"<td>{rule['fault']}</td><td>700</td>" in page


def test_a_hit_that_only_made_its_exchange_late_is_counted_and_not_listed() -> None:
    def late(number: int, **others: Any) -> dict[str, Any]:
        its_own = {"fault": "slow", "recovered_number": number, "recovered_ms": 0.0, "retries": 0}
        return fault(number) | its_own | others

    rows = [*map(late, range(193)), late(193, reconnects=1), fault(194), late(195)]
    found = summarized(iter(rows), len(rows))
    about = {"rules": found.rules, "fault_totals": found.totals}
    assert (
        "196 faults were injected; with 195 of them the exchange itself was answered without an"
        " error; after 1 other the next request of the same API, whatever it asked, succeeded after"
        " 5 ms at most."
    ) in said(gathered([], {}, faults=found.shown, **about))
    lost = fault(196) | {"recovered_number": None, "recovered_ms": None}
    for hits, told in (
        ([late(1)], "1 fault was injected; the exchange itself was answered without an error."),
        (
            [late(1), late(2)],
            "2 faults were injected; the exchange itself was answered without an error each time.",
        ),
        (
            [late(1), lost],
            "itself was answered without an error; after 1 other no request of the same API",
        ),
    ):
        totals = summarized(iter(hits), len(hits)).totals
        assert told in said(gathered([], {}, faults=hits, fault_totals=totals))
    page = page_of(gathered([], {}, faults=found.shown, hits=found.hits, **about), [])
    rules, _, hits = page.partition("Fault rules")[2].partition("Faults, and what the clients did")
    slow = row_of(rules, "slow")
    assert slow[0] == "195" and slow[-3:] == ["–", "–", "0"], "all count, and none failed"
    assert "194 hits only made an exchange late, or sent it twice" in rules
    listed = re.findall(r"<tr><td>(.*?)</td><td>.*?</td><td>(.*?)</td>", hits)
    assert listed == [("slow", "#193"), ("away", "#194")] and " more</p>" not in hits
