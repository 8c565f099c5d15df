"""A man-in-the-middle recording proxy for the Apache Kafka wire protocol.

Data flows one way, and the rooms show it::

    client ─bytes─▶ frame ─▶ wants it? ──no──────────────▶ same bytes ─▶ broker
                             │yes                          ▲
                             └▶ locate ─▶ rewrite, fault ──┘
                   every frame, both ways ─▶ recording ─▶ show · replay

    wire/       the wire format, and what keys and values mean
    exchange/   what a person means: request and response paired, named, timed; the filter language
    history/    what happened in the cluster, followed once: rows of exchanges, a fold
    proxy/      the man in the middle as a state machine; redaction; the fault rules
    recording/  the file
    tables/     recordings as Arrow tables
    replay/     a recording as a broker, as a state machine
    net/        sockets, the pump between them and a machine, the recorder's task, the control port
    look/       what people look at: lines, stories, a report, a page in a browser
    spark/      recordings as tables of Spark, read in place and followed
    analyze/    a job of Spark: Parquet tables, a report, comparisons
    commands/   what people type
    manual/     what they read: the pages of `kproxy help`
    testing/    a recording as the broker of a test; `pytest_plugin` is its fixture

A room imports only the rooms above it. `wire`, `exchange`, `history`, `proxy` and `replay` know no
socket, file, clock or chance; trio lives in `net` and in what starts it.
"""

from __future__ import annotations

__version__ = "0.1.0"
