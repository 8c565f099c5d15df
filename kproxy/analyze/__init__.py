"""The pipeline over recordings: a job of Spark that makes Parquet tables and a report of them.

    recordings ─ export, in tasks ─┬─▶ exchanges, records, events ─ SQL ─▶ latency, errors, …
                                   └─▶ ReportPart, … ─ merged ─▶ the page of `kproxy.report`

`job` runs it all, on one machine or a cluster.
"""
