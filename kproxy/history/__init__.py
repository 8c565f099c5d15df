"""What happened in the cluster, followed once: exchanges become rows, rows become a history.

::

    Exchange ─▶ events ─▶ rows ─┐
    ConnectionEnd, Gap ─────────┴─▶ History: groups · transactions · logs · cluster · connections
                                        └─▶ findings, stories, reports, comparisons

`events` is stateless: the quirks of APIs and of their versions live there, once. `History` is a
fold of one recording's rows in the order in which exchanges were completed.
"""
