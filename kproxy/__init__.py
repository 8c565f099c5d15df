"""A man-in-the-middle recording proxy for the Apache Kafka wire protocol.

Data flows one way, and the rooms show it::

    client ─bytes─▶ frame ─▶ wants it? ──no──────────────▶ same bytes ─▶ broker
                             │yes                          ▲
                             └▶ locate ─▶ rewrite, fault ──┘
                   every frame, both ways ─▶ recording ─▶ show · replay

    protocol/   the wire format: frames, messages, record batches
    exchange/   what a person means: request and response paired, named, timed; the filter language
    proxy/      the man in the middle as a state machine; redaction; the fault rules
    recording/  the file
    replay/     a recording as a broker, as a state machine
    net/        sockets, the pump between them and a machine, the recorder's task, the control port
    view/       what people look at
    spark/      recordings as tables of Spark, read in place and followed
    analyze/    a job of Spark: Parquet tables, a report, comparisons
    commands/   what people type
    manual/     what they read: the pages of `kproxy help`
    testing/    a recording as the broker of a test; `pytest_plugin` is its fixture

A room imports only the rooms above it. `protocol`, `exchange`, `proxy` and `replay` know no socket,
file, clock or chance; trio lives in `net` and in what starts it.
"""

from __future__ import annotations

__version__ = "0.1.0"
