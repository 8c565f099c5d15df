"""The report: a single HTML file, for a browser, a ticket or an attachment.

    ReportData ─▶ findings with their commands and pictures · tiles · sections ─▶ page

All text from recordings is escaped; the page has no scripts and loads nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kproxy.exchange.words.wording import duration
from kproxy.look.pictures.drawing import Picture, style, svg
from kproxy.look.pictures.subjects import subject_of
from kproxy.look.report.charts import escape
from kproxy.look.report.data import ReportData, Row
from kproxy.look.report.findings import findings, number
from kproxy.look.report.sections import sections
from kproxy.look.report.style import STYLE
from kproxy.look.report.timeline import timeline
from kproxy.look.why.finding import Finding, Harm
from kproxy.recording.notices import CAPTURE_POINT
from kproxy.units import format_bytes, moment

_NAMES_MAX = 20
GENERATOR = '<meta name="generator" content="kproxy">'
"""By this a file is known to be a report."""
_HARMS = {Harm.DATA: "bad", Harm.LATENCY: "warn", Harm.CURIOSITY: "info"}


def page(
    data: ReportData,
    recordings: Sequence[str],
    baseline: Sequence[str] = (),
    made_by: str = "report",
) -> str:
    """Return the report of recordings, with their names as the user gave them. `made_by` is the
    command of kproxy that makes it."""
    began = moment(data.start_us * 1000)
    x = timeline(data.files, data.start_us, data.span_ms, data.slots.width_ms)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">{GENERATOR}'
        f"<title>kproxy: {began:%Y-%m-%d %H:%M}</title><style>{STYLE}{style()}</style></head><body>"
        f"<main><header><h1>What the recordings say</h1><p>{began:%Y-%m-%d %H:%M:%S} UTC,"
        f" {duration(data.span_ms)}</p>{_names('Of', recordings)}"
        f"{_names('Compared with', baseline)}{notices_of_page(data.notices)}</header>"
        f"{_tiles(data.totals)}{_findings(data)}{''.join(sections(data, x))}"
        f"<footer>Made by <code>kproxy {made_by}</code>. The broker's time is without what requests"
        " waited for behind others, in a long poll, or for a group. <code>kproxy show FILE"
        " number:N</code> shows exchange #N.</footer></main></body></html>\n"
    )


def _names(what: str, names: Sequence[str]) -> str:
    shown = ", ".join(f"<code>{escape(name)}</code>" for name in names[:_NAMES_MAX])
    more = f" and {number(len(names) - _NAMES_MAX)} more" if len(names) > _NAMES_MAX else ""
    return f"<p>{what} {shown}{more}</p>" if names else ""


def notices_of_page(notices: Sequence[str]) -> str:
    """Return what is missing in recordings, for the head of a page."""
    plain = {CAPTURE_POINT: f"<p>{CAPTURE_POINT.capitalize()}.</p>"}
    return "".join(plain.get(each) or f'<p class="notice">{escape(each)}.</p>' for each in notices)


def _tiles(totals: Row) -> str:
    tiles = (
        ("exchanges", number(totals["exchanges"])), ("clients", number(totals["clients"])),
        ("connections", number(totals["connections"])),
        ("traffic", format_bytes(int(totals["bytes"]))),
        ("records produced", number(totals["produced"])),
        ("records consumed", number(totals["consumed"])),
        ("with errors", number(totals["errors"])),
        *([("with routine errors", number(totals["routine"]))] if totals["routine"] else []),
        ("never answered", number(totals["unanswered"] - totals["open"])),
        ("not delivered", number(totals["undelivered"])),
    )  # fmt: skip
    cells = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in tiles)
    return f'<div class="tiles">{cells}</div>'


def _findings(data: ReportData) -> str:
    """Return the findings below a heading for each harm, with the commands that show them, and
    their pictures; then those that belong to none."""
    parts: list[str] = []
    left = dict(data.pictures)
    for harm, several in itertools.groupby(findings(data), key=lambda each: each.harm):
        items = ""
        for each in several:
            subject = subject_of(each)
            drawn = None if subject is None else left.pop((each.files, subject), None)
            items += f'<li class="{_HARMS[harm]}">{_finding(each, data)}{_picture(drawn)}</li>'
        parts.append(f'<h2>{harm.heading}</h2><ul class="findings">{items}</ul>')
    others = "".join(f"<h3>{escape(each.title)}</h3>{_picture(each)}" for each in left.values())
    parts += [f"<section><h2>Drawn</h2>{others}</section>"] if others else []
    return "".join(parts)


def _picture(drawn: Picture | None) -> str:
    if drawn is None:
        return ""
    note = f"<figcaption>{escape(drawn.note)}</figcaption>"
    return f'<figure class="pictured">{svg(drawn.drawn)}{note}</figure>'


def _finding(found: Finding, data: ReportData) -> str:
    text = "<br>".join(map(escape, (found.text, *found.evidence)))
    command = found.command(data.paths, data.names) if found.files else ""
    return f"{text}<code>{escape(command)}</code>" if command else text
