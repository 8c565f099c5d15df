"""The differences of two recordings as a page: what each says, in two columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kproxy.exchange.words.wording import count
from kproxy.look.diff.lines import total
from kproxy.look.report.charts import escape
from kproxy.look.report.page import GENERATOR, STYLE, notices_of_page
from kproxy.replay.compared import Difference

_ROWS_MAX = 500
"""Differences of one aspect that are shown."""
_STYLE = """
.diff { table-layout: fixed; min-width: 36rem; } .diff th, .diff td { width: 38%; }
.diff th:first-child, .diff td:first-child { width: 24%; }
.diff td { white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top; }
.diff th[colspan] { padding-top: .9rem; color: var(--text); }
.diff .old { border-left: 3px solid var(--bad); } .diff .new { border-left: 3px solid var(--c4); }
"""


def page(found: Sequence[Difference], before: str, after: str, notices: Sequence[str] = ()) -> str:
    """Return the page of the differences between recordings, named as the user did."""
    parts = "".join(
        _section(aspect, list(each), before, after)
        for aspect, each in itertools.groupby(found, lambda d: d.aspect)
    )
    title = escape(f"kproxy: {before}, {after}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">{GENERATOR}'
        f"<title>{title}</title><style>{STYLE}{_STYLE}</style>"
        f"</head><body><main><header><h1>What differs</h1><p>{escape(total(found))}</p>"
        f"{notices_of_page(notices)}</header>{parts}<footer>Made by <code>kproxy diff</code>."
        " Times, ids, offsets and polls are not compared.</footer></main></body></html>\n"
    )


def _section(aspect: str, found: Sequence[Difference], before: str, after: str) -> str:
    rows = ""
    for subject, each in itertools.groupby(found[:_ROWS_MAX], lambda d: d.subject):
        rows += f'<tr><th colspan="3" scope="rowgroup">{escape(subject)}</th></tr>'
        rows += "".join(map(_row, each))
    more = len(found) - _ROWS_MAX
    left = f'<p class="note">and {count(more, "more difference")}</p>' if more > 0 else ""
    return (
        f'<section><h2>{escape(aspect)}</h2><div class="wide"><table class="diff">'
        f'<tr><th></th><th scope="col">{escape(before)}</th><th scope="col">{escape(after)}</th>'
        f"</tr>{rows}</table></div>{left}</section>"
    )


def _row(one: Difference) -> str:
    old, new = ("–" if text is None else text for text in (one.before, one.after))
    return (
        f'<tr><td>{escape(one.which)}</td><td class="old">{escape(old)}</td>'
        f'<td class="new">{escape(new)}</td></tr>'
    )
