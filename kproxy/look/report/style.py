"""The style of the report: light and dark, wide and narrow."""

from __future__ import annotations

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
