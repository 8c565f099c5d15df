"""The pipeline over recordings: a job of Spark that makes Parquet tables and a report of them.

    recordings ─ export, in tasks ─┬─▶ exchanges, records, events ─ SQL ─▶ latency, throughput
               └ faults            └─▶ TaskCounts, … ─ merged ─▶ errors, groups, …, and the page
                                                              of `kproxy.look.report`

`job` makes one analysis and `appending` adds to a lake, on one machine or a cluster; `publish`
makes visible what they made, `tables` opens it.
"""
