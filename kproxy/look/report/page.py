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
from kproxy.look.report.timeline import timeline
from kproxy.look.why.finding import Finding, Harm
from kproxy.recording.notices import CAPTURE_POINT
from kproxy.units import format_bytes, moment

STYLE = """
:root { --bg: #fbfbfa; --panel: #fff; --text: #1d2021; --soft: #667; --rule: #e3e3e0;
  --c1: #2b6cb0; --c2: #dd8a1b; --c3: #b83280; --c4: #2f8f6b; --c5: #7b61c4; --c6: #8a8a85;
  --c7: #4aa3c7; --c8: #a3632b; --c9: #5b7f2b; --c10: #9b4d4d; --c11: #556; --c12: #333;
  --bad: #c53030; --warn: #b7791f; --info: #5a7fa8; }
@media (prefers-color-scheme: dark) { :root { --bg: #16181a; --panel: #1e2124; --text: #e6e6e3;
  --soft: #9aa0a6; --rule: #33373b; --c1: #63a4e8; --c2: #f0ad4e; --c3: #e27fb6; --c4: #5cc49b;
  --c5: #a792ea; --c6: #a0a09a; --c7: #7cc8e6; --c8: #cf9560; --c9: #9dbf6a; --c10: #d08a8a;
  --c11: #aab; --c12: #ccc; --bad: #fc8181; --warn: #ecc94b; --info: #7fa8d4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.2rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0 0 .8rem; }
header p, footer, .note { color: var(--soft); } header p { margin: .1rem 0 1rem; }
footer { font-size: .85rem; margin-top: 1.5rem; } .note { font-size: .85rem; margin: .4rem 0 0; }
section { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px;
  padding: 1rem; margin: 1rem 0; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; }
.tiles div { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px;
  padding: .6rem .8rem; }
.tiles b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.tiles span { color: var(--soft); font-size: .85rem; }
.notice { color: var(--warn); } h2 { overflow-wrap: anywhere; }
code { font: .85em/1.4 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.findings code { display: block; color: var(--soft); user-select: all; margin-top: .15rem; }
main > h2 { margin: 1.4rem 0 .4rem; }
.findings { list-style: none; padding: 0; margin: 1rem 0; }
.findings li { border-left: 4px solid var(--info); background: var(--panel); padding: .4rem .8rem;
  margin: .35rem 0; border-radius: 0 6px 6px 0; overflow-wrap: anywhere; }
.findings .bad { border-color: var(--bad); } .findings .warn { border-color: var(--warn); }
.plot { position: relative; height: 12rem; margin: .4rem 1.6rem 1.8rem 4.2rem; }
.plot svg { width: 100%; height: 100%; display: block; overflow: visible; }
.plot span { position: absolute; font-size: .75rem; color: var(--soft); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.plot .y { right: calc(100% + .5rem); transform: translateY(50%); }
.plot .x { top: calc(100% + .35rem); transform: translateX(-50%); }
.grid { stroke: var(--rule); stroke-width: 1; vector-effect: non-scaling-stroke; }
.line { fill: none; stroke-width: 1.8; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.cell { fill: var(--c1); }
.mark { stroke-width: 1; vector-effect: non-scaling-stroke; stroke-opacity: .4; }
.mark.fault { stroke: var(--bad); } .mark.rebalance { stroke: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 0; font-size: .85rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px;
  margin-right: .35rem; vertical-align: -1px; }
.wide { overflow-x: auto; } section .plot ~ .wide { margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .87rem;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: .28rem 0 .28rem .8rem; border-bottom: 1px solid var(--rule);
  white-space: nowrap; } th:first-child, td:first-child { padding-left: 0; }
th { vertical-align: bottom; white-space: normal; } .n { text-align: right; }
.break { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 4;
  vector-effect: non-scaling-stroke; }
.plot .pause { top: -.2rem; transform: translateX(-50%); background: var(--panel); padding: 0 .2rem;
  font-size: .7rem; }
.line.dashed polyline { stroke-dasharray: 5 3; }
@media (min-width: 70rem) { .tiles { grid-template-columns: repeat(8, 1fr); } }
@media (max-width: 56rem) { .plot .x:nth-of-type(even), .plot .pause:nth-of-type(even) {
  display: none; } }
@media (max-width: 40rem) { .tiles { grid-template-columns: repeat(2, 1fr); }
  .plot { height: 9rem; margin-left: 3.6rem; margin-right: 1rem; }
  section { padding: .8rem .7rem; } }
@media print { section { break-inside: avoid; } }
"""


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
