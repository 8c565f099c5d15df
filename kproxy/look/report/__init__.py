"""A report of recordings: one HTML file that says what stands out, and shows what happened.

::

    exchanges, notes ─▶ ReportPart, … ─ merged ─▶ ReportData ─┬─▶ findings ─▶ sentences, commands
                                                              └─▶ page: charts, tables ─▶ HTML

`light` reads recordings on this machine, without Spark or Arrow: `kproxy report`. Tasks of Spark
make the same parts: `kproxy analyze`. So a number of the report is computed in one place.
"""
