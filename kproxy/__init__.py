"""A man-in-the-middle recording proxy for the Apache Kafka wire protocol.

Data flows one way, and the rooms show it::

    client ─bytes─▶ frame ─▶ wants it? ──no──────────────▶ same bytes ─▶ broker
                             │yes                          ▲
                             └▶ locate ─▶ rewrite ─────────┘
                   every frame, both ways ─▶ recording ─▶ show

    protocol/   the wire format: frames, messages, record batches
    exchange/   what a person means: request and response paired, named, timed, redacted
    proxy/      the man in the middle as a state machine
    recording/  the file
    net/        sockets, the pump between them and the machine, the recorder's task
    view/       what people look at
    commands/   what people type

A room imports only the rooms above it. `protocol`, `exchange` and `proxy` know no socket, file,
clock or chance; trio lives in `net` and in what starts it.
"""

from __future__ import annotations

__version__ = "0.1.0"
