"""Pictures of incidents: what a person would draw on a board, from what the history follows.

    Exchange · ConnectionEnd · Gap ─▶ History ─▶ Series ─▶ pictures ─┬─ svg ──▶ the report
                                                                     └─ plain ▶ JSON: the page

Each panel of a picture is a module: `members`, `offsets`, `lag`, `transactions`, `waits`.

Invariants: nothing is drawn that the recording does not prove; names are text, never markup.
"""
